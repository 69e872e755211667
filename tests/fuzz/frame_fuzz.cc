#include <algorithm>

#include "control/message.h"
#include "fuzz/fuzz_helpers.h"

using namespace fabric;
using namespace fabric::control;

namespace {

template <class T>
void try_body(const Body& body, Result<T> (*decode)(const Body&)) {
  const Result<T> value = decode(body);
  if (!value) return;
  fuzz::expect_same_again(
      *value, [](const T& v) { return encode(v); },
      [&](const Body& bytes) { return decode(bytes); });
}

void try_user_message(const Body& body) {
  const auto message = decode_user_message(body);
  if (!message) return;
  const auto encoded = encode(*message);
  const auto again = decode_user_message(encoded);
  FABRIC_CHECK(again.has_value());
  FABRIC_CHECK(again->ref == message->ref && again->channel == message->channel);
  FABRIC_CHECK(std::ranges::equal(again->bytes, message->bytes));
}

void try_message_part(const Body& body) {
  const auto part = decode_message_part(body);
  if (!part) return;
  const auto encoded = encode(*part);
  const auto again = decode_message_part(encoded);
  FABRIC_CHECK(again.has_value());
  FABRIC_CHECK(again->ref == part->ref && again->channel == part->channel);
  FABRIC_CHECK(again->total_bytes == part->total_bytes && again->offset == part->offset);
  FABRIC_CHECK(std::ranges::equal(again->bytes, part->bytes));
}

void try_type(MessageType type, const Body& body) {
  switch (type) {
    case MessageType::kHello:
    case MessageType::kWelcome:
      return try_body(body, decode_hello);
    case MessageType::kReject:
      return try_body(body, decode_reject);
    case MessageType::kBye:
      return try_body(body, decode_bye);
    case MessageType::kPathOpen:
      return try_body(body, decode_path_open);
    case MessageType::kPathAnswer:
      return try_body(body, decode_path_answer);
    case MessageType::kPathDrained:
      return try_body(body, decode_path_drained);
    case MessageType::kPathClose:
      return try_body(body, decode_path_close);
    case MessageType::kPing:
    case MessageType::kPong:
      return try_body(body, decode_ping);
    case MessageType::kMessage:
      return try_user_message(body);
    case MessageType::kMessageDone:
    case MessageType::kRegionRevoked:
    case MessageType::kFenced:
    case MessageType::kKeyRevoked:
      return try_body(body, decode_done);
    case MessageType::kResolve:
      return try_body(body, decode_resolve);
    case MessageType::kResolved:
      return try_body(body, decode_resolved);
    case MessageType::kRevokeRegion:
      return try_body(body, decode_revoke_region);
    case MessageType::kFence:
      return try_body(body, decode_fence);
    case MessageType::kRevokeKey:
      return try_body(body, decode_revoke_key);
    case MessageType::kAbortKey:
      return try_body(body, decode_abort_key);
    case MessageType::kMessagePart:
      return try_message_part(body);
    case MessageType::kReady:
    case MessageType::kAck:
      return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto datagram = fuzz::input(data, size);
  const auto frame = decode_frame(datagram, "");
  FABRIC_CHECK(!decode_frame(datagram, "a key").has_value(), "a forged hash fits");
  // A frame of another job is only inspected without its job key; that must be as safe.
  if (const auto seen = peek_frame(datagram)) try_type(seen->header.type, seen->body);
  if (!frame) return 0;

  const auto encoded = encode_frame(frame->header, frame->body, "a key");
  const auto again = decode_frame(encoded, "a key");
  FABRIC_CHECK(again.has_value());
  FABRIC_CHECK(again->header == frame->header && std::ranges::equal(again->body, frame->body));
  try_type(frame->header.type, frame->body);
  return 0;
}
