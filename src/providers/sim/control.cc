#include <algorithm>

#include "providers/sim/world.h"

// Control datagrams: what UDP gives, no more. They take the time of one way through the network and
// none of the NIC's bandwidth.

namespace fabric::sim {

Result<uint32_t> Wire::open_link(Port& port, std::span<const std::byte> address) {
  const auto number = reach(port, address);
  if (!number) return number.error();
  auto free = std::find(port.links.begin(), port.links.end(), 0u);
  if (free == port.links.end()) free = port.links.insert(free, 0u);
  *free = *number;
  return static_cast<uint32_t>(free - port.links.begin());
}

void Wire::close_link(Port& port, uint32_t link) {
  if (link < port.links.size()) port.links[link] = 0;
}

bool Wire::send(Port& port, uint32_t link, std::span<const std::byte> datagram) {
  if (link >= port.links.size() || port.links[link] == 0) return false;
  if (datagram.empty() || datagram.size() > kControlBytesMax) return false;
  if (port.datagrams_out >= kDatagramsMax) return false;
  // Both are drawn for every datagram, so that one chance does not shift what the other does.
  const bool dropped = control_rng_.chance(options_.drop_control);
  const bool twice = control_rng_.chance(options_.duplicate_control);
  if (!dropped) carry(port, port.links[link], datagram);
  if (!dropped && twice) carry(port, port.links[link], datagram);
  return true;
}

/// The one place where a datagram enters the network.
void Wire::carry(Port& port, uint32_t to_port, std::span<const std::byte> datagram) {
  const Nic& nic = *port.rails[0].nic;
  int64_t delay = nic.timing.latency_ns + nodes_[port.node].faults.delay_ns;
  delay += static_cast<int64_t>(control_rng_.between(0, nic.timing.jitter_ns));
  if (control_rng_.chance(options_.reorder_control)) {
    delay += static_cast<int64_t>(
        control_rng_.between(0, 20 * static_cast<uint64_t>(nic.timing.latency_ns)));
  }
  const uint32_t index = packets_.take();
  Packet& packet = packets_[index];
  packet.flight = kNone;
  packet.from_port = port.number;
  packet.bytes.assign(datagram.begin(), datagram.end());
  ++port.datagrams_out;
  schedule(now_ns_ + delay, EventKind::kDatagram, index, {to_port, 0, 0});
}

void Wire::deliver(uint32_t index, uint32_t to_port) {
  const Packet& packet = packets_[index];
  if (Port* sender = find_port(packet.from_port)) --sender->datagrams_out;
  Port* port = find_port(to_port);
  const PairFaults& pair = pair_faults(locations_[packet.from_port - 1], to_port);
  const bool cut = pair.control_cut || pair.datagrams_cut;
  if (port == nullptr || cut || port->datagrams.size() >= kDatagramsMax) {
    return packets_.give(index);
  }
  trace(EventKind::kDatagram, *port->rails[0].nic, packet.bytes.size(), 0);
  port->datagrams.push(index);
  wake_later(*port);
}

uint32_t Wire::receive(Port& port, std::span<std::byte> out) {
  port.asleep = false;
  if (port.datagrams.empty()) return 0;
  const uint32_t index = port.datagrams.pop();
  const Packet& packet = packets_[index];
  const size_t size = std::min(out.size(), packet.bytes.size());  // cut short, as UDP would
  std::copy_n(packet.bytes.begin(), size, out.begin());
  packets_.give(index);
  return static_cast<uint32_t>(size);
}

}  // namespace fabric::sim
