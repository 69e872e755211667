#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "providers/sim/world.h"

// The way of a write: post -> (the NIC's turn) send_packet -> launch -> arrive -> land ->
// acknowledge -> acknowledged -> end -> poll. Bytes are read when a packet leaves and stored when
// it lands, and not at any other time.

namespace fabric::sim {

uint32_t Wire::post(RailState& rail, const PathRef& at, std::span<const WriteOp> ops) {
  uint32_t taken = 0;
  for (const WriteOp& op : ops) {
    OutPath* path = find_out({at.port, at.rail, op.path});
    const PathRef from{at.port, at.rail, path == nullptr ? 0 : op.path};
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
    const bool started = path != nullptr && path->state == OutPath::State::kStarted;
    if (started && op.size_bytes <= rail.caps.write_bytes_max) {
      link(*path, index);
      make_ready(*path, from, *rail.nic);
      continue;
    }
    // Taken, so it ends by poll() like any other.
    end_later(index, now_ns_ + rail.nic->timing.per_op_ns,
              started ? Errc::kTooLarge : Errc::kRailLost, Remote::kNotDelivered);
  }
  kick(*rail.nic);
  return taken;
}

uint32_t Wire::poll(Port& port, RailState& rail, std::span<WireEvent> out) {
  port.asleep = false;
  uint32_t count = 0;
  while (count < out.size() && !rail.events.empty()) {
    const WireEvent event = rail.events.pop();
    if (event.kind == WireEvent::Kind::kImm) --rail.immediates;
    if (event.kind == WireEvent::Kind::kWritten) {
      // The place in the queues is free only now: completions can never pile up beyond the depth.
      --rail.posted;
      if (event.path - 1 < rail.out.size()) --rail.out[event.path - 1].posted;
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
  if (--flights_[index].refs == 0) flights_.give(index);
}

// ---- Sending ------------------------------------------------------------------------------------

/// Puts a path in the NIC's round when it has something to send and may.
void Wire::make_ready(OutPath& path, const PathRef& at, Nic& nic) {
  if (path.ready || path.unsent == kNone || path.state != OutPath::State::kStarted) return;
  if (path.window_used >= nic.timing.window_bytes) return;
  path.ready = true;
  nic.ready.push(at);
}

/// Sends until the NIC is busy, then comes back when it is free.
void Wire::kick(Nic& nic) {
  if (nic.transmit_due) return;
  while (!nic.ready.empty() && nic.egress_free_ns <= now_ns_) {
    const PathRef at = nic.ready.pop();
    OutPath* path = find_out(at);
    if (path == nullptr) continue;  // its engine has closed
    path->ready = false;
    if (path->state != OutPath::State::kStarted || path->unsent == kNone) continue;
    send_packet(nic, *path);
    make_ready(*path, at, nic);
  }
  if (nic.ready.empty()) return;
  nic.transmit_due = true;
  schedule(nic.egress_free_ns, EventKind::kTransmit, nic.index);
}

void Wire::send_packet(Nic& nic, OutPath& path) {
  const uint32_t index = path.unsent;
  Flight& flight = flights_[index];
  if (!source_allowed(flight)) {
    // A local protection error. What has left of it may still land; the rest is never read.
    path.unsent = flight.next;
    return end_later(index, now_ns_ + nic.timing.per_op_ns, Errc::kNotFound,
                     flight.left ? Remote::kUnknown : Remote::kNotDelivered);
  }
  const uint64_t size =
      std::min(packet_bytes(flight.op.size_bytes), flight.op.size_bytes - flight.sent_bytes);
  const int64_t stall = flight.left ? 0 : nic.timing.stall_ns(flight.op.size_bytes);

  const uint32_t number = packets_.take();
  Packet& packet = packets_[number];
  packet.flight = index;
  packet.offset = flight.sent_bytes;
  packet.on_wire_ns = nic.timing.wire_ns(size);
  const auto* source = reinterpret_cast<const std::byte*>(flight.op.source) + flight.sent_bytes;
  packet.bytes.assign(source, source + size);

  flight.to = path.to;
  flight.to_nonce = path.to_nonce;
  flight.left = true;
  flight.sent_bytes += size;
  ++flight.refs;
  path.window_used += size;
  if (flight.sent_bytes == flight.op.size_bytes) path.unsent = flight.next;
  nic.egress_free_ns = now_ns_ + stall + packet.on_wire_ns;
  trace(EventKind::kTransmit, nic, size, flight.op.imm);
  launch(number, path, now_ns_ + stall);
}

/// The one place where a packet enters the network.
void Wire::launch(uint32_t number, OutPath& path, int64_t start_ns) {
  const Nic& nic = *flights_[packets_[number].flight].nic;
  int64_t arrival = start_ns + delay_ns(nic);
  if (nic.model.ordered) {
    arrival = std::max(arrival, path.last_arrival_ns);
    path.last_arrival_ns = arrival;
  }
  schedule(arrival, EventKind::kArrive, number);
}

// ---- Landing ------------------------------------------------------------------------------------

/// The first bit is there. The receiver's NIC takes packets one after another, whoever sent them.
void Wire::arrive(uint32_t number) {
  const Packet& packet = packets_[number];
  const Flight& flight = flights_[packet.flight];
  RailState* rail = find_rail(flight.to);
  if (rail == nullptr) return lose(number);
  Nic& nic = *rail->nic;
  const int64_t begin = std::max(now_ns_, nic.ingress_free_ns);
  nic.ingress_free_ns = begin + nic.timing.wire_ns(packet.bytes.size());
  // It cannot be through before its last bit has come.
  int64_t landing = std::max(nic.ingress_free_ns, now_ns_ + packet.on_wire_ns);
  if (InPath* in = find_in(flight.to); in != nullptr && flight.nic->model.ordered) {
    landing = std::max(landing, in->last_landing_ns);
    in->last_landing_ns = landing;
  }
  schedule(landing, EventKind::kLand, number);
}

void Wire::land(uint32_t number) {
  const Flight& flight = flights_[packets_[number].flight];
  RailState* rail = find_rail(flight.to);
  InPath* in = find_in(flight.to);
  if (in != nullptr && in->nonce != flight.to_nonce) in = nullptr;
  if (!flight.nic->model.ordered) {
    if (rail == nullptr) return lose(number);
    if (!take(number, *rail, in)) {
      schedule(now_ns_ + kReceiverNotReadyNs, EventKind::kLand, number);
    }
    return;
  }
  if (in == nullptr || in->down) return lose(number);
  if (in->waiting.empty()) {
    if (take(number, *rail, in)) return;
    schedule(now_ns_ + kReceiverNotReadyNs, EventKind::kReceiverReady, 0, flight.to);
  }
  in->waiting.push(number);  // nothing overtakes on an ordered path
}

void Wire::receiver_ready(const PathRef& at) {
  InPath* in = find_in(at);
  if (in == nullptr) return;
  while (!in->waiting.empty()) {
    const uint32_t number = in->waiting.front();
    if (in->down) {
      lose(number);
    } else if (!take(number, *find_rail(at), in)) {
      return schedule(now_ns_ + kReceiverNotReadyNs, EventKind::kReceiverReady, 0, at);
    }
    in->waiting.pop();
  }
}

/// Stores a packet, or refuses it. False: the engine has no room for the immediate that it would
/// complete, so not even its bytes are taken.
bool Wire::take(uint32_t number, RailState& rail, InPath* in) {
  const Packet& packet = packets_[number];
  Flight& flight = flights_[packet.flight];
  if (flight.refused || !target_allowed(rail, flight)) {
    if (!flight.refused) refuse(packet.flight, in);
    drop(number);
    return true;
  }
  const bool whole = flight.landed_bytes + packet.bytes.size() == flight.op.size_bytes;
  const bool counted = whole && flight.op.has_imm != 0;
  if (counted && rail.immediates >= kImmediatesMax) return false;

  if (!packet.bytes.empty()) {
    std::byte* target = find_region(rail, flight.op.remote_key)->address + flight.op.target;
    std::memcpy(target + packet.offset, packet.bytes.data(), packet.bytes.size());
  }
  flight.landed_bytes += packet.bytes.size();
  trace(EventKind::kLand, *rail.nic, packet.bytes.size(), flight.op.imm);
  if (counted) {
    ++rail.immediates;
    WireEvent arrived;
    arrived.kind = WireEvent::Kind::kImm;
    arrived.imm = flight.op.imm;
    if (in != nullptr) {
      ++in->taken;
      arrived.path = flight.to.path;
    }
    report(flight.to, arrived);
  }
  if (whole) acknowledge(packet.flight, in);
  drop(number);
  return true;
}

/// Wrong key, bounds, or a region that is gone. On an ordered path that ends the connection, as RC.
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

/// Nobody takes the packet and nobody answers: the sender's NIC repeats it until it gives up.
void Wire::lose(uint32_t number) {
  const uint32_t index = packets_[number].flight;
  Flight& flight = flights_[index];
  if (flight.nic->model.ordered) {
    OutPath* path = find_out(flight.from);
    if (path != nullptr && !path->timing_out) {
      path->timing_out = true;
      schedule(now_ns_ + kRetryNs, EventKind::kTimeout, 0, flight.from);
    }
  } else if (!flight.lost && !flight.refused) {
    flight.lost = true;
    end_later(index, now_ns_ + kRetryNs, Errc::kRailLost, Remote::kUnknown);
  }
  drop(number);
}

/// The packet has left the network: its place in the window is free, and its buffer.
void Wire::drop(uint32_t number) {
  const Packet& packet = packets_[number];
  const Flight& flight = flights_[packet.flight];
  if (OutPath* path = find_out(flight.from)) {
    path->window_used -= packet.bytes.size();
    make_ready(*path, flight.from, *flight.nic);
    kick(*flight.nic);
  }
  release(packet.flight);
  packets_.give(number);
}

// ---- Ending -------------------------------------------------------------------------------------

/// The one place where an acknowledgement, good or bad, enters the network.
void Wire::acknowledge(uint32_t index, InPath* in) {
  Flight& flight = flights_[index];
  ++flight.refs;
  int64_t arrival = now_ns_ + delay_ns(*flight.nic);
  if (in != nullptr && flight.nic->model.ordered) {
    arrival = std::max(arrival, in->last_ack_ns);
    in->last_ack_ns = arrival;
  }
  schedule(arrival, EventKind::kAck, index);
}

/// What the sender's own NIC finds out, without the network.
void Wire::end_later(uint32_t index, int64_t time_ns, Errc code, Remote remote) {
  Flight& flight = flights_[index];
  flight.code = code;
  flight.remote = remote;
  ++flight.refs;
  schedule(time_ns, EventKind::kAck, index);
}

void Wire::acknowledged(uint32_t index) {
  const Flight& flight = flights_[index];
  const PathRef from = flight.from;
  const bool breaks = flight.linked && flight.code != Errc::kOk && flight.nic->model.ordered;
  const bool refused = flight.code == Errc::kRemoteAccess;
  if (!flight.ended) {
    end(index, flight.code, flight.remote);
    OutPath* path = breaks ? find_out(from) : nullptr;
    if (path != nullptr && path->state == OutPath::State::kStarted) {
      // After a refusal the far end takes nothing more; after a local error it does not know yet.
      break_path(*path, from, refused ? Remote::kNotDelivered : Remote::kUnknown);
    }
  }
  release(index);
}

/// A posted piece ends, whatever became of it: exactly once.
void Wire::end(uint32_t index, Errc code, Remote remote) {
  Flight& flight = flights_[index];
  flight.ended = true;
  if (OutPath* path = find_out(flight.from)) unlink(*path, index);
  WireEvent written;
  written.kind = WireEvent::Kind::kWritten;
  written.code = code;
  written.remote = remote;
  written.cookie = flight.op.cookie;
  written.path = flight.from.path;
  report(flight.from, written);
  release(index);
}

/// The one place where something reaches an engine's queue.
void Wire::report(const PathRef& at, const WireEvent& event) {
  RailState* rail = find_rail(at);
  if (rail == nullptr) return;
  trace(event, *rail->nic);
  rail->events.push(event);
  wake_later(*find_port(at.port));
}

}  // namespace fabric::sim
