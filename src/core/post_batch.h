#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include <fabric/types.h>

#include "core/pending.h"
#include "core/state_mutex.h"
#include "core/timer_heap.h"

namespace fabric::core {

struct LocalRegion;
struct Path;
struct Peer;
struct RailSlot;

/// Writes per call of Rail::post(), and so per doorbell.
inline constexpr uint32_t kPostMax = 32;
/// Targets of a scatter that are posted on one of several rails before the others get theirs. A CPU
/// posts serially: with kPostMax the last rail would idle until the others have all of theirs.
inline constexpr uint32_t kTargetsPostMax = 4;

/// The compressed in-flight record of up to 32 writes that were posted together on one rail. As
/// long as all goes well the writes need not be told apart: what each InflightWrite would hold is
/// held once for all of them, and completions retire entries by clearing bits. Either every entry
/// is an operation of its own (a write), or all entries are parts of one operation: pages, or
/// targets of a scatter. Writes and pages of a batch share a path. Targets have their own, since
/// each may have another peer; what depends on the path is in `targets` then.
///
/// When a single entry needs attention (an error, a stop, a path that closes, a dump), the batch is
/// expanded: Transfers::expand() moves every entry that is in flight into an InflightWrite. The
/// batch then only maps its cookies, which the rail still holds, to these, until the last one
/// retires.
struct PostBatch {
  static constexpr uint32_t kEntriesMax = kPostMax;
  /// Tells the cookie of a batch entry from the cookie of an InflightWrite.
  static constexpr uint32_t kCookieBit = 1u << 31;
  static_assert(kEntriesMax == 32, "one bit each");

  uint32_t index = 0;
  uint32_t op = kNone;  ///< whose parts the entries are; kNone: each is an operation of its own
  uint32_t first_part = 0, stride = 1;  ///< of pages
  uint32_t count = 0;
  uint32_t inflight = 0;  ///< entries not yet retired, one bit each
  uint32_t with_imm = 0;  ///< entries that carry an immediate, one bit each
  bool compact = true;    ///< false: expanded
  bool no_notify = true;  ///< no entry that is a write has a Notify
  BatchId batch{};        ///< of all entries
  Path* path = nullptr;   ///< null: the entries are targets of a scatter
  Peer* peer = nullptr;
  RailSlot* rail = nullptr;
  LocalRegion* region = nullptr;
  uint32_t region_slot = kNone;
  uint64_t seq = 0;                ///< of entry 0; entry i has seq + i
  uint64_t bytes = 0;              ///< of all entries, if they are pages
  uint64_t imms_before = 0;        ///< immediates posted on the path before entry 0
  int64_t submitted_ns = 0;        ///< of the first entry
  int64_t posted_ns = 0;           ///< when it was made
  int64_t deadline_ns = kNeverNs;  ///< the earliest of all entries
  HeapTimer timer{};
  /// While compact, the operation slots of writes or the parts of a scatter; once expanded, the
  /// cookies of InflightWrites.
  std::array<uint32_t, kEntriesMax> entry{};
  /// Of a target of a scatter, in place of `path`, `peer`, `seq` and `imms_before`.
  struct Target {
    Path* path = nullptr;
    Peer* peer = nullptr;
    uint64_t seq = 0;
    uint64_t imms_before = 0;
  };
  std::array<Target, kEntriesMax> targets{};

  bool has_targets() const noexcept { return path == nullptr; }
  /// Whether an entry in flight uses the path.
  bool uses(const Path* used) const noexcept {
    if (!has_targets()) return path == used;
    for (uint32_t rest = inflight; rest != 0; rest &= rest - 1) {
      if (targets[static_cast<uint32_t>(std::countr_zero(rest))].path == used) return true;
    }
    return false;
  }
  /// The lowest sequence number of an entry in flight to the peer; UINT64_MAX: none.
  uint64_t oldest_to(const Peer* to) const noexcept {
    if (!has_targets()) return peer == to ? seq : UINT64_MAX;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t rest = inflight; rest != 0; rest &= rest - 1) {
      const Target& target = targets[static_cast<uint32_t>(std::countr_zero(rest))];
      if (target.peer == to && target.seq < oldest) oldest = target.seq;
    }
    return oldest;
  }

  uint32_t cookie(uint32_t at) const noexcept { return kCookieBit | (index * kEntriesMax + at); }
  static bool is_cookie(uint32_t cookie) noexcept { return (cookie & kCookieBit) != 0; }
  static uint32_t index_of(uint32_t cookie) noexcept {
    return (cookie & ~kCookieBit) / kEntriesMax;
  }
  static uint32_t entry_of(uint32_t cookie) noexcept { return cookie % kEntriesMax; }
  /// Written out, because std::popcount is a library call where the target has no instruction.
  static uint32_t popcount(uint32_t bits) noexcept {
    if ((bits & (bits - 1)) == 0) return bits != 0 ? 1 : 0;
    bits -= bits >> 1 & 0x55555555u;
    bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
    return ((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
  }
  /// The bits of the first `n` entries.
  static uint32_t low_bits(uint32_t n) noexcept { return n >= kEntriesMax ? ~0u : (1u << n) - 1; }
};

/// A pool of post batches. Chunks are never freed: timers point into them. State lock held.
class PostBatchPool {
 public:
  /// Not reset: everything but the index is left from its last use.
  PostBatch& take() {
    if (free_.empty()) grow();
    const uint32_t index = free_.back();
    free_.pop_back();
    return *at(index);
  }
  void give_back(PostBatch& post_batch) { free_.push_back(post_batch.index); }

  /// nullptr if there never was such a batch.
  PostBatch* at(uint32_t index) noexcept {
    const uint32_t chunk = index / kChunk;
    return chunk < chunks_.size() ? &chunks_[chunk][index % kChunk] : nullptr;
  }
  const PostBatch* at(uint32_t index) const noexcept {
    return const_cast<PostBatchPool*>(this)->at(index);
  }
  bool empty() const noexcept { return free_.size() == chunks_.size() * kChunk; }
  uint64_t held() const noexcept { return chunks_.size() * kChunk - free_.size(); }

  /// Visits those with an entry in flight.
  template <class F>
  void each(F&& visit) FABRIC_REQUIRES(state_lock) {
    if (empty()) return;
    for (const auto& chunk : chunks_) {
      for (uint32_t i = 0; i < kChunk; ++i) {
        if (chunk[i].inflight != 0) visit(chunk[i]);
      }
    }
  }
  template <class F>
  void each(F&& visit) const FABRIC_REQUIRES(state_lock) {
    const_cast<PostBatchPool*>(this)->each([&](const PostBatch& post_batch)
                                               FABRIC_REQUIRES(state_lock) { visit(post_batch); });
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
