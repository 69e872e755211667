#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "fake_verbs/fake_nics.h"

// Packets, acknowledgements and completions: a reliable connection as in the InfiniBand standard,
// with packets in order, cumulative acknowledgements and go-back-N retransmission.

namespace fabric::test {

using namespace fake;

namespace {

constexpr uint32_t kNumbers = 1u << 24;  // PSNs wrap here
constexpr uint32_t kWindow = 64;         // unacknowledged packets
constexpr uint32_t kAckEvery = 16;       // packets of a long message
constexpr int64_t kPauseNs = 640'000;    // RNR pause

int64_t timeout_ns(const Qp& qp) { return int64_t{4096} << qp.settings.timeout; }

uint32_t ahead(uint32_t number, uint32_t of) { return (number - of) & (kNumbers - 1); }

}  // namespace

int64_t FakeNics::now_ns() const { return threaded_ ? monotonic_ns() : virtual_ns_; }

int64_t FakeNics::next_ns(int64_t after_ns) const {
  int64_t next = INT64_MAX;
  const auto take = [&](int64_t ns) {
    if (ns > after_ns) next = std::min(next, ns);
  };
  for (const auto& [serial, flight] : flights_) {
    if (!flight.packets.empty()) take(flight.packets.front().due_ns);
  }
  for (const auto& [serial, qp] : qps_) {
    if (qp->state != IBV_QPS_RTS) continue;
    take(qp->retry_ns);
    if (qp->packets_sent != qp->packets_made && qp->pause_ns != 0) take(qp->pause_ns);
  }
  for (const auto& [socket, queue] : datagrams_) {
    for (const Datagram& datagram : queue) take(datagram.due_ns);
  }
  for (const auto& [fd, ns] : timers_) take(ns);
  return next;
}

int64_t FakeNics::next_event_ns() {
  const std::lock_guard lock(mutex_);
  return next_ns(now_ns());
}

void FakeNics::run_wire() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (step()) {
      lock.unlock();
      ::sched_yield();  // to a thread that waits for the mutex
      lock.lock();
      continue;
    }
    // Held packets are due and do not move: checking every millisecond is enough for them.
    const int64_t next = next_ns(INT64_MIN);
    const int64_t most = next == INT64_MAX ? 50'000'000 : 1'000'000;
    const int64_t pause = std::clamp<int64_t>(next - now_ns(), 20'000, most);
    moved_.wait_for(lock, std::chrono::nanoseconds(pause));
  }
}

bool FakeNics::run() {
  const std::lock_guard lock(mutex_);
  bool any = false;
  while (step()) any = true;
  return any;
}

bool FakeNics::run_to(int64_t now_ns) {
  change([&] { virtual_ns_ = now_ns; });
  return run();
}

void FakeNics::pass(Nanos time) {
  change([&] { virtual_ns_ += time.count(); });
  run();
}

uint32_t FakeNics::deliver(uint32_t host, uint32_t rail, uint32_t packets) {
  const std::lock_guard lock(mutex_);
  uint32_t done = 0;
  for (auto& [serial, flight] : flights_) {
    if (flight.source->host != host || flight.source->rail != rail) continue;
    while (done < packets && !flight.packets.empty()) {
      Packet packet = std::move(flight.packets.front());
      flight.packets.pop_front();
      if (packet.kind == Packet::Kind::kData) ++done;
      if (passes(packet)) arrive(std::move(packet));
    }
  }
  return done;
}

/// All packets in flight to the device land now.
void FakeNics::land_all(Device& device) {
  for (auto& [serial, flight] : flights_) {
    while (!flight.packets.empty() && find(flight.packets.front().target) == &device) {
      Packet packet = std::move(flight.packets.front());
      flight.packets.pop_front();
      if (passes(packet)) arrive(std::move(packet));
    }
  }
}

/// One pass over everything. Packets are delivered before receives are flushed, as by real NICs.
bool FakeNics::step() {
  bool any = false;
  for (auto it = flights_.begin(); it != flights_.end();) {
    any = deliver_due(it->second) || any;
    it = it->second.packets.empty() ? flights_.erase(it) : std::next(it);
  }
  for (auto& [serial, qp] : qps_) {
    if (qp->owner->device->fatal) continue;
    any = flush(*qp) || any;
    any = watch(*qp) || any;
    any = transmit(*qp) || any;
  }
  return any;
}

