#include "workloads/kv/directory_messages.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace fabric::kv {

namespace {

constexpr uint8_t kVersion = 1;
constexpr uint8_t kLastFlag = 1;
constexpr uint8_t kWarmedUpFlag = 2;
// The highest code of result.h: a seed answers with one of them.
constexpr uint8_t kErrcMax = static_cast<uint8_t>(Errc::kRailLost);

void write(ByteWriter& out, const Member& member) {
  const auto bytes = kv::encode(member);
  FABRIC_CHECK(bytes.has_value(), "a member that was not checked");
  out.u16(static_cast<uint16_t>(bytes->size()));
  out.bytes(*bytes);
}

void write(ByteWriter& out, const AnnounceMessage& message) {
  out.u32(message.number);
  write(out, message.member);
}

void write(ByteWriter& out, const AnswerMessage& message) {
  out.u32(message.number);
  out.u8(static_cast<uint8_t>(message.code));
}

void write(ByteWriter&, const LeaveMessage&) {}

void write(ByteWriter& out, const WatchMessage& message) { out.u64(message.have); }

void write(ByteWriter& out, const ViewMessage& message) {
  const int flags = (message.last ? kLastFlag : 0) | (message.warmed_up ? kWarmedUpFlag : 0);
  out.u8(static_cast<uint8_t>(flags));
  out.u8(0);
  out.u64(message.from);
  out.u64(message.upto);
  out.u16(static_cast<uint16_t>(message.left.size()));
  for (const uint64_t engine_id : message.left) out.u64(engine_id);
  out.u16(static_cast<uint16_t>(message.members.size()));
  for (const Member& member : message.members) write(out, member);
}

Member read_member(ByteReader& in) {
  const auto bytes = in.bytes(in.u16());
  if (!in.ok()) return {};
  auto member = decode_member(bytes);
  in.require(member.has_value());
  return member ? *std::move(member) : Member{};
}

AnnounceMessage read_announcement(ByteReader& in) {
  AnnounceMessage message;
  message.number = in.u32();
  message.member = read_member(in);
  return message;
}

ViewMessage read_view(ByteReader& in) {
  ViewMessage message;
  const uint8_t flags = in.u8();
  in.require(flags <= (kLastFlag | kWarmedUpFlag));
  in.require(in.u8() == 0);
  message.last = (flags & kLastFlag) != 0;
  message.warmed_up = (flags & kWarmedUpFlag) != 0;
  message.from = in.u64();
  message.upto = in.u64();
  in.require(message.from <= message.upto);
  // Nothing is reserved: the bytes that are there bound what a count can make this allocate.
  for (uint32_t left = in.u16(); left > 0 && in.ok(); --left) message.left.push_back(in.u64());
  for (uint32_t members = in.u16(); members > 0 && in.ok(); --members) {
    message.members.push_back(read_member(in));
  }
  return message;
}

AnswerMessage read_answer(ByteReader& in) {
  AnswerMessage message;
  message.number = in.u32();
  const uint8_t code = in.u8();
  in.require(code <= kErrcMax);
  message.code = static_cast<Errc>(in.ok() ? code : 0);
  return message;
}

}  // namespace

std::vector<std::byte> encode(const DirectoryMessage& message) {
  ByteWriter out;
  out.u8(kVersion);
  out.u8(static_cast<uint8_t>(message.index() + 1));
  std::visit([&](const auto& body) { write(out, body); }, message);
  return out.take();
}

Result<DirectoryMessage> decode_directory_message(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const uint8_t version = in.u8();
  const uint8_t type = in.u8();
  if (in.ok() && version != kVersion) return fail(Errc::kVersion, "directory message");
  const auto checked = [&](auto body) -> Result<DirectoryMessage> {
    in.require(in.remaining() == 0);
    if (const auto status = in.status("directory message"); !status) return status.error();
    return DirectoryMessage(std::move(body));
  };
  switch (type) {
    case 1:
      return checked(read_announcement(in));
    case 2:
      return checked(read_answer(in));
    case 3:
      return checked(LeaveMessage{});
    case 4:
      return checked(WatchMessage{in.u64()});
    case 5:
      return checked(read_view(in));
    default:
      return fail(Errc::kBadFormat, "directory message");
  }
}

}  // namespace fabric::kv
