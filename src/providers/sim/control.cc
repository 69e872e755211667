#include <algorithm>

#include "providers/sim/world.h"

// Control datagrams, with the guarantees of UDP. They take the one-way latency and none of the
// NIC's bandwidth.

namespace fabric::sim {

Result<uint32_t> Wire::open_link(NetworkAttachment& attachment,
                                 std::span<const std::byte> address) {
  const auto number = reach(attachment, address);
  if (!number) return number.error();
  auto free = std::find(attachment.links.begin(), attachment.links.end(), 0u);
  if (free == attachment.links.end()) free = attachment.links.insert(free, 0u);
  *free = *number;
  return static_cast<uint32_t>(free - attachment.links.begin());
}

void Wire::close_link(NetworkAttachment& attachment, uint32_t link) {
  if (link < attachment.links.size()) attachment.links[link] = 0;
}

bool Wire::send(NetworkAttachment& attachment, uint32_t link, std::span<const std::byte> datagram) {
  if (link >= attachment.links.size() || attachment.links[link] == 0) return false;
  if (datagram.empty() || datagram.size() > kControlBytesMax) return false;
  if (attachment.datagrams_out >= kDatagramsMax) return false;
  // Both are drawn for every datagram, so that within this datagram one probability does not shift
  // the other's draw.
  const bool dropped = control_rng_.chance(options_.drop_control);
  const bool twice = control_rng_.chance(options_.duplicate_control);
  if (!dropped) inject_datagram(attachment, attachment.links[link], datagram);
  if (!dropped && twice) inject_datagram(attachment, attachment.links[link], datagram);
  return true;
}

/// All datagrams enter the network here.
void Wire::inject_datagram(NetworkAttachment& attachment, uint32_t to_attachment,
                           std::span<const std::byte> datagram) {
  const Nic& nic = *attachment.rails[0].nic;
  int64_t delay = nic.timing.latency_ns + nodes_[attachment.node].faults.delay_ns;
  delay += static_cast<int64_t>(control_rng_.between(0, nic.timing.jitter_ns));
  if (control_rng_.chance(options_.reorder_control)) {
    delay += static_cast<int64_t>(
        control_rng_.between(0, 20 * static_cast<uint64_t>(nic.timing.latency_ns)));
  }
  const uint32_t index = packets_.take();
  Packet& packet = packets_[index];
  packet.flight = kNone;
  packet.from_attachment = attachment.number;
  packet.size_bytes = datagram.size();
  packet.bytes.assign(datagram.begin(), datagram.end());
  ++attachment.datagrams_out;
  schedule(now_ns_ + delay, SimEventKind::kDatagram, index, {to_attachment, 0, 0});
}

void Wire::deliver(uint32_t index, uint32_t to_attachment) {
  const Packet& packet = packets_[index];
  if (NetworkAttachment* sender = find_attachment(packet.from_attachment)) --sender->datagrams_out;
  NetworkAttachment* attachment = find_attachment(to_attachment);
  const PairFaults& pair = pair_faults(locations_[packet.from_attachment - 1], to_attachment);
  const bool cut = pair.control_cut || pair.datagrams_cut;
  if (attachment == nullptr || cut || attachment->datagrams.size() >= kDatagramsMax) {
    return packets_.give(index);
  }
  trace(SimEventKind::kDatagram, *attachment->rails[0].nic, packet.bytes.size(), 0);
  attachment->datagrams.push(index);
  wake_later(*attachment);
}

uint32_t Wire::receive(NetworkAttachment& attachment, std::span<std::byte> out) {
  attachment.asleep = false;
  if (attachment.datagrams.empty()) return 0;
  const uint32_t index = attachment.datagrams.pop();
  const Packet& packet = packets_[index];
  const size_t size = std::min(out.size(), packet.bytes.size());  // truncated, as UDP would
  std::copy_n(packet.bytes.begin(), size, out.begin());
  packets_.give(index);
  return static_cast<uint32_t>(size);
}

}  // namespace fabric::sim
