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
    32;  ///< writes in one call of a rail, and so under one doorbell

/// Pieces that were posted together on one path, and that nobody has to tell apart while all goes
/// well: what a write keeps for itself they keep once. Either each is an operation of its own, or
/// all are parts of one. Whoever needs to see single writes has the post_batch dissolved first
/// (Transfers::expand); from then on its cookies stand for the writes that it became.
struct PostBatch {
  static constexpr uint32_t kEntriesMax = kPostMax;
  /// In a cookie: what comes back is a entry of a post_batch.
  static constexpr uint32_t kCookieBit = 1u << 31;
  static_assert(kEntriesMax == 32, "one bit each");

  uint32_t index = 0;
  uint32_t op = kNone;  ///< whose parts they are; kNone: each is an operation of its own
  uint32_t first_part = 0, stride = 1;
  uint32_t count = 0;
  uint32_t inflight = 0;  ///< who has not come back, a bit each
  uint32_t with_imm = 0;  ///< who carries an immediate, a bit each
  bool compact = true;     ///< false: dissolved
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
  std::array<uint32_t, kEntriesMax> entry{};  ///< slots of operations; once dissolved, of writes

  uint32_t cookie(uint32_t at) const noexcept { return kCookieBit | (index * kEntriesMax + at); }
  static bool is_cookie(uint32_t cookie) noexcept { return (cookie & kCookieBit) != 0; }
  static uint32_t index_of(uint32_t cookie) noexcept { return (cookie & ~kCookieBit) / kEntriesMax; }
  static uint32_t entry_of(uint32_t cookie) noexcept { return cookie % kEntriesMax; }
  /// How many are set. By hand: without an instruction for it the library's is a call.
  static uint32_t popcount(uint32_t bits) noexcept {
    if ((bits & (bits - 1)) == 0) return bits != 0 ? 1 : 0;
    bits -= bits >> 1 & 0x55555555u;
    bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
    return ((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
  }
  /// The bits of the first `n`.
  static uint32_t low_bits(uint32_t n) noexcept { return n >= kEntriesMax ? ~0u : (1u << n) - 1; }
};

/// Trains in chunks that are never given back: timers point into them.
class PostBatchPool {
 public:
  /// With what its last journey left in it, but for its index.
  PostBatch& take() {
    if (free_.empty()) grow();
    const uint32_t index = free_.back();
    free_.pop_back();
    return *at(index);
  }
  void give_back(PostBatch& post_batch) { free_.push_back(post_batch.index); }

  /// nullptr: there never was one.
  PostBatch* at(uint32_t index) noexcept {
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
        if (chunk[i].inflight != 0) visit(chunk[i]);
      }
    }
  }
  template <class F>
  void each(F&& visit) const {
    const_cast<PostBatchPool*>(this)->each([&](const PostBatch& post_batch) { visit(post_batch); });
  }

 private:
  static constexpr uint32_t kChunk = 64;
  void grow() {
    const auto base = static_cast<uint32_t>(chunks_.size()) * kChunk;
    chunks_.push_back(std::make_unique<PostBatch[]>(kChunk));
    free_.reserve(base + kChunk);
    for (uint32_t i = kChunk; i > 0; --i) {
      PostBatch& post_batch = chunks_.back()[i - 1];
      post_batch.index = post_batch.timer.index = base + i - 1;
      post_batch.timer.kind = HeapTimer::Kind::kPostBatch;
      free_.push_back(post_batch.index);
    }
  }

  std::vector<std::unique_ptr<PostBatch[]>> chunks_;
  std::vector<uint32_t> free_;
};

}  // namespace fabric::core
