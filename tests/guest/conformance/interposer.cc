#include "guest/conformance/interposer.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

namespace fabric::test {
namespace {

uint32_t host_of(const ibv_device* device) { return static_cast<uint32_t>(device->name[1] - 'a'); }
uint32_t rail_of(const ibv_device* device) { return static_cast<uint32_t>(device->name[2] - '0'); }
bool is_open(const ibv_qp* qp) { return qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_RTR; }

}  // namespace

VerbsInterposer& VerbsInterposer::get() {
  static VerbsInterposer interposer;
  return interposer;
}

VerbsInterposer::VerbsInterposer() {
  const auto loaded = verbs::load_library();
  EXPECT_TRUE(loaded) << loaded.error().what;
  real_ = **loaded;
  verbs::Library table = real_;
  table.open_device = open_device;
  table.close_device = close_device;
  table.create_qp = create_qp;
  table.modify_qp = modify_qp;
  table.destroy_qp = destroy_qp;
  table.get_async_event = get_async_event;
  table.ack_async_event = ack_async_event;
  verbs::exchange_library_for_tests(table);
}

// ---- What the network calls ---------------------------------------------------------------------

ibv_context* VerbsInterposer::open_device(ibv_device* device) {
  VerbsInterposer& all = get();
  const std::lock_guard lock(all.mutex_);
  ibv_context* const context = all.real_.open_device(device);
  if (context == nullptr) return nullptr;
  all.nics_[context] = {.host = host_of(device),
                        .rail = rail_of(device),
                        .post_send = context->ops.post_send,
                        .post_recv = context->ops.post_recv,
                        .poll_cq = context->ops.poll_cq};
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->ops.poll_cq = poll_cq;
  return context;
}

int VerbsInterposer::close_device(ibv_context* context) {
  VerbsInterposer& all = get();
  const std::lock_guard lock(all.mutex_);
  all.nics_.erase(context);
  return all.real_.close_device(context);
}

ibv_qp* VerbsInterposer::create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  VerbsInterposer& all = get();
  const bool sends = wanted->cap.max_send_wr > 1;  // the others post nothing but receives
  ibv_qp* const qp = all.real_.create_qp(pd, wanted);
  if (qp == nullptr) return nullptr;
  const std::lock_guard lock(all.mutex_);
  all.numbers_[{qp->context, qp->qp_num}] = qp;
  all.qp_states_[qp] = {.rail = rail_of(qp->context->device), .sends = sends};
  return qp;
}

int VerbsInterposer::modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  VerbsInterposer& all = get();
  std::unique_lock lock(all.mutex_);
  const auto found = all.qp_states_.find(qp);
  if ((mask & IBV_QP_STATE) != 0 && attributes->qp_state == IBV_QPS_ERR &&
      found != all.qp_states_.end()) {
    QpState& state = found->second;
    const auto time = all.error_state_delay(qp, state);
    if (time == time.zero()) return all.to_error(qp, state);
    state.silent_until = Clock::time_point::max();
    lock.unlock();
    std::this_thread::sleep_for(time);
    lock.lock();
    const int code = all.to_error(qp, state);  // the caller keeps `qp` alive
    state.silent_until = Clock::now() + time;
    return code;
  }
  if ((mask & IBV_QP_AV) != 0 && found != all.qp_states_.end()) {
    // The last bytes of its IPv4 address are rail and host.
    found->second.far_rail = attributes->ah_attr.grh.dgid.raw[14];
    found->second.far_host = attributes->ah_attr.grh.dgid.raw[15] - 1u;
    found->second.far_number = attributes->dest_qp_num;
  }
  lock.unlock();  // connecting may take the kernel a second
  return all.real_.modify_qp(qp, attributes, mask);
}

int VerbsInterposer::destroy_qp(ibv_qp* qp) {
  VerbsInterposer& all = get();
  const std::lock_guard lock(all.mutex_);
  all.qp_states_.erase(qp);
  all.numbers_.erase({qp->context, qp->qp_num});
  std::erase_if(all.nics_.at(qp->context).raised, [&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp;
  });
  return all.real_.destroy_qp(qp);
}

