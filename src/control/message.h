#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/result.h>
#include <fabric/types.h>

#include "control/address.h"

// Control messages between engines, out of band of the writes. One message per datagram. The
// network may lose, duplicate and reorder them; `Header::seq` numbers those that must arrive
// (reliable.h).
//
// Everything is little-endian. A frame is magic, major, minor, type, length (format.h), a reserved
// zero, sessions, seq, ack, ack bits, a 16-byte keyed hash over all of it (zero without a job key),
// then the body. A newer minor may append fields to a body; they are ignored. Another major is
// refused with kVersion.

namespace fabric::control {

enum class MessageType : uint16_t {
  // Handshake and liveness: not numbered, repeated by their own timers.
  kHello = 1,
  kWelcome = 2,
  kReady = 3,
  kReject = 4,
  kBye = 5,
  kAck = 6,
  kPing = 7,
  kPong = 8,
  // Numbered, retransmitted, delivered once.
  kPathOpen = 16,
  kPathAnswer = 17,
  kPathDrained = 18,  ///< the target's end of a path is down and drained: what it received
  kPathClose = 19,  ///< the sender's end is down: the target closes its end and sends kPathDrained
  kMessage = 20,
  kMessageDone = 21,
  kResolve = 22,
  kResolved = 23,
  kRevokeRegion = 24,
  kRegionRevoked = 25,
  kFence = 26,
  kFenced = 27,
  kRevokeKey = 28,
  kKeyRevoked = 29,
  kAbortKey = 30,
  kMessagePart = 31,  ///< of a message that is larger than kMessageWholeMax
};

const char* to_string(MessageType type) noexcept;
constexpr bool is_numbered(MessageType type) noexcept { return static_cast<uint16_t>(type) >= 16; }

struct Header {
  MessageType type = MessageType::kHello;
  uint64_t to_session = 0;    ///< the receiver's; 0 in a first hello
  uint64_t from_session = 0;  ///< the sender's
  uint64_t seq = 0;           ///< 0: not numbered
  uint64_t ack = 0;           ///< every number up to here has arrived
  uint64_t ack_bits = 0;      ///< bit i: ack + 2 + i has arrived

  bool operator==(const Header&) const = default;
};

inline constexpr uint32_t kFrameHeaderBytes = 72;
inline constexpr uint32_t kAppInfoBytesMax = 1024;
inline constexpr uint32_t kNamesPerMessageMax = 1024;
/// A larger message goes in parts: only to peers that announced that they accept larger ones.
inline constexpr uint32_t kMessageWholeMax = 64u << 10;
inline constexpr uint32_t kMessageBytesMax = 1u << 20;

/// The bytes after the header. A newer minor may have appended fields; otherwise bytes after the
/// known fields are an error.
struct Body : std::span<const std::byte> {
  using std::span<const std::byte>::span;
  Body(std::span<const std::byte> bytes, bool newer = false) noexcept
      : std::span<const std::byte>(bytes), newer_minor(newer) {}
  bool newer_minor = false;
};

/// A parsed datagram; `body` points into it.
struct Frame {
  Header header{};
  Body body{};
};

std::vector<std::byte> encode_frame(const Header& header, std::span<const std::byte> body,
                                    std::string_view job_key);
/// Fails with kBadFormat, kVersion, kWrongJob (the keyed hash does not fit).
Result<Frame> decode_frame(std::span<const std::byte> datagram, std::string_view job_key);
/// The same without authentication: any field may be forged. Only for telling a sender of another
/// job that the job keys differ.
Result<Frame> peek_frame(std::span<const std::byte> datagram);

/// The body of kHello and kWelcome.
struct Hello {
  Address address{};               ///< of the sender
  uint64_t to_incarnation = 0;     ///< the incarnation of the receiver that is meant
  uint32_t message_bytes_max = 0;  ///< largest message that the sender accepts
  uint32_t message_credits = 0;    ///< unacknowledged messages per channel that it accepts
  int64_t timeout_max_ns = 0;      ///< the longest time-out of its writes ...
  int64_t drain_ns = 0;            ///< ... and of their drain
  int64_t lost_ns = 0;             ///< the silence after which the sender declares a peer lost
  bool is_inline = false;          ///< makes progress only inside calls of its application
  std::string app_info{};

