#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include <fabric/types.h>

#include "core/pending.h"
#include "core/timer_heap.h"

namespace fabric::core {

struct LocalRegion;
struct Path;
struct Peer;
struct RailSlot;

inline constexpr uint32_t kPostMax =
    32;  ///< pieces in one call of a rail, and so under one doorbell

/// Pieces that were posted together on one path, and that nobody has to tell apart while all goes
/// well: what a piece keeps for itself they keep once. Either each is an operation of its own, or
/// all are parts of one. Whoever needs to see single pieces has the train dissolved first
/// (Transfers::dissolve); from then on its cookies stand for the pieces that it became.
struct Train {
  static constexpr uint32_t kCars = kPostMax;
  /// In a cookie: what comes back is a car of a train.
  static constexpr uint32_t kCookie = 1u << 31;
  static_assert(kCars == 32, "one bit each");

  uint32_t index = 0;
  uint32_t op = kNone;  ///< whose parts they are; kNone: each is an operation of its own
  uint32_t first_part = 0, stride = 1;
  uint32_t count = 0;
  uint32_t out = 0;      ///< who has not come back, a bit each
  uint32_t counted = 0;  ///< who carries an immediate, a bit each
  bool whole = true;     ///< false: dissolved
  bool silent = true;    ///< writes: nobody has to be told of the end of one
  BatchId batch{};       ///< writes: of all of them
  Path* path = nullptr;
  Peer* peer = nullptr;
  RailSlot* rail = nullptr;
  LocalRegion* region = nullptr;
  uint32_t region_slot = kNone;
  uint64_t seq = 0;    ///< of the first; the others count on
  uint64_t bytes = 0;  ///< parts: of all of them
  uint64_t imms_before = 0;
  int64_t submitted_ns = 0;  ///< the first of them
  int64_t posted_ns = 0;
  int64_t deadline_ns = kNeverNs;  ///< the earliest of theirs
  HeapTimer timer{};
  std::array<uint32_t, kCars> car{};  ///< slots of operations; once dissolved, of pieces

  uint32_t cookie(uint32_t at) const noexcept { return kCookie | (index * kCars + at); }
  static bool has(uint32_t cookie) noexcept { return (cookie & kCookie) != 0; }
  static uint32_t index_of(uint32_t cookie) noexcept { return (cookie & ~kCookie) / kCars; }
  static uint32_t car_of(uint32_t cookie) noexcept { return cookie % kCars; }
  /// How many are set. By hand: without an instruction for it the library's is a call.
  static uint32_t number(uint32_t bits) noexcept {
    if ((bits & (bits - 1)) == 0) return bits != 0 ? 1 : 0;
    bits -= bits >> 1 & 0x55555555u;
    bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
    return ((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
  }
  /// The bits of the first `n`.
  static uint32_t first(uint32_t n) noexcept { return n >= kCars ? ~0u : (1u << n) - 1; }
};

/// Trains in chunks that are never given back: timers point into them.
class TrainYard {
 public:
  /// With what its last journey left in it, but for its index.
  Train& take() {
    if (free_.empty()) grow();
    const uint32_t index = free_.back();
    free_.pop_back();
    return *at(index);
  }
  void give_back(Train& train) { free_.push_back(train.index); }

  /// nullptr: there never was one.
  Train* at(uint32_t index) noexcept {
    const uint32_t chunk = index / kChunk;
    return chunk < chunks_.size() ? &chunks_[chunk][index % kChunk] : nullptr;
  }
  bool empty() const noexcept { return free_.size() == chunks_.size() * kChunk; }

  /// Those that are on their way.
  template <class F>
  void each(F&& visit) {
    if (empty()) return;
    for (const auto& chunk : chunks_) {
      for (uint32_t i = 0; i < kChunk; ++i) {
        if (chunk[i].out != 0) visit(chunk[i]);
      }
    }
  }
  template <class F>
  void each(F&& visit) const {
    const_cast<TrainYard*>(this)->each([&](const Train& train) { visit(train); });
  }

 private:
  static constexpr uint32_t kChunk = 64;
  void grow() {
    const auto base = static_cast<uint32_t>(chunks_.size()) * kChunk;
    chunks_.push_back(std::make_unique<Train[]>(kChunk));
    free_.reserve(base + kChunk);
    for (uint32_t i = kChunk; i > 0; --i) {
      Train& train = chunks_.back()[i - 1];
      train.index = train.timer.index = base + i - 1;
      train.timer.kind = HeapTimer::Kind::kTrain;
      free_.push_back(train.index);
    }
  }

  std::vector<std::unique_ptr<Train[]>> chunks_;
  std::vector<uint32_t> free_;
};

}  // namespace fabric::core