// ---- Completions --------------------------------------------------------------------------------

void FakeNics::complete(Cq& cq, const Completion& completion) {
  if (cq.overrun) return;
  if (cq.entries.size() >= static_cast<size_t>(cq.cqe)) {
    violate("a completion queue overruns");
    overrun(cq);
    return;
  }
  cq.entries.push_back(completion);
  auto* const channel = static_cast<Channel*>(cq.channel);
  if (channel == nullptr || !std::exchange(cq.armed, false)) return;
  channel->events.push_back(&cq);
  ++cq.cq_events_raised;
  ::eventfd_write(channel->fd, 1);
}

void FakeNics::complete_send(Qp& qp, const Request& request, ibv_wc_status status) {
  if (request.mr != nullptr) --request.mr->users;
  const bool signalled = (request.wr.send_flags & IBV_SEND_SIGNALED) != 0;
  if (!signalled && (status == IBV_WC_SUCCESS || silent_when_unsignalled_)) return;
  Completion made{.qp = &qp, .index = request.index};
  made.wc.wr_id = request.wr.wr_id;
  made.wc.status = status;
  made.wc.opcode = IBV_WC_RDMA_WRITE;
  made.wc.qp_num = qp.qp_num;
  complete(*of(qp.send_cq), made);
}

bool FakeNics::flush(Qp& qp) {
  if (qp.state != IBV_QPS_ERR || qp.owner->device->hold_flushes) return false;
  const bool any = !qp.requests.empty() || !qp.receives.empty();
  for (; !qp.requests.empty(); qp.requests.pop_front(), ++flushed_) {
    complete_send(qp, qp.requests.front(), IBV_WC_WR_FLUSH_ERR);
  }
  for (; !qp.receives.empty(); qp.receives.pop_front(), ++flushed_) {
    Completion made{.qp = &qp, .receive = true};
    made.wc.wr_id = qp.receives.front();
    made.wc.status = IBV_WC_WR_FLUSH_ERR;
    made.wc.qp_num = qp.qp_num;
    complete(*of(qp.recv_cq), made);
    qp.flushed = true;
  }
  return any;
}

/// The oldest request completes with `status`; the error state then flushes the others.
void FakeNics::break_send(Qp& qp, ibv_wc_status status) {
  const Request oldest = std::move(qp.requests.front());
  qp.requests.pop_front();
  complete_send(qp, oldest, status);
  to_error(qp);
}

// ---- The requester ------------------------------------------------------------------------------

bool FakeNics::transmit(Qp& qp) {
  bool any = false;
  while (qp.state == IBV_QPS_RTS && qp.packets_sent != qp.packets_made &&
         qp.packets_sent - qp.packets_acked < kWindow && qp.pause_ns <= now_ns()) {
    any = true;
    const uint32_t at = qp.packets_sent;
    const auto request = std::ranges::partition_point(
        qp.requests, [&](const Request& one) { return one.first_packet + one.packets <= at; });
    const bool readable =
        request->length == 0 || request->mr != nullptr || !request->carried.empty();
    if (!readable && request == qp.requests.begin()) {
      break_send(qp, IBV_WC_LOC_PROT_ERR);
      return true;
    }
    if (!readable) return any;  // requests before it complete first
    const uint32_t offset = (at - request->first_packet) * qp.packet_bytes;
    const uint32_t size = std::min(qp.packet_bytes, request->length - offset);
    const ibv_send_wr& wr = request->wr;
    Packet packet{.source = qp.owner->device,
                  .target = qp.far_gid,
                  .queue_pair = qp.far_number,
                  .number = (qp.first_number + at) & (kNumbers - 1),
                  .due_ns = now_ns() + options_.cable.count(),
                  .first = offset == 0,
                  .last = offset + size == request->length,
                  .has_imm = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM,
                  .address = wr.wr.rdma.remote_addr,
                  .key = wr.wr.rdma.rkey,
                  .imm = wr.imm_data,
                  .length = request->length};
    const std::byte* const from =
        request->mr == nullptr ? request->carried.data()
                               : request->mr->bytes + (request->source.addr - request->mr->iova);
    if (size != 0) packet.bytes.assign(from + offset, from + offset + size);
    if (qp.packets_sent == qp.packets_acked) qp.retry_ns = now_ns() + timeout_ns(qp);
    ++qp.packets_sent;
    qp.packets_high = std::max(qp.packets_high, qp.packets_sent);
    if (!qp.owner->device->up) continue;  // lost
    Flight& flight = flights_[qp.serial];
    flight.source = qp.owner->device;
    flight.packets.push_back(std::move(packet));
  }
  return any;
}

