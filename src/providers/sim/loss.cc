#include <algorithm>

#include "providers/sim/world.h"

// What a NIC does about loss. A packet or an acknowledgement is lost when the way is shut at the
// moment when it would arrive. The sender's NIC repeats it, the same bytes, until the way is open
// or until it gives up. On an ordered path the receiver takes packets only in their order, so all
// that follow a lost one are repeated with it.

namespace fabric::sim {

/// Nothing passes between the two NICs of a flight.
bool Wire::shut(const Flight& flight) noexcept {
  if (flight.nic->faults.down) return true;
  const RailState* rail = find_rail(flight.to);
  if (rail != nullptr && rail->nic->faults.down) return true;
  const Place from{flight.nic->node, flight.nic->fabric};
  return (way_between(from, flight.to.port).cut & rail_mask(flight.nic->rail)) != 0;
}

/// Whether a packet that arrives now would be taken.
Wire::Way Wire::way_of(const Packet& packet) noexcept {
  const Flight& flight = flights_[packet.flight];
  RailState* rail = find_rail(flight.to);
  if (rail == nullptr || shut(flight)) return Way::kShut;
  if (flight.nic->model.ordered) {
    const InPath* in = find_in(flight.to);
    if (in == nullptr || in->nonce != flight.to_nonce || in->down || in->undrained) {
      return Way::kShut;
    }
    if (packet.sequence != in->expected) return Way::kBehind;
  }
  const bool whole = flight.landed_bytes + packet.bytes.size() == flight.op.size_bytes;
  const bool room = rail->immediates < kImmediatesMax && !rail->nic->faults.not_ready;
  // Without room for the immediate not even the bytes of the last packet are taken.
  return whole && flight.op.has_imm != 0 && !room ? Way::kNotReady : Way::kOpen;
}

/// Whether the target would say once more what became of a flight.
bool Wire::answers(const Flight& flight) noexcept {
  if (find_rail(flight.to) == nullptr || shut(flight)) return false;
  const Place from{flight.nic->node, flight.nic->fabric};
  const uint32_t lost = way_between(from, flight.to.port).lost_acks;
  if ((lost & rail_mask(flight.nic->rail)) != 0) return false;
  if (!flight.nic->model.ordered) return true;
  const InPath* in = find_in(flight.to);
  return in != nullptr && in->nonce == flight.to_nonce && !in->down && !in->undrained;
}

void Wire::lose(uint32_t number, Way way) {
  Packet& packet = packets_[number];
  Flight& flight = flights_[packet.flight];
  trace(EventKind::kRepeat, *flight.nic, packet.bytes.size(), flight.op.imm);
  OutPath* path = find_out(flight.from);
  // Nobody is left who would repeat it.
  if (path == nullptr || flight.ended || flight.refused) return drop(number);
  auto place = path->lost.end();
  while (place != path->lost.begin() && packets_[*(place - 1)].sequence > packet.sequence) --place;
  path->lost.insert(place, number);
  repeat_at(*path, flight.from, now_ns_ + wait_ns(*path, flight, way));
}

void Wire::lose_ack(uint32_t index) {
  Flight& flight = flights_[index];
  trace(EventKind::kRepeat, *flight.nic, 0, flight.op.imm);
  OutPath* path = find_out(flight.from);
  if (path == nullptr) return release(index);
  path->unheard.push_back(index);
  repeat_at(*path, flight.from, now_ns_ + wait_ns(*path, flight, Way::kShut));
}

/// How long until something that got lost is sent again. Its retries are counted from here on,
/// unless the receiver only has no room: for that a sender waits as long as it takes, as RC does.
int64_t Wire::wait_ns(OutPath& path, Flight& flight, Way way) noexcept {
  if (way == Way::kBehind) return 2 * flight.nic->timing.latency_ns + 1;  // the receiver says so
  const RailState* rail = find_rail(flight.to);
  const bool patient = way == Way::kNotReady && !rail->nic->faults.not_ready;
  if (patient) flight.lost_ns = kNeverNs;
  if (!patient && flight.lost_ns == kNeverNs) flight.lost_ns = now_ns_;
  int64_t wait = kRepeatNs;
  if (way == Way::kNotReady) {
    wait = std::clamp(2 * path.not_ready_ns, kReceiverNotReadyNs, kReceiverNotReadyMaxNs);
    path.not_ready_ns = wait;
  }
  return patient ? wait : std::min(wait, flight.lost_ns + kRetryNs - now_ns_);
}

void Wire::repeat_at(OutPath& path, const PathRef& at, int64_t due_ns) {
  due_ns = std::max(due_ns, now_ns_);
  if (due_ns >= path.repeat_ns) return;
  path.repeat_ns = due_ns;
  schedule(due_ns, EventKind::kRepeat, 0, at);
}

void Wire::repeat(const PathRef& at) {
  OutPath* path = find_out(at);
  if (path == nullptr || path->repeat_ns != now_ns_) return;
  path->repeat_ns = kNeverNs;
  if (!path->up()) return;  // it is about to be closed, and then all of it ends
  if (!repeat_packets(*path, at) || !repeat_acks(*path, at)) {
    break_path(*path, at, Remote::kUnknown);
  }
}

/// False when the NIC gives up on the path. On one without order it gives up on a flight alone.
bool Wire::repeat_packets(OutPath& path, const PathRef& at) {
  std::vector<uint32_t> lost;
  lost.swap(path.lost);
  Way way = Way::kOpen;
  bool gives_up = false;
  for (const uint32_t number : lost) {
    Packet& packet = packets_[number];
    Flight& flight = flights_[packet.flight];
    const bool ordered = flight.nic->model.ordered;
    // The first of them decides for all that follow on an ordered path.
    if (!ordered || number == lost.front()) way = way_of(packet);
    const bool open = way == Way::kOpen || way == Way::kBehind;
    if (!open && !flight.ended && now_ns_ - kRetryNs >= flight.lost_ns) {
      if (ordered) gives_up = true;
      if (!ordered) end(packet.flight, Errc::kRailLost, Remote::kUnknown);
    }
    if (flight.ended) {
      drop(number);
    } else if (open) {
      send_again(number, path);
    } else {
      path.lost.push_back(number);
      const bool first = !ordered || number == lost.front();
      if (first) repeat_at(path, at, now_ns_ + wait_ns(path, flight, way));
    }
  }
  return !gives_up;
}

void Wire::send_again(uint32_t number, OutPath& path) {
  const Packet& packet = packets_[number];
  Flight& flight = flights_[packet.flight];
  Nic& nic = *flight.nic;
  flight.lost_ns = kNeverNs;
  path.not_ready_ns = 0;
  const int64_t start = std::max(now_ns_, nic.egress_free_ns);
  nic.egress_free_ns = start + packet.on_wire_ns;
  launch(number, path, start);
}

bool Wire::repeat_acks(OutPath& path, const PathRef& at) {
  std::vector<uint32_t> unheard;
  unheard.swap(path.unheard);
  bool gives_up = false;
  for (const uint32_t index : unheard) {
    Flight& flight = flights_[index];
    const bool answered = answers(flight);
    if (!answered && !flight.ended && now_ns_ - kRetryNs >= flight.lost_ns) {
      if (flight.nic->model.ordered) gives_up = true;
      if (!flight.nic->model.ordered) end(index, Errc::kRailLost, Remote::kUnknown);
    }
    if (flight.ended) {
      release(index);
    } else if (answered) {
      flight.lost_ns = kNeverNs;
      InPath* in = find_in(flight.to);
      acknowledge(index, in != nullptr && in->nonce == flight.to_nonce ? in : nullptr);
      release(index);
    } else {
      path.unheard.push_back(index);
      repeat_at(path, at, now_ns_ + wait_ns(path, flight, Way::kShut));
    }
  }
  return !gives_up;
}

/// The end is down: nothing of it is sent again.
void Wire::forget_lost(OutPath& path) {
  std::vector<uint32_t> lost, unheard;
  lost.swap(path.lost);
  unheard.swap(path.unheard);
  for (const uint32_t number : lost) drop(number);
  for (const uint32_t index : unheard) release(index);
}

}  // namespace fabric::sim
