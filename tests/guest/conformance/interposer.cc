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

Cards& Cards::get() {
  static Cards cards;
  return cards;
}

Cards::Cards() {
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

ibv_context* Cards::open_device(ibv_device* device) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  ibv_context* const context = all.real_.open_device(device);
  if (context == nullptr) return nullptr;
  all.cards_[context] = {.host = host_of(device),
                         .rail = rail_of(device),
                         .post_send = context->ops.post_send,
                         .post_recv = context->ops.post_recv,
                         .poll_cq = context->ops.poll_cq};
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->ops.poll_cq = poll_cq;
  return context;
}

int Cards::close_device(ibv_context* context) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  all.cards_.erase(context);
  return all.real_.close_device(context);
}

ibv_qp* Cards::create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  Cards& all = get();
  const bool sends = wanted->cap.max_send_wr > 1;  // the others post nothing but receives
  ibv_qp* const qp = all.real_.create_qp(pd, wanted);
  if (qp == nullptr) return nullptr;
  const std::lock_guard lock(all.mutex_);
  all.numbers_[{qp->context, qp->qp_num}] = qp;
  all.pairs_[qp] = {.rail = rail_of(qp->context->device), .sends = sends};
  return qp;
}

int Cards::modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  Cards& all = get();
  std::unique_lock lock(all.mutex_);
  const auto found = all.pairs_.find(qp);
  if ((mask & IBV_QP_STATE) != 0 && attributes->qp_state == IBV_QPS_ERR &&
      found != all.pairs_.end()) {
    Pair& pair = found->second;
    const auto time = all.slowness(qp, pair);
    if (time == time.zero()) return all.to_error(qp, pair);
    pair.silent_until = Clock::time_point::max();
    lock.unlock();
    std::this_thread::sleep_for(time);
    lock.lock();
    const int code = all.to_error(qp, pair);  // whoever asks for it keeps it until then
    pair.silent_until = Clock::now() + time;
    return code;
  }
  if ((mask & IBV_QP_AV) != 0 && found != all.pairs_.end()) {
    // The last bytes of its IPv4 address are rail and host.
    found->second.far_rail = attributes->ah_attr.grh.dgid.raw[14];
    found->second.far_host = attributes->ah_attr.grh.dgid.raw[15] - 1u;
    found->second.far_number = attributes->dest_qp_num;
  }
  lock.unlock();  // connecting may take the kernel a second
  return all.real_.modify_qp(qp, attributes, mask);
}

int Cards::destroy_qp(ibv_qp* qp) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  all.pairs_.erase(qp);
  all.numbers_.erase({qp->context, qp->qp_num});
  std::erase_if(all.cards_.at(qp->context).said, [&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp;
  });
  return all.real_.destroy_qp(qp);
}

int Cards::post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  Cards& all = get();
  std::unique_lock lock(all.mutex_);
  const Card card = all.cards_.at(qp->context);
  const Pair& pair = all.pairs_.at(qp);
  ibv_send_wr* spoiled = nullptr;
  if (card.host == all.spoil_from_ && pair.far_host == all.spoil_to_) {
    spoiled = first;
    while (spoiled != nullptr && spoiled->num_sge == 0) spoiled = spoiled->next;
  }
  if (spoiled != nullptr) {
    all.spoil_from_ = all.spoil_to_ = UINT32_MAX;
    spoiled->wr.rdma.rkey ^= 0x5a00;
  }
  // Before they leave: they may have arrived when the call returns.
  std::deque<uint32_t>& imms = all.imms_[{card.host, pair.rail, qp->qp_num}];
  const auto added = imms_of(first);
  imms.insert(imms.end(), added.begin(), added.end());
  lock.unlock();
  const int code = card.post_send(qp, first, bad);
  if (code == 0) return 0;
  lock.lock();
  imms.resize(imms.size() - imms_of(*bad).size());
  return code;
}

