#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "control/address.h"
#include "control/descriptor.h"
#include "control/message.h"

// One sample of each format, with every field set and no two fields alike. The golden bytes and the
// seeds of the fuzzers are made of these.

namespace fabric::control::samples {

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto view = std::as_bytes(std::span(text.data(), text.size()));
  return {view.begin(), view.end()};
}

inline Address address() {
  return {0x1122334455667788,
          0x0102030405060708,
          {{"sim", "fast", 2, FenceKind::kLocal, 0b011, bytes_of("n1")},
           {"tcp", "slow", 8, FenceKind::kNone, 0b001, bytes_of("host:7")}}};
}

inline RegionDesc desc() {
  return {
      0x1122334455667788, 0x0102030405060708,
      RegionId(5, 9),     1u << 20,
      MemoryKind::kCuda,  3,
      0xaabbccdd,         17,
      0xf1f2f3f4f5f6f7f8, {{"fast", {bytes_of("k0"), bytes_of("k01")}}, {"slow", {bytes_of("")}}}};
}

inline OfferParts offer() {
  return {bytes_of("address"), bytes_of("desc"), CounterKey::from_wire(0x123)};
}

inline Header header(MessageType type) {
  return {type, 0xa1a2a3a4a5a6a7a8, 0xb1b2b3b4b5b6b7b8, is_numbered(type) ? 7u : 0u, 5, 0x8001};
}

inline Hello hello() {
  return {address(),      0x99, 65536,         32, 300'000'000'000, 5'000'000'000,
          30'000'000'000, true, "model=m;tp=8"};
}
inline Reject reject() { return {Errc::kWrongJob, 0x0102030405060708}; }
inline Bye bye() { return {Errc::kPeerLost}; }
inline PathOpen path_open() { return {0x21, "sim", "fast", 1, 7, bytes_of("qp")}; }
inline PathAnswer path_answer() { return {0x21, Errc::kUnreachable, bytes_of("no")}; }
inline constexpr std::string_view kMessageText = "hi there";
inline UserMessage user_message() {
  return {0x31, 0x0203, std::as_bytes(std::span(kMessageText.data(), kMessageText.size()))};
}
inline MessagePart message_part() {
  return {0x32, 0x0204, 0x00012345, 0x00004000, user_message().bytes};
}
inline Done done() { return {0x41, Errc::kUnsupported}; }
inline ResolveNames resolve() { return {0x51, {0x1000, 0xffffffffffffffff}}; }
inline ResolvedNames resolved() { return {0x51, Errc::kOk, {1, 0x0fffffff}}; }
inline RevokeRegion revoke_region() { return {0x61, RegionId(5, 9), 17}; }
inline FenceRequest fence() { return {0x71}; }
inline RevokeKey revoke_key() { return {0x81, 0x0fedcba9}; }
inline AbortKey abort_key() { return {0x0fedcba9, Errc::kTimeout}; }

inline Ping ping() { return {0x0102030405060708}; }
inline PathClose path_close() { return {0x91}; }
inline PathDrained path_drained() { return {0xa1, true, 0x1112131415161718}; }

/// Every type with a body, encoded.
struct Sample {
  MessageType type;
  std::vector<std::byte> body;
};
inline std::vector<Sample> messages() {
  using T = MessageType;
  return {{T::kHello, encode(hello())},
          {T::kWelcome, encode(hello())},
          {T::kReady, {}},
          {T::kReject, encode(reject())},
          {T::kBye, encode(bye())},
          {T::kAck, {}},
          {T::kPing, encode(ping())},
          {T::kPong, encode(ping())},
          {T::kPathOpen, encode(path_open())},
          {T::kPathAnswer, encode(path_answer())},
          {T::kPathDrained, encode(path_drained())},
          {T::kPathClose, encode(path_close())},
          {T::kMessage, encode(user_message())},
          {T::kMessageDone, encode(done())},
          {T::kResolve, encode(resolve())},
          {T::kResolved, encode(resolved())},
          {T::kRevokeRegion, encode(revoke_region())},
          {T::kRegionRevoked, encode(done())},
          {T::kFence, encode(fence())},
          {T::kFenced, encode(done())},
          {T::kRevokeKey, encode(revoke_key())},
          {T::kKeyRevoked, encode(done())},
          {T::kAbortKey, encode(abort_key())},
          {T::kMessagePart, encode(message_part())}};
}

}  // namespace fabric::control::samples
