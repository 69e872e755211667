#include "providers/sim/model.h"

#include <algorithm>

namespace fabric::sim {
namespace {

constexpr uint64_t kFsPerNs = 1'000'000;
// A write over 4 KiB has two packets at least, so that writes interleave; and packets are large
// enough that bytes, not events, dominate the cost of a simulated gigabyte.
constexpr uint64_t kPacketBytesMin = 4096;
// 8e9 fs for each of 2 GiB still fit in 64 bits; half of that leaves room.
constexpr uint64_t kPacketBytesLimit = 1u << 30;

}  // namespace

NicModel NicModel::connectx7() {
  NicModel model;
  model.gbit_per_s = 378;       // single writes of 32 MiB
  model.per_op = Nanos(90);     // 11.1 million 1 KiB writes per second
  model.per_post = Nanos(152);  // 56 posts in 8.5 us
  model.latency = Nanos(5'000);
  model.ordered = true;
  model.slice_safe = true;
  model.exact_replay = true;
  model.fence = FenceKind::kLocal;
  return model;
}

NicModel NicModel::efa_200g() {
  NicModel model;
  model.gbit_per_s = 168;       // single writes of 32 MiB: 336 Gb/s on two NICs
  model.per_op = Nanos(950);    // 2.1 million writes per second on two NICs, up to 16 KiB
  model.per_post = Nanos(500);  // 56 posts in 27.9 us
  model.latency = Nanos(12'000);
  model.jitter = Nanos(6'000);
  model.ordered = false;
  model.slice_safe = false;
  model.exact_replay = false;
  model.fence = FenceKind::kRekey;
  return model;
}

NicModel NicModel::nvlink() {
  NicModel model;
  model.gbit_per_s = 2'880;
  model.per_op = Nanos(0);
  model.latency = Nanos(1'000);
  model.ordered = true;
  model.slice_safe = true;
  model.exact_replay = true;
  model.fence = FenceKind::kLocal;
  return model;
}

Timing::Timing(const NicModel& model, uint64_t packet_bytes_max) noexcept
    : per_op_ns(std::max<int64_t>(0, model.per_op.count())),
      per_post_ns(std::max<int64_t>(0, model.per_post.count())),
      latency_ns(std::max<int64_t>(0, model.latency.count())),
      jitter_ns(static_cast<uint64_t>(std::max<int64_t>(0, model.jitter.count()))),
      // 1 Mb/s at least: a NIC without bandwidth would never finish, and 8e9 fs per byte still
      // leaves room for 2 GiB in 64 bits.
      fs_per_byte(static_cast<uint64_t>(8e6 / std::max(0.001, model.gbit_per_s) + 0.5)) {
  fs_per_byte = std::max<uint64_t>(1, fs_per_byte);
  // Twice the bandwidth-delay product: a single path never waits for the window, and many paths
  // into one receiver queue at their senders, as with flow control, and not in our memory.
  const uint64_t flying_ns = static_cast<uint64_t>(latency_ns) + jitter_ns;
  window_bytes = 2 * (flying_ns * kFsPerNs / fs_per_byte) + 2 * packet_bytes_max;
}

int64_t Timing::wire_ns(uint64_t bytes) const noexcept {
  return static_cast<int64_t>((bytes * fs_per_byte + kFsPerNs / 2) / kFsPerNs);
}

int64_t Timing::stall_ns(uint64_t write_bytes) const noexcept {
  return std::max<int64_t>(0, per_op_ns - wire_ns(write_bytes));
}

uint64_t packet_bytes_limit(uint64_t asked) noexcept {
  return std::clamp(asked, kPacketBytesMin, kPacketBytesLimit);
}

uint64_t packet_bytes(uint64_t write_bytes, uint64_t packet_bytes_max) noexcept {
  return std::clamp((write_bytes + 3) / 4, kPacketBytesMin, packet_bytes_max);
}

}  // namespace fabric::sim