std::vector<uint32_t> Cards::imms_of(const ibv_send_wr* first) {
  std::vector<uint32_t> imms;
  for (; first != nullptr; first = first->next) {
    if (first->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) imms.push_back(first->imm_data);
  }
  return imms;
}

int Cards::post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  const Card& card = all.cards_.at(qp->context);
  if (card.host != all.not_ready_) return card.post_recv(qp, first, bad);
  Pair& pair = all.pairs_.at(qp);
  for (const ibv_recv_wr* one = first; one != nullptr; one = one->next) {
    pair.withheld.push_back(one->wr_id);
  }
  return 0;
}

Cards::Pair* Cards::find(ibv_context* context, uint32_t number) {
  const auto qp = numbers_.find({context, number});
  return qp == numbers_.end() ? nullptr : &pairs_.at(qp->second);
}

void Cards::watch(Pair& pair, const ibv_wc& completion) {
  if (pair.sends) return;
  if (completion.status != IBV_WC_SUCCESS) {
    ++pair.errors;
    return;
  }
  const auto found = imms_.find({pair.far_host, pair.far_rail, pair.far_number});
  if (found == imms_.end()) return;  // of another process
  std::deque<uint32_t>& imms = found->second;
  if (!imms.empty() && imms.front() == completion.imm_data) {
    imms.pop_front();
    ++pair.taken;
    return;
  }
  // One that came before, or one behind others that are missing. Which of the two does not always
  // show: a key that is free again is used again.
  const auto at = std::ranges::find(imms, completion.imm_data);
  ADD_FAILURE() << "the device has brought an immediate that was not next: rail " << pair.rail
                << ", from host " << pair.far_host << ", behind " << pair.taken << " in order and "
                << pair.errors << " errors, number " << at - imms.begin() << " of " << imms.size()
                << " on their way";
  if (at != imms.end()) imms.erase(imms.begin(), at + 1);
  std::ofstream{kDeviceFault} << "an immediate that was not next\n";
}

int Cards::take(Card& card, ibv_cq* queue, std::span<ibv_wc> out) {
  const int got = card.poll_cq(queue, static_cast<int>(out.size()), out.data());
  for (int i = 0; i < got; ++i) {
    const ibv_wc& completion = out[static_cast<size_t>(i)];
    if (Pair* const pair = find(queue->context, completion.qp_num)) watch(*pair, completion);
  }
  return got;
}

/// Everything is taken from the device, and what belongs to a queue pair that is silent stays here.
int Cards::poll_cq(ibv_cq* queue, int room, ibv_wc* out) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  Card& card = all.cards_.at(queue->context);
  if (!all.slow_.contains(card.host) && !card.late.contains(queue)) {
    return all.take(card, queue, {out, static_cast<size_t>(room)});
  }
  std::deque<ibv_wc>& late = card.late[queue];
  std::array<ibv_wc, 32> fresh{};
  for (int got = 0; (got = all.take(card, queue, fresh)) > 0;) {
    late.insert(late.end(), fresh.begin(), fresh.begin() + got);
  }
  const auto now = Clock::now();
  int count = 0;
  for (auto at = late.begin(); at != late.end() && count < room;) {
    const Pair* const pair = all.find(queue->context, at->qp_num);
    if (pair != nullptr && pair->silent_until > now) {
      ++at;
      continue;
    }
    out[count++] = *at;
    at = late.erase(at);
  }
  if (late.empty()) card.late.erase(queue);
  return count;
}

int Cards::get_async_event(ibv_context* context, ibv_async_event* event) {
  Cards& all = get();
  std::unique_lock lock(all.mutex_);
  std::deque<ibv_async_event>& said = all.cards_.at(context).said;
  if (said.empty()) {
    lock.unlock();
    return all.real_.get_async_event(context, event);
  }
  *event = said.front();
  said.pop_front();
  all.heard_.push_back(*event);
  return 0;
}