/// Retransmits after a timeout.
bool FakeNics::watch(Qp& qp) {
  if (qp.state != IBV_QPS_RTS || qp.retry_ns > now_ns()) return false;
  if (qp.requests.empty()) {
    qp.retry_ns = INT64_MAX;
    return false;
  }
  if (qp.retries_left == 0) {
    break_send(qp, IBV_WC_RETRY_EXC_ERR);
    return true;
  }
  --qp.retries_left;
  qp.packets_sent = qp.packets_acked;
  qp.retry_ns = now_ns() + timeout_ns(qp);
  return true;
}

void FakeNics::acknowledge(Qp& qp, uint32_t packets) {
  if (packets == qp.packets_acked) return;
  qp.packets_acked = packets;
  qp.packets_sent = std::max(qp.packets_sent, packets);
  qp.retries_left = qp.settings.retries;
  qp.rnr_left = qp.settings.rnr_retries;
  qp.retry_ns = qp.packets_sent == packets ? INT64_MAX : now_ns() + timeout_ns(qp);
  while (!qp.requests.empty() &&
         qp.requests.front().first_packet + qp.requests.front().packets <= packets) {
    const Request done = std::move(qp.requests.front());
    qp.requests.pop_front();
    complete_send(qp, done, IBV_WC_SUCCESS);
  }
}

void FakeNics::take_answer(Qp& qp, const Packet& packet) {
  const bool late = qp.state == IBV_QPS_ERR && qp.owner->device->land_late;
  if (qp.state != IBV_QPS_RTS && !late) return;
  // Ignore one that is older than the last acknowledged packet, or newer than the last sent one.
  const uint32_t distance = ahead(packet.number, qp.first_number + qp.packets_acked);
  const bool all = packet.kind == Packet::Kind::kAck;
  if (distance >= qp.packets_high - qp.packets_acked + (all ? 0 : 1)) return;
  acknowledge(qp, qp.packets_acked + distance + (all ? 1 : 0));
  if (all || late || qp.requests.empty()) return;
  qp.packets_sent = qp.packets_acked;
  if (packet.kind == Packet::Kind::kRefused) break_send(qp, IBV_WC_REM_ACCESS_ERR);
  if (packet.kind == Packet::Kind::kNotReady) {
    if (qp.settings.rnr_retries != 7 && qp.rnr_left-- == 0) {
      break_send(qp, IBV_WC_RNR_RETRY_EXC_ERR);
      return;
    }
    qp.retry_ns = INT64_MAX;
    qp.pause_ns = now_ns() + kPauseNs;
  }
}

// ---- Packets in flight --------------------------------------------------------------------------

bool FakeNics::is_held(const Packet& packet) {
  const Device* target = find(packet.target);
  return target != nullptr && target->hold_packets;
}

bool FakeNics::deliver_due(Flight& flight) {
  bool any = false;
  while (!flight.packets.empty() && flight.packets.front().due_ns <= now_ns() &&
         !is_held(flight.packets.front())) {
    any = true;
    Packet packet = std::move(flight.packets.front());
    flight.packets.pop_front();
    if (passes(packet)) arrive(std::move(packet));
  }
  return any;
}

bool FakeNics::passes(const Packet& packet) {
  const Device* target = find(packet.target);
  if (target == nullptr || !target->up || target->fatal) return false;
  const uint32_t part = packet.kind == Packet::Kind::kData ? kData : kAcks;
  return std::ranges::none_of(losses_, [&](const Loss& loss) {
    return loss.from == packet.source->host && loss.to == target->host &&
           (loss.rail == kAny || loss.rail == packet.source->rail) && (loss.parts & part) != 0;
  });
}

