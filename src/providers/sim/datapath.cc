#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "providers/sim/world.h"

// A write goes through post -> (the NIC is free) send_packet -> launch -> arrive -> land ->
// acknowledge -> acknowledged -> complete -> poll. Bytes are read when a packet is sent and stored
// when it lands, and at no other time.

namespace fabric::sim {

uint32_t Wire::post(RailState& rail, const PathRef& at, std::span<const WriteOp> ops) {
  if (rail.nic->faults.refuses_posts || rail.overran) return 0;
  uint32_t taken = 0;
  for (const WriteOp& op : ops) {
    OutPath* path = find_out({at.attachment, at.rail, op.path});
    const PathRef from{at.attachment, at.rail, path == nullptr ? 0 : op.path};
    if (rail.posted >= rail.caps.queue_depth) break;
    if (path != nullptr && path->posted >= rail.caps.path_depth) break;
    ++rail.posted;
    if (path != nullptr) ++path->posted;
    ++taken;

    const uint32_t index = flights_.take();
    Flight& flight = flights_[index];
    flight = Flight{};
    flight.op = op;
    flight.nic = rail.nic;
    flight.from = from;
    flight.refs = 1;
    flight.posted_ns = post_time_ns(rail, at);
    const bool up = path != nullptr && path->up();
    if (up && op.size_bytes <= rail.caps.write_bytes_max) {
      link(*path, index);
      make_ready(*path, from, *rail.nic);
      if (flight.posted_ns > now_ns_) schedule(flight.posted_ns, SimEventKind::kPosted, 0, from);
      continue;
    }
    // Accepted, so it completes through poll() like any other.
    fail_locally(index, up ? Errc::kTooLarge : Errc::kRailLost, Remote::kNotDelivered);
  }
  kick(*rail.nic);
  return taken;
}

/// When the engine's CPU is through with one more post. A turn itself takes no time, so all posts
/// of a turn are accepted at once and reach their NICs one after another.
int64_t Wire::post_time_ns(const RailState& rail, const PathRef& at) noexcept {
  const int64_t cost = rail.nic->timing.per_post_ns;
  if (cost == 0) return now_ns_;
  int64_t& until_ns = *find_attachment(at.attachment)->posts_until_ns;
  until_ns = std::max(until_ns, now_ns_) + cost;
  return until_ns;
}

void Wire::posted(const PathRef& at) {
  OutPath* path = find_out(at);
  if (path == nullptr) return;  // the engine has closed, or the path is down
  Nic& nic = *find_rail(at)->nic;
  make_ready(*path, at, nic);
  kick(nic);
}

uint32_t Wire::poll(NetworkAttachment& attachment, RailState& rail, std::span<RailEvent> out) {
  attachment.asleep = false;
  attachment.polled_ns = now_ns_;
  uint32_t count = 0;
  while (count < out.size() && !rail.events.empty()) {
    RailEvent event = rail.events.pop();
    if (event.kind == RailEvent::Kind::kImm) {
      --rail.immediates;
      // The address of its bytes is for the observer only: for the engine `value` is a repeat
      // count.
      const uint64_t address = std::exchange(event.value, 0);
      if (const uint32_t late = std::exchange(event.cookie, 0); late != 0) store_late(rail, late);
      if (!arrival_hooks.empty()) {
        arrival_hooks.call(
            {attachment.node, event.imm, reinterpret_cast<const std::byte*>(address)});
      }
    }
    if (event.kind == RailEvent::Kind::kCompletion) {
      // The queue slots are freed only now, so that completions never exceed the queue depth.
      --rail.posted;
      OutPath* path = rail.out.find(event.path);
      if (path != nullptr && --path->posted == 0 && path->down_held) rail.events.push(path->down);
    }
    if (event.kind == RailEvent::Kind::kPathDown) {
      // The engine may have posted on the path before it polled this; those writes complete first.
      OutPath* path = event.inbound != 0 ? nullptr : rail.out.find(event.path);
      if (path != nullptr && path->posted > 0) {
        path->down_held = true;
        path->down = event;
        continue;
      }
      forget_end(rail, event.path, event.inbound != 0);
    }
    out[count++] = event;
  }
  return count;
}

void Wire::link(OutPath& path, uint32_t index) {
  Flight& flight = flights_[index];
  flight.linked = true;
  flight.prev = path.last;
  (path.last == kNone ? path.first : flights_[path.last].next) = index;
  path.last = index;
  if (path.unsent == kNone) path.unsent = index;
}

void Wire::unlink(OutPath& path, uint32_t index) {
  Flight& flight = flights_[index];
  if (!flight.linked) return;
  flight.linked = false;
  if (path.unsent == index) path.unsent = flight.next;
  (flight.prev == kNone ? path.first : flights_[flight.prev].next) = flight.next;
  (flight.next == kNone ? path.last : flights_[flight.next].prev) = flight.prev;
}

void Wire::release(uint32_t index) {
  FABRIC_CHECK(flights_[index].refs > 0);
  if (--flights_[index].refs != 0) return;
  if (flights_[index].late != 0 && !flights_[index].landed) forget_late(flights_[index]);
  flights_.give(index);
}

// ---- Sending ------------------------------------------------------------------------------------

/// Work requests of a path are posted in order, so the first one decides.
bool Wire::has_to_send(const OutPath& path) noexcept {
  return path.up() && path.unsent != kNone && flights_[path.unsent].posted_ns <= now_ns_;
}

/// Adds a path to the NIC's round robin if it has something to send and room in its window.
void Wire::make_ready(OutPath& path, const PathRef& at, Nic& nic) {
  if (path.ready || !has_to_send(path)) return;
  if (path.window_used >= nic.timing.window_bytes) return;
  path.ready = true;
  nic.ready.push(at);
}

/// Sends until the NIC is busy; a kTransmit event continues when it is free.
void Wire::kick(Nic& nic) {
  if (nic.transmit_due || nic.faults.down) return;
  while (!nic.ready.empty() && nic.egress_free_ns <= now_ns_) {
    const PathRef at = nic.ready.pop();
    OutPath* path = find_out(at);
    if (path == nullptr) continue;  // its engine has closed
    path->ready = false;
    if (!has_to_send(*path)) continue;
    send_packet(nic, *path);
    make_ready(*path, at, nic);
  }
  if (nic.ready.empty()) return;
  nic.transmit_due = true;
  schedule(nic.egress_free_ns, SimEventKind::kTransmit, nic.index);
}

void Wire::send_packet(Nic& nic, OutPath& path) {
  const uint32_t index = path.unsent;
  Flight& flight = flights_[index];
  if (!source_allowed(flight)) {
    // A local protection error. Packets that were sent may still land; the rest is never read.
    path.unsent = flight.next;
    return fail_locally(index, Errc::kNotFound,
                        flight.started ? Remote::kUnknown : Remote::kNotDelivered);
  }
  if (!flight.started && flight.op.size_bytes > 0) corrupt_key(flight, path);
  const uint64_t size = std::min(packet_bytes(flight.op.size_bytes, packet_bytes_max_),
                                 flight.op.size_bytes - flight.sent_bytes);
  const int64_t stall = flight.started ? 0 : nic.timing.stall_ns(flight.op.size_bytes);

  const uint32_t number = packets_.take();
  Packet& packet = packets_[number];
  packet.flight = index;
  packet.offset = flight.sent_bytes;
  packet.sequence = path.next_sequence++;
  packet.on_wire_ns = nic.timing.wire_ns(size);
  packet.size_bytes = size;
  if (options_.carry_bytes) {
    const auto* source = reinterpret_cast<const std::byte*>(flight.op.source) + flight.sent_bytes;
    packet.bytes.assign(source, source + size);
  } else {
    packet.bytes.clear();  // it may have been a datagram
  }

  flight.to = path.to;
  flight.to_nonce = path.to_nonce;
  flight.started = true;
  flight.sent_bytes += size;
  ++flight.refs;
  path.window_used += size;
  if (flight.sent_bytes == flight.op.size_bytes) path.unsent = flight.next;
  nic.egress_free_ns = now_ns_ + stall + packet.on_wire_ns;
  trace(SimEventKind::kTransmit, nic, size, flight.op.imm);
  launch(number, path, now_ns_ + stall);
}

/// All packets of writes enter the network here.
void Wire::launch(uint32_t number, OutPath& path, int64_t start_ns) {
  const Nic& nic = *flights_[packets_[number].flight].nic;
  int64_t arrival = start_ns + delay_ns(nic, nic.node);
  if (nic.model.ordered) {
    arrival = std::max(arrival, path.last_arrival_ns);
    path.last_arrival_ns = arrival;
  }
  schedule(arrival, SimEventKind::kArrive, number);
}

// ---- Landing ------------------------------------------------------------------------------------

/// The first bit arrives. The receiver's NIC receives one packet at a time, from all senders.
void Wire::arrive(uint32_t number) {
  const Packet& packet = packets_[number];
  const Flight& flight = flights_[packet.flight];
  RailState* rail = find_rail(flight.to);
  if (rail == nullptr) return lose(number, Admission::kLost);
  Nic& nic = *rail->nic;
  const int64_t begin = std::max(now_ns_, nic.ingress_free_ns);
  nic.ingress_free_ns = begin + nic.timing.wire_ns(packet.size_bytes);
  // It lands no earlier than its last bit arrives.
  int64_t landing = std::max(nic.ingress_free_ns, now_ns_ + packet.on_wire_ns);
  if (InPath* in = find_in(flight.to); in != nullptr && flight.nic->model.ordered) {
    landing = std::max(landing, in->last_landing_ns);
    in->last_landing_ns = landing;
  }
  schedule(landing, SimEventKind::kLand, number);
}

void Wire::land(uint32_t number) {
  const Packet& packet = packets_[number];
  const Flight& flight = flights_[packet.flight];
  if (const Admission admission = admission_of(packet); admission != Admission::kAccept)
    return lose(number, admission);
  InPath* in = find_in(flight.to);
  if (in != nullptr && in->nonce != flight.to_nonce) in = nullptr;
  if (in != nullptr) ++in->expected;
  take(number, *find_rail(flight.to), in);
}

/// Stores a packet, or refuses it.
void Wire::take(uint32_t number, RailState& rail, InPath* in) {
  const Packet& packet = packets_[number];
  Flight& flight = flights_[packet.flight];
  if (flight.refused || !target_allowed(rail, flight)) {
    if (!flight.refused) refuse(packet.flight, in);
    return drop(number);
  }
  if (!store_later(packet, flight, rail)) store(packet, flight, rail);
  flight.landed_bytes += packet.size_bytes;
  flight.landed = flight.landed_bytes == flight.op.size_bytes;
  trace(SimEventKind::kLand, *rail.nic, packet.size_bytes, flight.op.imm);
  if (flight.landed && flight.op.has_imm != 0) count(flight, rail, in);

  const AttachmentLocation from{flight.nic->node, flight.nic->fabric};
  if (!flight.nic->model.ordered && packet.size_bytes > 0 &&
      pair_faults(from, flight.to.attachment).twice) {
    // The acknowledgement waits for the duplicate: no byte lands after the completion.
    ++flight.duplicates;
    return schedule(now_ns_ + delay_ns(*flight.nic, from.node) / 2, SimEventKind::kDuplicate,
                    number);
  }
  if (flight.landed && flight.duplicates == 0) acknowledge(packet.flight, in);
  drop(number);
}

void Wire::store(const Packet& packet, const Flight& flight, const RailState& rail) {
  if (packet.bytes.empty()) return;
  std::byte* target = find_region(rail, flight.op.rkey)->address + flight.op.target;
  std::memcpy(target + packet.offset, packet.bytes.data(), packet.bytes.size());
}

/// kLateBytes: keeps the packet of a counted write until poll() returns its immediate. Other writes
/// have nothing that could make them visible later.
bool Wire::store_later(const Packet& packet, Flight& flight, RailState& rail) {
  if (nodes_[rail.nic->node].faults.late_bytes_ns == 0 || flight.op.has_imm == 0) return false;
  if (packet.bytes.empty()) return false;
  if (flight.late == 0) flight.late = ++last_late_;
  LateWrite& late = rail.late_writes[flight.late];
  late.key = flight.op.rkey;
  late.packets.push_back({.target = flight.op.target + packet.offset, .bytes = packet.bytes});
  return true;
}

void Wire::store_late(RailState& rail, uint32_t write) {
  const auto found = rail.late_writes.find(write);
  if (found == rail.late_writes.end()) return;  // its region was deregistered
  store_late(*find_region(rail, found->second.key), found->second);
  rail.late_writes.erase(found);
}

void Wire::store_late(const Region& region, const LateWrite& late) {
  for (const LateWrite::Packet& packet : late.packets) {
    std::memcpy(region.address + packet.target, packet.bytes.data(), packet.bytes.size());
  }
}

/// The region is deregistered, which flushes: what is counted becomes visible now. A write that has
/// not landed completely never will, and may have been reported so to its sender: its bytes are
/// dropped.
void Wire::store_late(RailState& rail, const Region& region) {
  std::erase_if(rail.late_writes, [&](const auto& one) {
    const LateWrite& late = one.second;
    if (late.key != region.key) return false;
    if (late.counted) store_late(region, late);
    return true;
  });
}

/// The flight is over without its count: nothing makes its bytes visible any more.
void Wire::forget_late(const Flight& flight) {
  RailState* rail = find_rail(flight.to);
  if (rail == nullptr) return;
  rail->late_writes.erase(flight.late);
}

void Wire::count(const Flight& flight, RailState& rail, InPath* in) {
  if (rail.nic->faults.swallows_counts) {
    if (flight.late != 0) store_late(rail, flight.late);
    return;
  }
  ++rail.immediates;
  RailEvent arrived;
  arrived.kind = RailEvent::Kind::kImm;
  arrived.imm = flight.op.imm;
  // Not for the engine either: the bytes to store when it polls this.
  arrived.cookie = flight.late;
  if (flight.late != 0) {
    const auto late = rail.late_writes.find(flight.late);
    if (late != rail.late_writes.end()) late->second.counted = true;
  }
  // Not for the engine: the world's observer identifies the write by its target address.
  const Region* region = find_region(rail, flight.op.rkey);
  if (region != nullptr) {
    arrived.value = reinterpret_cast<uint64_t>(region->address) + flight.op.target;
  }
  if (in != nullptr) {
    ++in->received;
    arrived.path = flight.to.path;
  }
  report(flight.to, arrived);
}

/// A packet lands a second time: its bytes are stored again, but never counted.
void Wire::land_duplicate(uint32_t number) {
  const Packet& packet = packets_[number];
  Flight& flight = flights_[packet.flight];
  const RailState* rail = find_rail(flight.to);
  if (rail != nullptr && !is_cut(flight) && target_allowed(*rail, flight)) {
    store(packet, flight, *rail);
    trace(SimEventKind::kDuplicate, *rail->nic, packet.size_bytes, flight.op.imm);
  }
  --flight.duplicates;
  if (flight.landed && flight.duplicates == 0) acknowledge(packet.flight, nullptr);
  drop(number);
}

/// A wrong rkey, bounds, or a deregistered region. On an ordered path this breaks the connection,
/// as on RC.
void Wire::refuse(uint32_t index, InPath* in) {
  Flight& flight = flights_[index];
  flight.refused = true;
  flight.code = Errc::kRemoteAccess;
  flight.remote = Remote::kNotDelivered;
  acknowledge(index, in);
  if (!flight.nic->model.ordered) return;
  in->down = true;
  in_down(flight.to);
}

/// Removes a packet from the network: frees its share of the window and its buffer.
void Wire::drop(uint32_t number) {
  const Packet& packet = packets_[number];
  const Flight& flight = flights_[packet.flight];
  if (OutPath* path = find_out(flight.from)) {
    path->window_used -= packet.size_bytes;
    make_ready(*path, flight.from, *flight.nic);
    kick(*flight.nic);
  }
  release(packet.flight);
  packets_.give(number);
}

// ---- Completing ---------------------------------------------------------------------------------

/// All acknowledgements, positive and negative, enter the network here.
void Wire::acknowledge(uint32_t index, InPath* in) {
  Flight& flight = flights_[index];
  ++flight.refs;
  int64_t arrival = now_ns_ + delay_ns(*flight.nic, locations_[flight.to.attachment - 1].node);
  if (in != nullptr && flight.nic->model.ordered) {
    arrival = std::max(arrival, in->last_ack_ns);
    in->last_ack_ns = arrival;
  }
  schedule(arrival, SimEventKind::kAck, index);
}

/// An error that the sender's own NIC detects, without the network.
void Wire::fail_locally(uint32_t index, Errc code, Remote remote) {
  Flight& flight = flights_[index];
  flight.code = code;
  flight.remote = remote;
  ++flight.refs;
  schedule(now_ns_ + flight.nic->timing.per_op_ns, SimEventKind::kLocalError, index);
}

void Wire::acknowledged(uint32_t index) {
  const Flight& flight = flights_[index];
  if (flight.completed) return release(index);
  OutPath* path = find_out(flight.from);
  const AttachmentLocation from{flight.nic->node, flight.nic->fabric};
  const bool lost =
      (pair_faults(from, flight.to.attachment).lost_acks & rail_mask(flight.nic->rail)) != 0;
  if (path == nullptr || path->undrained || lost || is_cut(flight)) return lose_ack(index);
  // On an ordered path it is cumulative: it acknowledges all that the target received before.
  while (flight.nic->model.ordered && path->first != index && flights_[path->first].landed) {
    complete(path->first, Errc::kOk, Remote::kDelivered);
  }
  complete_flight(index);
}

/// The result of a flight is known at the sender's NIC. On an ordered path an error breaks the
/// path.
void Wire::complete_flight(uint32_t index) {
  const Flight& flight = flights_[index];
  const PathRef from = flight.from;
  const bool breaks = flight.linked && flight.code != Errc::kOk && flight.nic->model.ordered;
  const bool refused = flight.code == Errc::kRemoteAccess;
  if (!flight.completed) {
    complete(index, flight.code, flight.remote);
    OutPath* path = breaks ? find_out(from) : nullptr;
    if (path != nullptr && path->up()) {
      // After a refusal the target's end accepts nothing more; after a local error it is still up.
      break_path(*path, from, refused ? Remote::kNotDelivered : Remote::kUnknown);
    }
  }
  release(index);
}

/// Reports the completion of a work request: exactly once each.
void Wire::complete(uint32_t index, Errc code, Remote remote) {
  Flight& flight = flights_[index];
  flight.completed = true;
  if (OutPath* path = find_out(flight.from)) unlink(*path, index);
  RailEvent written;
  written.kind = RailEvent::Kind::kCompletion;
  written.code = code;
  written.remote = remote;
  written.cookie = flight.op.cookie;
  written.path = flight.from.path;
  report(flight.from, written);
  release(index);
}

// ---- Reporting to the engine --------------------------------------------------------------------

/// All events for engines go through here. A fault may delay some kinds; events that must not
/// overtake them are then delayed, too.
void Wire::report(const PathRef& at, const RailEvent& event) {
  RailState* rail = find_rail(at);
  if (rail == nullptr) return;
  const NodeFaults& node = nodes_[rail->nic->node].faults;
  LateReports* queue = nullptr;
  int64_t late_ns = 0;
  if (event.kind == RailEvent::Kind::kImm) {
    queue = &rail->late_counts;
    late_ns = std::max(node.late_counts_ns, node.late_bytes_ns);
  } else if (event.kind == RailEvent::Kind::kCompletion) {
    queue = &rail->late_acks;
    late_ns = node.late_acks_ns;
  } else if (event.kind == RailEvent::Kind::kPathDown) {
    queue = event.inbound != 0 ? &rail->late_counts : &rail->late_acks;
  }
  if (queue == nullptr || (late_ns == 0 && queue->items.empty())) return enqueue(at, *rail, event);
  queue->last_ns = std::max(now_ns_ + late_ns, queue->last_ns);
  queue->items.push({queue->last_ns, event});
  schedule(queue->last_ns, SimEventKind::kLate, queue == &rail->late_acks,
           {at.attachment, at.rail, 0});
}

void Wire::enqueue_late(const PathRef& at, bool acks) {
  RailState* rail = find_rail(at);
  if (rail == nullptr) return;
  LateReports& queue = acks ? rail->late_acks : rail->late_counts;
  while (!queue.items.empty() && queue.items.front().due_ns <= now_ns_) {
    enqueue(at, *rail, queue.items.pop().event);
  }
}

void Wire::enqueue(const PathRef& at, RailState& rail, const RailEvent& event) {
  trace(event, *rail.nic);
  rail.events.push(event);
  wake_later(*find_attachment(at.attachment));
}

}  // namespace fabric::sim
