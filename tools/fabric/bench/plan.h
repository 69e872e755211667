#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace fabric::tool::bench {

enum class Verb : uint8_t { kWrite, kPaged, kScatter, kLatency, kRate, kMessage, kIdle };

inline constexpr std::array<Verb, 7> kVerbs{Verb::kWrite,   Verb::kPaged, Verb::kScatter,
                                            Verb::kLatency, Verb::kRate,  Verb::kMessage,
                                            Verb::kIdle};

const char* to_string(Verb verb);

// The most that a plan may ask for. A listener takes plans from others, so they bound its memory.
inline constexpr uint64_t kBytesMax = 64ull << 30;
inline constexpr uint32_t kWindowMax = 1u << 18;
inline constexpr uint32_t kPagesMax = 1u << 20;
inline constexpr uint32_t kTargetsMax = 512;
inline constexpr uint32_t kRepetitionsMax = 1000;
inline constexpr double kSecondsMax = 3600;

/// What both sides have to agree on. The sender makes it, and it travels, but for the devices.
struct Plan {
  Verb verb = Verb::kWrite;
  std::string network = "shm";
  std::vector<uint64_t> sizes{};
  uint32_t window = 64;
  uint32_t group = 0;  ///< 0: as large as the window allows, at most 64
  uint32_t pages = 1024;
  uint32_t targets = 8;
  bool registered = false;
  uint64_t footprint = 0;  ///< 0: one place, which stays in the caches
  uint32_t rails = 1;
  std::vector<std::string> devices{};  ///< of this side; empty: the network's choice
  bool threaded = false;
  double seconds = 0.25;
  uint32_t repetitions = 5;
};

nlohmann::ordered_json to_json(const Plan& plan);

/// Throws Failed when something is missing, of another type or beyond the bounds.
Plan plan_from(const nlohmann::json& json);

/// How the bytes of one size lie in memory: places of equal strides, over which the operations
/// rotate. A place has one part for a write, one a page, one a target.
struct Shape {
  uint64_t size = 0;
  uint64_t stride = 0;        ///< of a part: its size, up to a whole word of the pattern
  uint64_t source_parts = 1;  ///< of a place, at the sender
  uint64_t target_parts = 1;  ///< of a place, in one region of the receiver
  uint64_t counts = 1;        ///< of an operation, over all receivers
  uint64_t places = 1;

  uint64_t source_bytes() const { return places * source_parts * stride; }
  uint64_t target_bytes() const { return places * target_parts * stride; }
  /// For a second use of the same memory, on a page of its own: what is sent there stays in the
  /// cache while something arrives here.
  uint64_t behind_at() const { return (source_bytes() + 4095) / 4096 * 4096; }
};

Shape shape_of(const Plan& plan, uint64_t size);

/// The same order of pages at both sides: a permutation that `salt` chooses.
std::vector<uint32_t> page_order(uint32_t pages, uint64_t salt);
inline constexpr uint64_t kSourceOrder = 1, kTargetOrder = 2;

}  // namespace fabric::tool::bench
