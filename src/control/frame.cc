#include <algorithm>

#include "base/check.h"
#include "control/format.h"
#include "control/keyed_hash.h"
#include "control/message.h"

namespace fabric::control {

namespace {

constexpr Format kFrameFormat{magic("FABM"), 1, 0, "frame"};
constexpr uint32_t kMacOffset = kFrameHeaderBytes - kMacBytes;
static_assert(kMacOffset == kPrologueBytes + 4 + 5 * 8, "reserved, two sessions, seq, ack, bits");

constexpr Mac kNoMac{};

/// A decoded frame, not yet authenticated or checked.
struct Parsed {
  Frame frame{};
  Mac mac{};
  uint32_t reserved = 0;
};

Result<Parsed> open_frame(std::span<const std::byte> datagram) {
  auto opened = read_prologue(datagram, kFrameFormat);
  if (!opened) return opened.error();
  ByteReader& in = opened->rest;
  Parsed out;
  out.reserved = in.u32();
  Header& header = out.frame.header;
  header.type = static_cast<MessageType>(opened->type);
  header.to_session = in.u64();
  header.from_session = in.u64();
  header.seq = in.u64();
  header.ack = in.u64();
  header.ack_bits = in.u64();
  const auto found = in.bytes(kMacBytes);
  std::copy(found.begin(), found.end(), out.mac.begin());
  out.frame.body = Body(in.rest(), opened->newer_minor);
  if (const auto status = in.status(kFrameFormat.what); !status) return status.error();
  return out;
}

Result<Frame> checked(const Parsed& opened) {
  const Header& header = opened.frame.header;
  const bool good = (opened.frame.body.newer_minor || opened.reserved == 0) &&
                    to_string(header.type)[0] != '?' &&
                    is_numbered(header.type) == (header.seq != 0);
  if (!good) return fail(Errc::kBadFormat, kFrameFormat.what);
  return opened.frame;
}

}  // namespace

const char* to_string(MessageType type) noexcept {
  switch (type) {
    case MessageType::kHello:
      return "Hello";
    case MessageType::kWelcome:
      return "Welcome";
    case MessageType::kReady:
      return "Ready";
    case MessageType::kReject:
      return "Reject";
    case MessageType::kBye:
      return "Bye";
    case MessageType::kAck:
      return "Ack";
    case MessageType::kPing:
      return "Ping";
    case MessageType::kPong:
      return "Pong";
    case MessageType::kPathOpen:
      return "PathOpen";
    case MessageType::kPathAnswer:
      return "PathAnswer";
    case MessageType::kPathDrained:
      return "PathDrained";
    case MessageType::kPathClose:
      return "PathClose";
    case MessageType::kMessage:
      return "Message";
    case MessageType::kMessageDone:
      return "MessageDone";
    case MessageType::kResolve:
      return "Resolve";
    case MessageType::kResolved:
      return "Resolved";
    case MessageType::kRevokeRegion:
      return "RevokeRegion";
    case MessageType::kRegionRevoked:
      return "RegionRevoked";
    case MessageType::kFence:
      return "Fence";
    case MessageType::kFenced:
      return "Fenced";
    case MessageType::kRevokeKey:
      return "RevokeKey";
    case MessageType::kKeyRevoked:
      return "KeyRevoked";
    case MessageType::kAbortKey:
      return "AbortKey";
    case MessageType::kMessagePart:
      return "MessagePart";
  }
  return "?";
}

std::vector<std::byte> encode_frame(const Header& header, std::span<const std::byte> body,
                                    std::string_view job_key) {
  FABRIC_CHECK(is_numbered(header.type) == (header.seq != 0));
  ByteWriter out;
  write_prologue(out, kFrameFormat, static_cast<uint16_t>(header.type),
                 kFrameHeaderBytes + body.size());
  out.u32(0);
  out.u64(header.to_session);
  out.u64(header.from_session);
  out.u64(header.seq);
  out.u64(header.ack);
  out.u64(header.ack_bits);
  out.bytes(keyed_hash(job_key, {out.view(), kNoMac, body}));
  out.bytes(body);
  return out.take();
}

Result<Frame> decode_frame(std::span<const std::byte> datagram, std::string_view job_key) {
  auto opened = open_frame(datagram);
  if (!opened) return opened.error();
  // Before any field is trusted. Without a job key the hash is zero, which a keyed frame never has.
  const Mac expected =
      keyed_hash(job_key, {datagram.first(kMacOffset), kNoMac, opened->frame.body});
  if (!equal(opened->mac, expected)) return fail(Errc::kWrongJob, kFrameFormat.what);
  return checked(*opened);
}

Result<Frame> peek_frame(std::span<const std::byte> datagram) {
  auto opened = open_frame(datagram);
  if (!opened) return opened.error();
  return checked(*opened);
}

}  // namespace fabric::control