int VerbsInterposer::post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  VerbsInterposer& all = get();
  std::unique_lock lock(all.mutex_);
  const Nic nic = all.nics_.at(qp->context);
  const QpState& state = all.qp_states_.at(qp);
  ibv_send_wr* corrupted = nullptr;
  if (nic.host == all.corrupt_from_ && state.far_host == all.corrupt_to_) {
    corrupted = first;
    while (corrupted != nullptr && corrupted->num_sge == 0) corrupted = corrupted->next;
  }
  if (corrupted != nullptr) {
    all.corrupt_from_ = all.corrupt_to_ = UINT32_MAX;
    corrupted->wr.rdma.rkey ^= 0x5a00;
  }
  // Before the call: they may have been delivered when it returns.
  std::deque<uint32_t>& imms = all.imms_[{nic.host, state.rail, qp->qp_num}];
  const auto added = imms_of(first);
  imms.insert(imms.end(), added.begin(), added.end());
  lock.unlock();
  const int code = nic.post_send(qp, first, bad);
  if (code == 0) return 0;
  lock.lock();
  imms.resize(imms.size() - imms_of(*bad).size());
  return code;
}

std::vector<uint32_t> VerbsInterposer::imms_of(const ibv_send_wr* first) {
  std::vector<uint32_t> imms;
  for (; first != nullptr; first = first->next) {
    if (first->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) imms.push_back(first->imm_data);
  }
  return imms;
}

int VerbsInterposer::post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
  VerbsInterposer& all = get();
  const std::lock_guard lock(all.mutex_);
  const Nic& nic = all.nics_.at(qp->context);
  if (nic.host != all.not_ready_) return nic.post_recv(qp, first, bad);
  QpState& state = all.qp_states_.at(qp);
  for (const ibv_recv_wr* one = first; one != nullptr; one = one->next) {
    state.withheld.push_back(one->wr_id);
  }
  return 0;
}

VerbsInterposer::QpState* VerbsInterposer::find(ibv_context* context, uint32_t number) {
  const auto qp = numbers_.find({context, number});
  return qp == numbers_.end() ? nullptr : &qp_states_.at(qp->second);
}

void VerbsInterposer::watch(QpState& state, const ibv_wc& completion) {
  if (state.sends) return;
  if (completion.status != IBV_WC_SUCCESS) {
    ++state.errors;
    return;
  }
  const auto found = imms_.find({state.far_host, state.far_rail, state.far_number});
  if (found == imms_.end()) return;  // of another process
  std::deque<uint32_t>& imms = found->second;
  if (!imms.empty() && imms.front() == completion.imm_data) {
    imms.pop_front();
    ++state.taken;
    return;
  }
  // A duplicate, or one that comes after missing ones. Which of the two is not always known,
  // because counter keys are reused.
  const auto at = std::ranges::find(imms, completion.imm_data);
  ADD_FAILURE() << "the device delivered an immediate out of order: rail " << state.rail
                << ", from host " << state.far_host << ", after " << state.taken << " in order and "
                << state.errors << " errors, number " << at - imms.begin() << " of " << imms.size()
                << " in flight";
  if (at != imms.end()) imms.erase(imms.begin(), at + 1);
  std::ofstream{kDeviceFault} << "an immediate out of order\n";
}

int VerbsInterposer::take(Nic& nic, ibv_cq* queue, std::span<ibv_wc> out) {
  const int got = nic.poll_cq(queue, static_cast<int>(out.size()), out.data());
  for (int i = 0; i < got; ++i) {
    const ibv_wc& completion = out[static_cast<size_t>(i)];
    if (QpState* const state = find(queue->context, completion.qp_num)) watch(*state, completion);
  }
  return got;
}

/// Polls everything from the device, and holds back completions of queue pairs that are silent.
int VerbsInterposer::poll_cq(ibv_cq* queue, int room, ibv_wc* out) {
  VerbsInterposer& all = get();
  const std::lock_guard lock(all.mutex_);
  Nic& nic = all.nics_.at(queue->context);
  if (!all.slow_.contains(nic.host) && !nic.late.contains(queue)) {
    return all.take(nic, queue, {out, static_cast<size_t>(room)});
  }
  std::deque<ibv_wc>& late = nic.late[queue];
  std::array<ibv_wc, 32> fresh{};
  for (int got = 0; (got = all.take(nic, queue, fresh)) > 0;) {
    late.insert(late.end(), fresh.begin(), fresh.begin() + got);
  }
  const auto now = Clock::now();
  int count = 0;
  for (auto at = late.begin(); at != late.end() && count < room;) {
    const QpState* const state = all.find(queue->context, at->qp_num);
    if (state != nullptr && state->silent_until > now) {
      ++at;
      continue;
    }
    out[count++] = *at;
    at = late.erase(at);
  }
  if (late.empty()) nic.late.erase(queue);
  return count;
}

int VerbsInterposer::get_async_event(ibv_context* context, ibv_async_event* event) {
  VerbsInterposer& all = get();
  std::unique_lock lock(all.mutex_);
  std::deque<ibv_async_event>& raised = all.nics_.at(context).raised;
  if (raised.empty()) {
    lock.unlock();
    return all.real_.get_async_event(context, event);
  }
  *event = raised.front();
  raised.pop_front();
  all.delivered_.push_back(*event);
  return 0;
}