/// The library counts those of a queue pair, and would wait for what the kernel never said.
void Cards::ack_async_event(ibv_async_event* event) {
  Cards& all = get();
  const std::lock_guard lock(all.mutex_);
  const auto said = std::ranges::find_if(all.heard_, [&](const ibv_async_event& one) {
    return one.event_type == event->event_type && one.element.qp == event->element.qp;
  });
  if (said == all.heard_.end()) return all.real_.ack_async_event(event);
  all.heard_.erase(said);
}

// ---- What a test does ---------------------------------------------------------------------------

void Cards::hand_over(ibv_qp* qp, Pair& pair) {
  for (const uint64_t id : pair.withheld) {
    ibv_recv_wr one{};
    ibv_recv_wr* bad = nullptr;
    one.wr_id = id;
    EXPECT_EQ(cards_.at(qp->context).post_recv(qp, &one, &bad), 0);
  }
  pair.withheld.clear();
}

/// A card that goes into the error state gives back all receives. Those that were withheld are
/// posted behind it, so that nothing lands in them, and the state is asked for again, as for all
/// receives behind it.
int Cards::to_error(ibv_qp* qp, Pair& pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const int code = real_.modify_qp(qp, &attributes, IBV_QP_STATE);
  if (code != 0 || pair.withheld.empty()) return code;
  hand_over(qp, pair);
  return real_.modify_qp(qp, &attributes, IBV_QP_STATE);
}

std::vector<ibv_qp*> Cards::find(uint32_t from, uint32_t to, uint32_t rail, End end) {
  std::vector<ibv_qp*> found;
  for (const auto& [qp, pair] : pairs_) {
    const uint32_t host = cards_.at(qp->context).host;
    const bool hit =
        end == End::kSender
            ? pair.sends && host == from && pair.far_host == to && pair.rail == rail
            : !pair.sends && host == to && pair.far_host == from && pair.far_rail == rail;
    if (hit) found.push_back(qp);
  }
  return found;
}

/// Of a queue pair that is about to stop.
std::chrono::nanoseconds Cards::slowness(const ibv_qp* qp, const Pair& pair) const {
  const auto slow = slow_.find(cards_.at(qp->context).host);
  if (slow == slow_.end() || pair.sends || !is_open(qp)) return {};
  return slow->second;
}

uint32_t Cards::break_path(uint32_t from, uint32_t to, uint32_t rail, End end) {
  const std::lock_guard lock(mutex_);
  uint32_t broken = 0;
  for (ibv_qp* const qp : find(from, to, rail, end)) {
    if (!is_open(qp)) continue;
    Pair& pair = pairs_.at(qp);
    pair.silent_until = Clock::now() + slowness(qp, pair);
    broken += to_error(qp, pair) == 0;
  }
  return broken;
}

void Cards::say_broken(uint32_t from, uint32_t to, uint32_t rail, End end) {
  const std::lock_guard lock(mutex_);
  for (ibv_qp* const qp : find(from, to, rail, end)) {
    ibv_async_event event{};
    event.event_type = IBV_EVENT_QP_FATAL;
    event.element.qp = qp;
    cards_.at(qp->context).said.push_back(event);
  }
}

void Cards::say_port(uint32_t host, uint32_t rail, bool up) {
  const std::lock_guard lock(mutex_);
  ibv_async_event event{};
  event.event_type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
  event.element.port_num = 1;
  for (auto& [context, card] : cards_) {
    if (card.host == host && card.rail == rail) card.said.push_back(event);
  }
}

void Cards::slow_down(uint32_t host, std::chrono::nanoseconds time) {
  const std::lock_guard lock(mutex_);
  slow_.erase(host);
  if (time > time.zero()) slow_[host] = time;
}

void Cards::spoil_key(uint32_t from, uint32_t to) {
  const std::lock_guard lock(mutex_);
  spoil_from_ = from;
  spoil_to_ = to;
}

void Cards::withhold_receives(uint32_t host, bool on) {
  const std::lock_guard lock(mutex_);
  not_ready_ = on ? host : UINT32_MAX;
  if (on) return;
  for (auto& [qp, pair] : pairs_) hand_over(qp, pair);
}

}  // namespace fabric::test
