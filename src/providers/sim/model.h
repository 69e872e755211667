#pragma once

#include <cstdint>

#include <fabric/sim.h>

namespace fabric::sim {

/// The times of a NicModel as integers, so that every machine computes the same run.
struct Timing {
  int64_t per_op_ns = 0;
  int64_t per_post_ns = 0;
  int64_t latency_ns = 0;
  uint64_t jitter_ns = 0;
  uint64_t fs_per_byte = 0;
  uint64_t window_bytes = 0;  ///< of one path: sent and not yet landed

  Timing(const NicModel& model, uint64_t packet_bytes_max) noexcept;
  int64_t wire_ns(uint64_t bytes) const noexcept;
  /// The part of per_op_ns that the transmission of the bytes does not hide.
  int64_t stall_ns(uint64_t write_bytes) const noexcept;
};

/// The limits of WorldOptions::packet_bytes_max.
uint64_t packet_bytes_limit(uint64_t asked) noexcept;
/// The packet size for a write.
uint64_t packet_bytes(uint64_t write_bytes, uint64_t packet_bytes_max) noexcept;

}  // namespace fabric::sim