/// libibverbs counts the acknowledged events of a queue pair and waits for them when it is
/// destroyed, so events that the kernel never raised must not be acknowledged there.
void VerbsInterposer::ack_async_event(ibv_async_event* event) {
  VerbsInterposer& all = get();
  const std::lock_guard lock(all.mutex_);
  const auto raised = std::ranges::find_if(all.delivered_, [&](const ibv_async_event& one) {
    return one.event_type == event->event_type && one.element.qp == event->element.qp;
  });
  if (raised == all.delivered_.end()) return all.real_.ack_async_event(event);
  all.delivered_.erase(raised);
}

// ---- What a test does ---------------------------------------------------------------------------

void VerbsInterposer::post_withheld(ibv_qp* qp, QpState& state) {
  for (const uint64_t id : state.withheld) {
    ibv_recv_wr one{};
    ibv_recv_wr* bad = nullptr;
    one.wr_id = id;
    EXPECT_EQ(nics_.at(qp->context).post_recv(qp, &one, &bad), 0);
  }
  state.withheld.clear();
}

/// In the error state a NIC flushes all receives. Withheld ones are posted after it, so that
/// nothing lands in them, and the state is requested again, which flushes those too.
int VerbsInterposer::to_error(ibv_qp* qp, QpState& state) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const int code = real_.modify_qp(qp, &attributes, IBV_QP_STATE);
  if (code != 0 || state.withheld.empty()) return code;
  post_withheld(qp, state);
  return real_.modify_qp(qp, &attributes, IBV_QP_STATE);
}

std::vector<ibv_qp*> VerbsInterposer::find(uint32_t from, uint32_t to, uint32_t rail, End end) {
  std::vector<ibv_qp*> found;
  for (const auto& [qp, state] : qp_states_) {
    const uint32_t host = nics_.at(qp->context).host;
    const bool hit =
        end == End::kSender
            ? state.sends && host == from && state.far_host == to && state.rail == rail
            : !state.sends && host == to && state.far_host == from && state.far_rail == rail;
    if (hit) found.push_back(qp);
  }
  return found;
}

/// How long a queue pair that is about to stop goes on receiving.
std::chrono::nanoseconds VerbsInterposer::error_state_delay(const ibv_qp* qp,
                                                            const QpState& state) const {
  const auto slow = slow_.find(nics_.at(qp->context).host);
  if (slow == slow_.end() || state.sends || !is_open(qp)) return {};
  return slow->second;
}

uint32_t VerbsInterposer::break_path(uint32_t from, uint32_t to, uint32_t rail, End end) {
  const std::lock_guard lock(mutex_);
  uint32_t broken = 0;
  for (ibv_qp* const qp : find(from, to, rail, end)) {
    if (!is_open(qp)) continue;
    QpState& state = qp_states_.at(qp);
    state.silent_until = Clock::now() + error_state_delay(qp, state);
    broken += to_error(qp, state) == 0;
  }
  return broken;
}

void VerbsInterposer::raise_qp_fatal(uint32_t from, uint32_t to, uint32_t rail, End end) {
  const std::lock_guard lock(mutex_);
  for (ibv_qp* const qp : find(from, to, rail, end)) {
    ibv_async_event event{};
    event.event_type = IBV_EVENT_QP_FATAL;
    event.element.qp = qp;
    nics_.at(qp->context).raised.push_back(event);
  }
}

void VerbsInterposer::raise_port_event(uint32_t host, uint32_t rail, bool up) {
  const std::lock_guard lock(mutex_);
  ibv_async_event event{};
  event.event_type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
  event.element.port_num = 1;
  for (auto& [context, nic] : nics_) {
    if (nic.host == host && nic.rail == rail) nic.raised.push_back(event);
  }
}

void VerbsInterposer::delay_error_state(uint32_t host, std::chrono::nanoseconds time) {
  const std::lock_guard lock(mutex_);
  slow_.erase(host);
  if (time > time.zero()) slow_[host] = time;
}

void VerbsInterposer::corrupt_rkey(uint32_t from, uint32_t to) {
  const std::lock_guard lock(mutex_);
  corrupt_from_ = from;
  corrupt_to_ = to;
}

void VerbsInterposer::withhold_receives(uint32_t host, bool on) {
  const std::lock_guard lock(mutex_);
  not_ready_ = on ? host : UINT32_MAX;
  if (on) return;
  for (auto& [qp, state] : qp_states_) post_withheld(qp, state);
}

}  // namespace fabric::test
