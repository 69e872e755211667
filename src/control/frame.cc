#include <algorithm>

#include "base/check.h"
#include "control/format.h"
#include "control/keyed_hash.h"
#include "control/message.h"

namespace fabric::control {

namespace {

constexpr Format kFormat{magic("FABM"), 1, 0, "frame"};
constexpr uint32_t kMacOffset = kFrameHeaderBytes - kMacBytes;
static_assert(kMacOffset == kPrologueBytes + 4 + 5 * 8, "reserved, two sessions, seq, ack, bits");

constexpr Mac kNoMac{};

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
    case MessageType::kPathState:
      return "PathState";
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
  }
  return "?";
}

std::vector<std::byte> encode_frame(const Header& header, std::span<const std::byte> body,
                                    std::string_view job_key) {
  FABRIC_CHECK(is_numbered(header.type) == (header.seq != 0));
  ByteWriter out;
  write_prologue(out, kFormat, static_cast<uint16_t>(header.type), kFrameHeaderBytes + body.size());
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
  auto opened = read_prologue(datagram, kFormat);
  if (!opened) return opened.error();
  ByteReader& in = opened->rest;
  const uint32_t reserved = in.u32();
  Frame frame;
  frame.header.type = static_cast<MessageType>(opened->type);
  frame.header.to_session = in.u64();
  frame.header.from_session = in.u64();
  frame.header.seq = in.u64();
  frame.header.ack = in.u64();
  frame.header.ack_bits = in.u64();
  Mac mac{};
  const auto found = in.bytes(kMacBytes);
  std::copy(found.begin(), found.end(), mac.begin());
  frame.body = Body(in.rest(), opened->newer_minor);
  if (const auto status = in.status(kFormat.what); !status) return status.error();

  // Before anything is believed. Without a key the hash is zero, which a keyed frame never is.
  if (!equal(mac, keyed_hash(job_key, {datagram.first(kMacOffset), kNoMac, frame.body}))) {
    return fail(Errc::kWrongJob, kFormat.what);
  }
  in.require(opened->newer_minor || reserved == 0);
  in.require(to_string(frame.header.type)[0] != '?');
  in.require(is_numbered(frame.header.type) == (frame.header.seq != 0));
  if (const auto status = in.status(kFormat.what); !status) return status.error();
  return frame;
}

}  // namespace fabric::control
