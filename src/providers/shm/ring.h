#pragma once

#include <array>
#include <atomic>
#include <cstdint>

// The memory of one path: made by the target, written by one sender. Nothing in it is claimed
// before it is filled, so a sender may die or stop anywhere: what it had not published is not
// there. Whatever the target reads here may have been written by anybody of the same user.

namespace fabric::shm {

/// Work for the target: bytes that it fetches itself.
struct alignas(64) PullRequest {
  enum State : uint32_t {
    kPublished = 1,  ///< by the sender; from here on the two of them exchange
    kTaken = 2,      ///< the target is at it
    kDone = 3,       ///< in place, and counted
    kRefused = 4,    ///< wrong rkey or bounds
    kUnread = 5,     ///< the source's memory could not be read
    kClosed = 6,     ///< the path's end came first
    kWithdrawn = 7,  ///< by the sender, before the target took it
    kAbandoned = 8,  ///< by the sender, after that: it may be fetched, and is not counted
  };
  /// Position in the ring, so that an old state is never taken for a new one, and state below it.
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> rkey;     ///< generation and index
  std::atomic<uint64_t> target;  ///< offset in the region
  std::atomic<uint64_t> source;  ///< address in the sender, or offset in the bounce buffer
  std::atomic<uint64_t> size_bytes;
  std::atomic<uint32_t> imm;
  std::atomic<uint32_t> flags;

  static constexpr uint32_t kHasImm = 1;  ///< it has an immediate
  static constexpr uint32_t kBounced = 2;  ///< its bytes are in the bounce buffer

  static constexpr uint32_t kStateBits = 4;
  static constexpr uint64_t word_of(uint64_t position, State state) noexcept {
    return position << kStateBits | state;
  }
};

struct Ring {
  static constexpr uint32_t kImms = 2048;
  static constexpr uint32_t kPulls = 256;
  static constexpr uint64_t kBounceBytes = 1u << 20;

  // Written by the target.
  alignas(64) std::atomic<uint64_t> imms_taken;
  std::atomic<uint64_t> pulls_taken;
  std::atomic<uint32_t> retired;  ///< the target's end is down: what was committed is counted

  /// Immediates of writes whose bytes are in place: lap in the upper half, so that a word of the
  /// lap before is not taken for a new one.
  alignas(64) std::array<std::atomic<uint64_t>, kImms> imms;
  alignas(64) std::array<PullRequest, kPulls> pulls;
  alignas(4096) std::array<std::byte, kBounceBytes> bounce;

  static constexpr uint64_t imm_word(uint64_t position, uint32_t imm) noexcept {
    return (position / kImms + 1) << 32 | imm;
  }
};

}  // namespace fabric::shm
