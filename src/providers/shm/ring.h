#pragma once

#include <array>
#include <atomic>
#include <cstdint>

// The shared memory of one path: created by the target, written by its one sender. A slot is
// published by a single store after it is filled, never reserved before, so a sender may die or
// stop at any instruction without blocking the target. The contents are untrusted: any process of
// the same user may have written them. The layout is part of the wire format.

namespace fabric::shm {

/// A pull descriptor: asks the target to read `size_bytes` from the sender (or from the bounce
/// buffer) into the region of an rkey. Sender and target move it through its states by
/// compare-exchange of `word`, so that each request ends in exactly one of them.
struct alignas(64) PullRequest {
  enum State : uint32_t {
    kPublished = 1,   ///< by the sender; later states are set by compare-exchange
    kTaken = 2,       ///< the target is pulling the bytes
    kDone = 3,        ///< landed; its immediate, if any, was delivered
    kRefused = 4,     ///< invalid rkey or out of bounds
    kUnreadable = 5,  ///< the sender's memory could not be read
    kClosed = 6,      ///< the target closed the path first
    kWithdrawn = 7,   ///< by the sender, before the target took it
    kAbandoned = 8,  ///< by the sender, while taken: bytes may land, its immediate is not delivered
  };
  /// Position in the sequence of requests, and the state in the low bits. The position keeps a
  /// state of the previous lap from being taken for a new one.
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> rkey;    ///< generation (high half) and index
  std::atomic<uint64_t> target;  ///< offset in the region
  std::atomic<uint64_t> source;  ///< address in the sender, or offset in the bounce buffer
  std::atomic<uint64_t> size_bytes;
  std::atomic<uint32_t> imm;
  std::atomic<uint32_t> flags;

  static constexpr uint32_t kHasImm = 1;   ///< it carries an immediate
  static constexpr uint32_t kBounced = 2;  ///< its bytes are in the bounce buffer

  static constexpr uint32_t kStateBits = 4;
  static constexpr uint64_t word_of(uint64_t position, State state) noexcept {
    return position << kStateBits | state;
  }
};

/// One path: immediates of writes that the sender stored itself, pull requests, and a bounce buffer
/// for senders whose memory the target cannot read.
///
/// Owner: the target (InPath); the sender maps it (OutPath). Every word has one writer, except
/// PullRequest::word.
struct Ring {
  static constexpr uint32_t kImms = 2048;
  static constexpr uint32_t kPulls = 256;
  static constexpr uint64_t kBounceBytes = 1u << 20;

  // Written by the target.
  alignas(64) std::atomic<uint64_t> imms_taken;
  std::atomic<uint64_t> pulls_taken;
  std::atomic<uint32_t> retired;  ///< the target closed its end and took every committed immediate

  /// Immediates of writes whose bytes have landed. The upper half is the lap, so that a word of the
  /// previous lap is not taken for a new one.
  alignas(64) std::array<std::atomic<uint64_t>, kImms> imms;
  alignas(64) std::array<PullRequest, kPulls> pulls;
  alignas(4096) std::array<std::byte, kBounceBytes> bounce;

  static constexpr uint64_t imm_word(uint64_t position, uint32_t imm) noexcept {
    return (position / kImms + 1) << 32 | imm;
  }
};

}  // namespace fabric::shm
