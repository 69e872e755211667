#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace fabric::tool::bench {

enum class Benchmark : uint8_t { kWrite, kPaged, kScatter, kLatency, kRate, kMessage, kKv, kIdle };

inline constexpr std::array<Benchmark, 8> kBenchmarks{
    Benchmark::kWrite, Benchmark::kPaged,   Benchmark::kScatter, Benchmark::kLatency,
    Benchmark::kRate,  Benchmark::kMessage, Benchmark::kKv,      Benchmark::kIdle};

const char* to_string(Benchmark benchmark);

// Upper limits of a plan. A listener accepts plans from the network, so they bound its memory.
inline constexpr uint64_t kBytesMax = 64ull << 30;
inline constexpr uint32_t kWindowMax = 1u << 18;
inline constexpr uint32_t kPagesMax = 1u << 20;
inline constexpr uint32_t kTargetsMax = 512;
inline constexpr uint32_t kLayersMax = 1024;
inline constexpr uint32_t kTensorsMax = 2;
inline constexpr uint32_t kRepetitionsMax = 1000;
inline constexpr double kSecondsMax = 3600;

/// What both sides have to agree on. The sender makes it and sends it, except for the devices.
struct BenchPlan {
  Benchmark benchmark = Benchmark::kWrite;
  std::string network = "shm";
  std::vector<uint64_t> sizes{};
  uint32_t window = 64;
  uint32_t group = 0;  ///< 0: as large as the window allows, at most 64
  uint32_t pages = 1024;
  uint32_t targets = 8;
  uint32_t layers = 4;
  uint32_t tensors = 1;  ///< 2: K and V apart
  bool registered = false;
  uint64_t footprint = 0;  ///< 0: one slot, which stays in the caches
  uint32_t rails = 1;
  std::vector<std::string> devices{};  ///< of this side; empty: the network chooses
  bool threaded = false;
  double seconds = 0.25;
  uint32_t repetitions = 5;
};

nlohmann::ordered_json to_json(const BenchPlan& plan);

/// Throws BenchError if a member is missing, has another type or exceeds its limit.
BenchPlan plan_from(const nlohmann::json& json);

/// Memory layout for one size: slots of equal stride, over which the operations rotate. A slot has
/// one part for a write, one for each page of a paged write, one for each target of a scatter, one
/// for each page of each layer and tensor of a KV cache.
struct Layout {
  uint64_t size = 0;
  uint64_t stride = 0;        ///< of a part: its size, rounded up to a word of the pattern
  uint64_t source_parts = 1;  ///< of a slot, at the sender
  uint64_t target_parts = 1;  ///< of a slot, in one region of the receiver
  uint64_t counts = 1;        ///< of an operation, over all targets
  uint64_t slots = 1;

  uint64_t source_bytes() const { return slots * source_parts * stride; }
  uint64_t target_bytes() const { return slots * target_parts * stride; }
  /// Where the reply of `latency` starts: on another page than the request, so that the bytes to be
  /// sent stay in the cache while others arrive.
  uint64_t reply_offset() const { return (source_bytes() + 4095) / 4096 * 4096; }
};

Layout layout_of(const BenchPlan& plan, uint64_t size);

/// A permutation of the pages, chosen by `salt`: the same at both sides.
std::vector<uint32_t> page_order(uint32_t pages, uint64_t salt);
inline constexpr uint64_t kSourceOrder = 1, kTargetOrder = 2;

}  // namespace fabric::tool::bench