  bool operator==(const Hello&) const = default;
};
struct Reject {
  Errc code = Errc::kOk;
  uint64_t incarnation = 0;  ///< of the engine that rejects
  bool operator==(const Reject&) const = default;
};
struct Bye {
  Errc code = Errc::kOk;  ///< kPeerLost: closed; others are reasons
  bool operator==(const Bye&) const = default;
};
/// The body of kPing and kPong. The stamp shows when the ping was sent: a pong that waited in a
/// buffer while its receiver was stopped is recognised as old.
struct Ping {
  uint64_t stamp = 0;  ///< send time by the pinging engine's clock; kPong returns it
  bool operator==(const Ping&) const = default;
};
struct PathOpen {
  uint32_t ref = 0;  ///< the sender's number for the path
  std::string provider{};
  std::string network{};
  uint8_t rail = 0;         ///< of the sender
  uint8_t remote_rail = 0;  ///< of the receiver
  std::vector<std::byte> hello{};
  bool operator==(const PathOpen&) const = default;
};
struct PathAnswer {
  uint32_t ref = 0;
  Errc code = Errc::kOk;
  std::vector<std::byte> answer{};
  bool operator==(const PathAnswer&) const = default;
};
struct PathClose {
  uint32_t ref = 0;
  bool operator==(const PathClose&) const = default;
};
struct PathDrained {
  uint32_t ref = 0;
  bool exact = false;  ///< `imms_received` is final: no write can land through this path any more
  uint64_t imms_received = 0;  ///< immediates received, stale ones included
  bool operator==(const PathDrained&) const = default;
};
struct UserMessage {
  uint32_t ref = 0;
  uint16_t channel = 0;
  std::span<const std::byte> bytes{};  ///< points into the datagram
};
/// A part of a message. Parts are numbered control messages and are processed in the order of their
/// numbers, so each continues where the one before it ended; messages of other channels may come
/// in between. Without bytes: the sender withdraws the message, and no reply is sent.
struct MessagePart {
  uint32_t ref = 0;  ///< of the message
  uint16_t channel = 0;
  uint32_t total_bytes = 0;  ///< kMessageWholeMax < total_bytes <= kMessageBytesMax
  uint32_t offset = 0;
  std::span<const std::byte> bytes{};  ///< points into the datagram
};
/// The body of replies that are only a code: kMessageDone, kRegionRevoked, kFenced, kKeyRevoked.
struct Done {
  uint32_t ref = 0;
  Errc code = Errc::kOk;
  bool operator==(const Done&) const = default;
};
struct ResolveNames {
  uint32_t ref = 0;
  std::vector<uint64_t> names{};  ///< 1..kNamesPerMessageMax
  bool operator==(const ResolveNames&) const = default;
};
struct ResolvedNames {
  uint32_t ref = 0;
  Errc code = Errc::kOk;
  std::vector<uint32_t> keys{};  ///< one per name; empty unless ok
  bool operator==(const ResolvedNames&) const = default;
};
struct RevokeRegion {
  uint32_t ref = 0;
  RegionId region{};
  uint32_t grant = 0;  ///< 0: the region, every grant included
  bool operator==(const RevokeRegion&) const = default;
};
struct FenceRequest {
  uint32_t ref = 0;
  bool operator==(const FenceRequest&) const = default;
};
struct RevokeKey {
  uint32_t ref = 0;
  uint32_t key = 0;
  bool operator==(const RevokeKey&) const = default;
};
struct AbortKey {
  uint32_t key = 0;
  Errc code = Errc::kOk;
  bool operator==(const AbortKey&) const = default;
};

std::vector<std::byte> encode(const Hello& body);
std::vector<std::byte> encode(const Reject& body);
std::vector<std::byte> encode(const Bye& body);
std::vector<std::byte> encode(const Ping& body);
std::vector<std::byte> encode(const PathOpen& body);
std::vector<std::byte> encode(const PathAnswer& body);
std::vector<std::byte> encode(const PathClose& body);
std::vector<std::byte> encode(const PathDrained& body);
std::vector<std::byte> encode(const UserMessage& body);
std::vector<std::byte> encode(const MessagePart& body);
std::vector<std::byte> encode(const Done& body);
std::vector<std::byte> encode(const ResolveNames& body);
std::vector<std::byte> encode(const ResolvedNames& body);
std::vector<std::byte> encode(const RevokeRegion& body);
std::vector<std::byte> encode(const FenceRequest& body);
std::vector<std::byte> encode(const RevokeKey& body);
std::vector<std::byte> encode(const AbortKey& body);

/// Each fails with kBadFormat when the body is cut short or a field is out of its range.
Result<Hello> decode_hello(const Body& body);
Result<Reject> decode_reject(const Body& body);
Result<Bye> decode_bye(const Body& body);
Result<Ping> decode_ping(const Body& body);
Result<PathOpen> decode_path_open(const Body& body);
Result<PathAnswer> decode_path_answer(const Body& body);
Result<PathClose> decode_path_close(const Body& body);
Result<PathDrained> decode_path_drained(const Body& body);
Result<UserMessage> decode_user_message(const Body& body);
Result<MessagePart> decode_message_part(const Body& body);
Result<Done> decode_done(const Body& body);
Result<ResolveNames> decode_resolve(const Body& body);
Result<ResolvedNames> decode_resolved(const Body& body);
Result<RevokeRegion> decode_revoke_region(const Body& body);
Result<FenceRequest> decode_fence(const Body& body);
Result<RevokeKey> decode_revoke_key(const Body& body);
Result<AbortKey> decode_abort_key(const Body& body);

}  // namespace fabric::control
