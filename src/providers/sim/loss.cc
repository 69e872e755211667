#include <algorithm>

#include "providers/sim/world.h"

// Retransmission. A packet or an acknowledgement is lost when a cut is in effect at the moment it
// would arrive. The sender's NIC retransmits the same bytes until they pass or it gives up. On an
// ordered path the receiver accepts packets only in order, so all packets after a lost one are
// retransmitted with it (go-back-N).

namespace fabric::sim {

/// Whether packets between the two NICs of a flight are dropped.
bool Wire::is_cut(const Flight& flight) noexcept {
  if (flight.nic->faults.down) return true;
  const RailState* rail = find_rail(flight.to);
  if (rail != nullptr && rail->nic->faults.down) return true;
  const AttachmentLocation from{flight.nic->node, flight.nic->fabric};
  return (pair_faults(from, flight.to.attachment).cut & rail_mask(flight.nic->rail)) != 0;
}

/// Whether a packet that arrives now would be accepted.
Wire::Admission Wire::admission_of(const Packet& packet) noexcept {
  const Flight& flight = flights_[packet.flight];
  RailState* rail = find_rail(flight.to);
  if (rail == nullptr || is_cut(flight)) return Admission::kLost;
  if (flight.nic->model.ordered) {
    const InPath* in = find_in(flight.to);
    if (in == nullptr || in->nonce != flight.to_nonce || in->down || in->undrained) {
      return Admission::kLost;
    }
    if (packet.sequence != in->expected) return Admission::kOutOfOrder;
  }
  const bool whole = flight.landed_bytes + packet.size_bytes == flight.op.size_bytes;
  const bool room = rail->immediates < kImmediatesMax && !rail->nic->faults.not_ready;
  // Without room for the immediate the whole last packet is rejected, its bytes included.
  return whole && flight.op.has_imm != 0 && !room ? Admission::kNotReady : Admission::kAccept;
}

/// Whether the target would acknowledge a flight again, and the acknowledgement would arrive.
bool Wire::would_ack(const Flight& flight) noexcept {
  if (find_rail(flight.to) == nullptr || is_cut(flight)) return false;
  const AttachmentLocation from{flight.nic->node, flight.nic->fabric};
  const uint32_t lost = pair_faults(from, flight.to.attachment).lost_acks;
  if ((lost & rail_mask(flight.nic->rail)) != 0) return false;
  if (!flight.nic->model.ordered) return true;
  const InPath* in = find_in(flight.to);
  return in != nullptr && in->nonce == flight.to_nonce && !in->down && !in->undrained;
}

void Wire::lose(uint32_t number, Admission admission) {
  Packet& packet = packets_[number];
  Flight& flight = flights_[packet.flight];
  trace(SimEventKind::kRetransmit, *flight.nic, packet.size_bytes, flight.op.imm);
  OutPath* path = find_out(flight.from);
  // The sender no longer retransmits it.
  if (path == nullptr || flight.completed || flight.refused) return drop(number);
  auto position = path->lost.end();
  while (position != path->lost.begin() && packets_[*(position - 1)].sequence > packet.sequence)
    --position;
  path->lost.insert(position, number);
  schedule_retransmit(*path, flight.from, now_ns_ + wait_ns(*path, flight, admission));
}

void Wire::lose_ack(uint32_t index) {
  Flight& flight = flights_[index];
  trace(SimEventKind::kRetransmit, *flight.nic, 0, flight.op.imm);
  OutPath* path = find_out(flight.from);
  if (path == nullptr) return release(index);
  path->unacked.push_back(index);
  schedule_retransmit(*path, flight.from, now_ns_ + wait_ns(*path, flight, Admission::kLost));
}

/// The time until a lost packet is retransmitted. Starts the retry limit, except for a receiver
/// that only has no room: RNR retries are unlimited, as with rnr_retry 7 on RC.
int64_t Wire::wait_ns(OutPath& path, Flight& flight, Admission admission) noexcept {
  if (admission == Admission::kOutOfOrder) {
    return 2 * flight.nic->timing.latency_ns + 1;  // the receiver's NAK makes one round trip
  }
  const RailState* rail = find_rail(flight.to);
  const bool patient = admission == Admission::kNotReady && !rail->nic->faults.not_ready;
  if (patient) flight.retry_since_ns = kNeverNs;
  if (!patient && flight.retry_since_ns == kNeverNs) flight.retry_since_ns = now_ns_;
  int64_t wait = kRetransmitNs;
  if (admission == Admission::kNotReady) {
    wait = std::clamp(2 * path.not_ready_ns, kReceiverNotReadyNs, kReceiverNotReadyMaxNs);
    path.not_ready_ns = wait;
  }
  return patient ? wait : std::min(wait, flight.retry_since_ns + kRetryNs - now_ns_);
}

void Wire::schedule_retransmit(OutPath& path, const PathRef& at, int64_t due_ns) {
  due_ns = std::max(due_ns, now_ns_);
  if (due_ns >= path.retransmit_ns) return;
  path.retransmit_ns = due_ns;
  schedule(due_ns, SimEventKind::kRetransmit, 0, at);
}

void Wire::retransmit(const PathRef& at) {
  OutPath* path = find_out(at);
  if (path == nullptr || path->retransmit_ns != now_ns_) return;
  path->retransmit_ns = kNeverNs;
  if (!path->up()) return;  // closing it completes everything
  if (!retransmit_packets(*path, at) || !request_acks(*path, at)) {
    break_path(*path, at, Remote::kUnknown);
  }
}

/// False when the NIC gives up on the path. On an unordered path it gives up on single flights.
bool Wire::retransmit_packets(OutPath& path, const PathRef& at) {
  std::vector<uint32_t> lost;
  lost.swap(path.lost);
  Admission admission = Admission::kAccept;
  bool gives_up = false;
  for (const uint32_t number : lost) {
    Packet& packet = packets_[number];
    Flight& flight = flights_[packet.flight];
    const bool ordered = flight.nic->model.ordered;
    // On an ordered path the first packet decides for all.
    if (!ordered || number == lost.front()) admission = admission_of(packet);
    const bool open = admission == Admission::kAccept || admission == Admission::kOutOfOrder;
    if (!open && !flight.completed && now_ns_ - kRetryNs >= flight.retry_since_ns) {
      if (ordered) gives_up = true;
      if (!ordered) complete(packet.flight, Errc::kRailLost, Remote::kUnknown);
    }
    if (flight.completed) {
      drop(number);
    } else if (open) {
      resend(number, path);
    } else {
      path.lost.push_back(number);
      const bool first = !ordered || number == lost.front();
      if (first) schedule_retransmit(path, at, now_ns_ + wait_ns(path, flight, admission));
    }
  }
  return !gives_up;
}

void Wire::resend(uint32_t number, OutPath& path) {
  const Packet& packet = packets_[number];
  Flight& flight = flights_[packet.flight];
  Nic& nic = *flight.nic;
  flight.retry_since_ns = kNeverNs;
  path.not_ready_ns = 0;
  const int64_t start = std::max(now_ns_, nic.egress_free_ns);
  nic.egress_free_ns = start + packet.on_wire_ns;
  launch(number, path, start);
}

bool Wire::request_acks(OutPath& path, const PathRef& at) {
  std::vector<uint32_t> unacked;
  unacked.swap(path.unacked);
  bool gives_up = false;
  for (const uint32_t index : unacked) {
    Flight& flight = flights_[index];
    const bool answered = would_ack(flight);
    if (!answered && !flight.completed && now_ns_ - kRetryNs >= flight.retry_since_ns) {
      if (flight.nic->model.ordered) gives_up = true;
      if (!flight.nic->model.ordered) complete(index, Errc::kRailLost, Remote::kUnknown);
    }
    if (flight.completed) {
      release(index);
    } else if (answered) {
      flight.retry_since_ns = kNeverNs;
      InPath* in = find_in(flight.to);
      acknowledge(index, in != nullptr && in->nonce == flight.to_nonce ? in : nullptr);
      release(index);
    } else {
      path.unacked.push_back(index);
      schedule_retransmit(path, at, now_ns_ + wait_ns(path, flight, Admission::kLost));
    }
  }
  return !gives_up;
}

/// The path is down: discards what waits for retransmission.
void Wire::forget_lost(OutPath& path) {
  std::vector<uint32_t> lost, unacked;
  lost.swap(path.lost);
  unacked.swap(path.unacked);
  for (const uint32_t number : lost) drop(number);
  for (const uint32_t index : unacked) release(index);
}

}  // namespace fabric::sim
