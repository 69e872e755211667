#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include <fabric/kv_directory.h>
#include <fabric/result.h>

// The messages of EmbeddedDirectory. All start with a version and a type, and none is trusted: a
// decoder accepts only what an encoder writes.

namespace fabric::kv {

/// A member to a seed: list me, or list me like this from now on.
struct AnnounceMessage {
  uint32_t number = 0;  ///< repeated in the answer
  Member member{};
  bool operator==(const AnnounceMessage&) const = default;
};

/// The seed's answer to an announcement: kOk, or why it does not list the member.
struct AnswerMessage {
  uint32_t number = 0;
  Errc code = Errc::kOk;
  bool operator==(const AnswerMessage&) const = default;
};

/// A member to a seed: list me no longer.
struct LeaveMessage {
  bool operator==(const LeaveMessage&) const = default;
};

/// An engine to a seed: send me your view, and all changes of it. `have`: the revision that the
/// sender has, 0 for none.
struct WatchMessage {
  uint64_t have = 0;
  bool operator==(const WatchMessage&) const = default;
};

/// A seed to an engine that watches: all changes after the revision `from`, up to `upto`.
struct ViewMessage {
  uint64_t from = 0;       ///< 0: drop what an earlier message listed
  uint64_t upto = 0;       ///< not less than `from`
  bool last = false;       ///< `upto` is the seed's present revision
  bool warmed_up = false;  ///< EmbeddedOptions::warm_up of the seed has passed
  std::vector<uint64_t> left{};
  std::vector<Member> members{};
  bool operator==(const ViewMessage&) const = default;
};

using DirectoryMessage =
    std::variant<AnnounceMessage, AnswerMessage, LeaveMessage, WatchMessage, ViewMessage>;

/// Bytes of a view without what it lists, of one id that left, and beside the bytes of a member.
inline constexpr size_t kViewHeaderBytes = 24;
inline constexpr size_t kViewLeftBytes = 8;
inline constexpr size_t kViewMemberBytes = 2;

/// The members have passed encode() before.
std::vector<std::byte> encode(const DirectoryMessage& message);
/// Fails with kBadFormat, kVersion.
Result<DirectoryMessage> decode_directory_message(std::span<const std::byte> bytes);

}  // namespace fabric::kv
