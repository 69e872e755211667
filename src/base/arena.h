#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/check.h"

namespace fabric {

/// A lock-free bitmap allocator: one preallocated block of memory, allocated in runs of 64-byte
/// units.
///
/// A bit per unit says whether it is taken, and a block is claimed by setting its bits. Size
/// classes would be quicker by a few nanoseconds, but memory once split into small blocks would
/// never again hold a large one, and a request that waits for room would wait for ever. In a bitmap
/// adjacent free blocks merge by themselves: once everything is freed, everything fits again.
///
/// A thread that is descheduled in the middle holds only the units that it has claimed. A claim
/// that spans several words sets them in ascending order and rolls back when it meets a taken unit;
/// of claims that collide with each other, the one that is furthest ahead does not roll back.
///
/// Threads: every call from any thread.
/// Cost: a scan of the bitmap, one word per 4 KiB, that starts where the last one ended.
class Arena {
 public:
  static constexpr uint64_t kUnitBytes = 64;  // a cache line: no two blocks share one

  /// Rounded up to whole units. Throws std::bad_alloc.
  explicit Arena(uint64_t bytes)
      : units_(bytes / kUnitBytes + (bytes % kUnitBytes != 0 || bytes == 0)),
        block_(static_cast<std::byte*>(std::aligned_alloc(kUnitBytes, units_ * kUnitBytes))),
        taken_(std::make_unique<std::atomic<uint64_t>[]>((units_ + 63) / 64)),
        lengths_(static_cast<uint32_t*>(std::calloc(units_, sizeof(uint32_t)))) {
    if (block_ == nullptr || lengths_ == nullptr || units_ > UINT32_MAX) throw std::bad_alloc();
  }

  /// Aligned to kUnitBytes. Null: full, or no free run is long enough. A request up to largest()
  /// succeeds whenever no block is held or being claimed.
  void* allocate(uint64_t bytes) noexcept {
    if (bytes > largest()) return nullptr;
    const uint64_t n = bytes == 0 ? 1 : (bytes + kUnitBytes - 1) / kUnitBytes;
    // A hint where to start: pairs with nothing.
    const uint64_t start = hint_.load(std::memory_order_relaxed);
    uint64_t unit = claim_between(start, units_, n);
    // The second scan covers everything: a free run may lie across `start`.
    if (unit == kNone && start > 0) unit = claim_between(0, units_, n);
    if (unit == kNone) return nullptr;
    hint_.store(unit + n < units_ ? unit + n : 0, std::memory_order_relaxed);  // as above
    lengths_[unit] = static_cast<uint32_t>(n);
    return block_.get() + unit * kUnitBytes;
  }

  /// `block` came from allocate() and belongs to the caller, or is null. Aborts on anything else,
  /// also on a double free: continuing would give the same bytes to two owners.
  void free(void* block) noexcept {
    if (block == nullptr) return;
    const auto offset = static_cast<uint64_t>(static_cast<std::byte*>(block) - block_.get());
    FABRIC_CHECK(offset < units_ * kUnitBytes && offset % kUnitBytes == 0, "not of this arena");
    const uint64_t unit = offset / kUnitBytes;
    const uint64_t n = lengths_[unit];
    FABRIC_CHECK(n != 0, "not a block, or freed twice");
    lengths_[unit] = 0;
    // A low hint keeps small blocks together and leaves long runs whole: pairs with nothing.
    if (unit < hint_.load(std::memory_order_relaxed)) {
      hint_.store(unit, std::memory_order_relaxed);
    }
    release(unit, n);
  }

  /// Bytes in use, including claims that are about to roll back. Scans the whole bitmap.
  uint64_t used() const noexcept {
    uint64_t units = 0;
    for (uint64_t i = 0; i < (units_ + 63) / 64; ++i) {
      // A gauge: pairs with nothing.
      units += static_cast<uint64_t>(std::popcount(taken_[i].load(std::memory_order_relaxed)));
    }
    return units * kUnitBytes;
  }
  uint64_t largest() const noexcept { return units_ * kUnitBytes; }  ///< more can never fit

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  struct Freed {
    void operator()(void* block) const noexcept { std::free(block); }
  };

  /// The bits of the units [unit, end) that lie in the word of `unit`.
  static uint64_t mask_of(uint64_t unit, uint64_t end) noexcept {
    const uint64_t length = end - unit < 64 - unit % 64 ? end - unit : 64 - unit % 64;
    return (length == 64 ? ~uint64_t{0} : (uint64_t{1} << length) - 1) << unit % 64;
  }

  /// First free run of n units in [from, to), claimed. kNone when there is none.
  uint64_t claim_between(uint64_t from, uint64_t to, uint64_t n) noexcept {
    uint64_t begin = from;  // of the run that is being measured
    uint64_t unit = from;   // everything in [begin, unit) was seen free
    while (unit < to) {
      // A hint: claim() confirms it, and has the ordering.
      const uint64_t word = taken_[unit / 64].load(std::memory_order_relaxed) >> unit % 64;
      const uint64_t left = 64 - unit % 64;
      if ((word & 1) != 0) {
        const auto ones = static_cast<uint64_t>(std::countr_one(word));
        unit += ones < left ? ones : left;
        begin = unit;
        continue;
      }
      const auto zeros = static_cast<uint64_t>(std::countr_zero(word));
      unit += zeros < left ? zeros : left;
      if (unit > to) unit = to;
      if (unit - begin < n) continue;
      const uint64_t taken_at = claim(begin, n);
      if (taken_at == kNone) return begin;
      begin = unit = taken_at;  // another thread took that unit first: continue the scan from it
    }
    return kNone;
  }

  /// Takes [unit, unit + n). kNone on success, else the taken unit that it met; takes nothing then.
  uint64_t claim(uint64_t unit, uint64_t n) noexcept {
    const uint64_t end = unit + n;
    for (uint64_t at = unit; at < end; at = (at / 64 + 1) * 64) {
      const uint64_t mask = mask_of(at, end);
      uint64_t word = taken_[at / 64].load(std::memory_order_relaxed);  // confirmed below
      do {
        if ((word & mask) != 0) {
          release(unit, at - unit);
          return at / 64 * 64 + static_cast<uint64_t>(std::countr_zero(word & mask));
        }
        // Acquire pairs with the release in release(): the last owner is done with the bytes.
      } while (!taken_[at / 64].compare_exchange_weak(word, word | mask, std::memory_order_acquire,
                                                      std::memory_order_relaxed));
    }
    return kNone;
  }

  void release(uint64_t unit, uint64_t n) noexcept {
    const uint64_t end = unit + n;
    for (uint64_t at = unit; at < end; at = (at / 64 + 1) * 64) {
      // Pairs with the acquire in claim().
      taken_[at / 64].fetch_and(~mask_of(at, end), std::memory_order_release);
    }
  }

  const uint64_t units_;
  const std::unique_ptr<std::byte, Freed> block_;
  const std::unique_ptr<std::atomic<uint64_t>[]> taken_;  ///< a bit per unit
  /// Length of the block that starts at this unit, written by its owner. calloc() maps zero pages,
  /// which cost nothing until the arena is used.
  const std::unique_ptr<uint32_t[], Freed> lengths_;
  alignas(64) std::atomic<uint64_t> hint_{0};
};

}  // namespace fabric