void FakeNics::arrive(Packet&& packet) {
  Qp* qp = find(*find(packet.target), packet.queue_pair);
  if (qp == nullptr || qp->far_gid != packet.source->gid) return;
  if (packet.kind == Packet::Kind::kData) {
    take_data(*qp, packet);
  } else {
    take_answer(*qp, packet);
  }
}

// ---- The responder ------------------------------------------------------------------------------

void FakeNics::answer(Qp& qp, Packet::Kind kind, uint32_t number) {
  if (qp.state == IBV_QPS_ERR || !qp.owner->device->up) return;
  Flight& flight = flights_[qp.serial];
  flight.source = qp.owner->device;
  flight.packets.push_back({.kind = kind,
                            .source = qp.owner->device,
                            .target = qp.far_gid,
                            .queue_pair = qp.far_number,
                            .number = number & (kNumbers - 1),
                            .due_ns = now_ns() + options_.cable.count()});
  if (kind != Packet::Kind::kRefused) return;
  // Control datagrams have no delay here, so the NAK must not have one either: it comes first.
  for (Packet& packet : flight.packets) packet.due_ns = now_ns();
}

void FakeNics::take_data(Qp& qp, const Packet& packet) {
  const Device& own = *qp.owner->device;
  const bool late = qp.state == IBV_QPS_ERR && own.land_late && !qp.flushed;
  if (qp.state != IBV_QPS_RTR && qp.state != IBV_QPS_RTS && !late) return;
  const uint32_t distance = ahead(packet.number, qp.expected);
  if (distance >= kNumbers / 2) return answer(qp, Packet::Kind::kAck, qp.expected - 1);
  if (distance != 0) {
    if (!std::exchange(qp.nak_sent, true)) answer(qp, Packet::Kind::kOutOfOrder, qp.expected);
    return;
  }
  const bool counts = packet.last && packet.has_imm;
  std::deque<uint64_t>& receives =
      qp.receives.empty() && late ? qp.receives_after_error : qp.receives;
  if (counts && (receives.empty() || own.not_ready)) {
    return answer(qp, Packet::Kind::kNotReady, packet.number);
  }
  if (!land(qp, packet)) {
    answer(qp, Packet::Kind::kRefused, packet.number);
    if (!late) raise_event(*qp.owner, {IBV_EVENT_QP_ACCESS_ERR, static_cast<ibv_qp*>(&qp)});
    to_error(qp);
    return;
  }
  qp.nak_sent = false;
  qp.expected = (qp.expected + 1) & (kNumbers - 1);
  ++landed_[own.host];
  late_ += late;
  if (counts) {
    Completion made{.qp = &qp, .receive = true};
    made.wc.wr_id = receives.front();
    receives.pop_front();
    made.wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    made.wc.wc_flags = IBV_WC_WITH_IMM;
    made.wc.imm_data = packet.imm;
    made.wc.byte_len = packet.length;
    made.wc.qp_num = qp.qp_num;
    complete(*of(qp.recv_cq), made);
  }
  if (packet.last || packet.number % kAckEvery == 0) {
    answer(qp, Packet::Kind::kAck, packet.number);
  }
}

/// False: the rkey does not allow it. Messages without bytes are not checked, as by real NICs.
bool FakeNics::land(Qp& qp, const Packet& packet) {
  if (packet.first) {
    qp.address = packet.address;
    qp.key = packet.key;
  }
  if (packet.length == 0) return true;
  const Mr* mr = find_key(*of(qp.pd), qp.key);
  const uint64_t needed = packet.first ? packet.length : packet.bytes.size();
  if (mr == nullptr || (mr->access & IBV_ACCESS_REMOTE_WRITE) == 0 ||
      (qp.access & IBV_ACCESS_REMOTE_WRITE) == 0 || qp.address < mr->iova || needed > mr->length ||
      qp.address - mr->iova > mr->length - needed) {
    return false;
  }
  std::memcpy(mr->bytes + (qp.address - mr->iova), packet.bytes.data(), packet.bytes.size());
  qp.address += packet.bytes.size();
  return true;
}

}  // namespace fabric::test
