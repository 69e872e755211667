#include "control/message.h"

#include "base/check.h"
#include "control/format.h"

namespace fabric::control {

namespace {

/// The decoded body, or kBadFormat.
template <class T>
Result<T> finish(ByteReader& in, const Body& body, T&& value, const char* what) {
  read_end(in, body.newer_minor);
  if (const auto status = in.status(what); !status) return status.error();
  return std::forward<T>(value);
}

}  // namespace

std::vector<std::byte> encode(const Reject& body) {
  ByteWriter out;
  out.u8(static_cast<uint8_t>(body.code));
  out.u64(body.incarnation);
  return out.take();
}

Result<Reject> decode_reject(const Body& body) {
  ByteReader in(body);
  Reject reject;
  reject.code = read_errc(in);
  in.require(reject.code != Errc::kOk);
  reject.incarnation = in.u64();
  return finish(in, body, std::move(reject), "reject");
}

std::vector<std::byte> encode(const Bye& body) {
  ByteWriter out;
  out.u8(static_cast<uint8_t>(body.code));
  return out.take();
}

Result<Bye> decode_bye(const Body& body) {
  ByteReader in(body);
  Bye bye;
  bye.code = read_errc(in);
  return finish(in, body, std::move(bye), "bye");
}

std::vector<std::byte> encode(const Ping& body) {
  ByteWriter out;
  out.u64(body.stamp);
  return out.take();
}

Result<Ping> decode_ping(const Body& body) {
  ByteReader in(body);
  Ping ping;
  ping.stamp = in.u64();
  return finish(in, body, std::move(ping), "ping");
}

std::vector<std::byte> encode(const PathOpen& body) {
  FABRIC_CHECK(body.rail < kRailsMax && body.remote_rail < kRailsMax);
  ByteWriter out;
  out.u32(body.ref);
  write_name(out, body.provider);
  write_name(out, body.network);
  out.u8(body.rail);
  out.u8(body.remote_rail);
  write_blob(out, body.hello);
  return out.take();
}

Result<PathOpen> decode_path_open(const Body& body) {
  ByteReader in(body);
  PathOpen open;
  open.ref = in.u32();
  open.provider = read_name(in);
  open.network = read_name(in);
  open.rail = in.u8();
  open.remote_rail = in.u8();
  in.require(open.rail < kRailsMax && open.remote_rail < kRailsMax);
  open.hello = read_blob(in, body.size());
  return finish(in, body, std::move(open), "path open");
}

std::vector<std::byte> encode(const PathAnswer& body) {
  ByteWriter out;
  out.u32(body.ref);
  out.u8(static_cast<uint8_t>(body.code));
  write_blob(out, body.answer);
  return out.take();
}

Result<PathAnswer> decode_path_answer(const Body& body) {
  ByteReader in(body);
  PathAnswer answer;
  answer.ref = in.u32();
  answer.code = read_errc(in);
  answer.answer = read_blob(in, body.size());
  return finish(in, body, std::move(answer), "path answer");
}

std::vector<std::byte> encode(const PathClose& body) {
  ByteWriter out;
  out.u32(body.ref);
  return out.take();
}

Result<PathClose> decode_path_close(const Body& body) {
  ByteReader in(body);
  PathClose close;
  close.ref = in.u32();
  return finish(in, body, std::move(close), "path close");
}

std::vector<std::byte> encode(const PathDrained& body) {
  ByteWriter out;
  out.u32(body.ref);
  out.u8(body.exact ? 1 : 0);
  out.u64(body.imms_received);
  return out.take();
}

Result<PathDrained> decode_path_drained(const Body& body) {
  ByteReader in(body);
  PathDrained state;
  state.ref = in.u32();
  const uint8_t exact = in.u8();
  in.require(exact <= 1);
  state.exact = exact == 1;
  state.imms_received = in.u64();
  return finish(in, body, std::move(state), "path drained");
}

std::vector<std::byte> encode(const UserMessage& body) {
  FABRIC_CHECK(body.bytes.size() <= UINT32_MAX);
  ByteWriter out;
  out.u32(body.ref);
  out.u16(body.channel);
  out.u32(static_cast<uint32_t>(body.bytes.size()));
  out.bytes(body.bytes);
  return out.take();
}

Result<UserMessage> decode_user_message(const Body& body) {
  ByteReader in(body);
  UserMessage message;
  message.ref = in.u32();
  message.channel = in.u16();
  message.bytes = in.bytes(in.u32());
  return finish(in, body, std::move(message), "message");
}

std::vector<std::byte> encode(const MessagePart& body) {
  FABRIC_CHECK(body.offset <= body.total_bytes &&
               body.bytes.size() <= body.total_bytes - body.offset);
  ByteWriter out;
  out.u32(body.ref);
  out.u16(body.channel);
  out.u32(body.total_bytes);
  out.u32(body.offset);
  out.u32(static_cast<uint32_t>(body.bytes.size()));
  out.bytes(body.bytes);
  return out.take();
}

Result<MessagePart> decode_message_part(const Body& body) {
  ByteReader in(body);
  MessagePart part;
  part.ref = in.u32();
  part.channel = in.u16();
  part.total_bytes = in.u32();
  in.require(part.total_bytes > kMessageWholeMax && part.total_bytes <= kMessageBytesMax);
  part.offset = in.u32();
  in.require(part.offset <= part.total_bytes);
  part.bytes = in.bytes(in.u32());
  in.require(part.bytes.size() <= part.total_bytes - part.offset);
  return finish(in, body, std::move(part), "message part");
}

std::vector<std::byte> encode(const Done& body) {
  ByteWriter out;
  out.u32(body.ref);
  out.u8(static_cast<uint8_t>(body.code));
  return out.take();
}

Result<Done> decode_done(const Body& body) {
  ByteReader in(body);
  Done done;
  done.ref = in.u32();
  done.code = read_errc(in);
  return finish(in, body, std::move(done), "done");
}

std::vector<std::byte> encode(const ResolveNames& body) {
  FABRIC_CHECK(!body.names.empty() && body.names.size() <= kNamesPerMessageMax);
  ByteWriter out;
  out.u32(body.ref);
  out.u16(static_cast<uint16_t>(body.names.size()));
  for (const uint64_t name : body.names) out.u64(name);
  return out.take();
}

Result<ResolveNames> decode_resolve(const Body& body) {
  ByteReader in(body);
  ResolveNames resolve;
  resolve.ref = in.u32();
  const uint16_t count = in.u16();
  in.require(count >= 1 && count <= kNamesPerMessageMax && in.remaining() >= count * 8u);
  if (in.ok()) resolve.names.reserve(count);
  for (uint32_t i = 0; i < count && in.ok(); ++i) resolve.names.push_back(in.u64());
  return finish(in, body, std::move(resolve), "resolve");
}

std::vector<std::byte> encode(const ResolvedNames& body) {
  FABRIC_CHECK((body.code == Errc::kOk) == !body.keys.empty());
  FABRIC_CHECK(body.keys.size() <= kNamesPerMessageMax);
  ByteWriter out;
  out.u32(body.ref);
  out.u8(static_cast<uint8_t>(body.code));
  out.u16(static_cast<uint16_t>(body.keys.size()));
  for (const uint32_t key : body.keys) out.u32(key);
  return out.take();
}

Result<ResolvedNames> decode_resolved(const Body& body) {
  ByteReader in(body);
  ResolvedNames resolved;
  resolved.ref = in.u32();
  resolved.code = read_errc(in);
  const uint16_t count = in.u16();
  in.require((resolved.code == Errc::kOk) == (count != 0));
  in.require(count <= kNamesPerMessageMax && in.remaining() >= count * 4u);
  if (in.ok()) resolved.keys.reserve(count);
  for (uint32_t i = 0; i < count && in.ok(); ++i) resolved.keys.push_back(read_key(in));
  return finish(in, body, std::move(resolved), "resolved");
}

std::vector<std::byte> encode(const RevokeRegion& body) {
  ByteWriter out;
  out.u32(body.ref);
  out.u32(body.region.slot);
  out.u32(body.region.generation);
  out.u32(body.grant);
  return out.take();
}

Result<RevokeRegion> decode_revoke_region(const Body& body) {
  ByteReader in(body);
  RevokeRegion revoke;
  revoke.ref = in.u32();
  revoke.region.slot = in.u32();
  revoke.region.generation = in.u32();
  in.require(revoke.region.generation != 0);
  revoke.grant = in.u32();
  return finish(in, body, std::move(revoke), "revoke region");
}

std::vector<std::byte> encode(const FenceRequest& body) {
  ByteWriter out;
  out.u32(body.ref);
  return out.take();
}

Result<FenceRequest> decode_fence(const Body& body) {
  ByteReader in(body);
  FenceRequest fence;
  fence.ref = in.u32();
  return finish(in, body, std::move(fence), "fence");
}

std::vector<std::byte> encode(const RevokeKey& body) {
  ByteWriter out;
  out.u32(body.ref);
  out.u32(body.key);
  return out.take();
}

Result<RevokeKey> decode_revoke_key(const Body& body) {
  ByteReader in(body);
  RevokeKey revoke;
  revoke.ref = in.u32();
  revoke.key = read_key(in);
  return finish(in, body, std::move(revoke), "revoke key");
}

std::vector<std::byte> encode(const AbortKey& body) {
  ByteWriter out;
  out.u32(body.key);
  out.u8(static_cast<uint8_t>(body.code));
  return out.take();
}

Result<AbortKey> decode_abort_key(const Body& body) {
  ByteReader in(body);
  AbortKey abort;
  abort.key = read_key(in);
  abort.code = read_errc(in);
  in.require(abort.code != Errc::kOk);
  return finish(in, body, std::move(abort), "abort key");
}

}  // namespace fabric::control
