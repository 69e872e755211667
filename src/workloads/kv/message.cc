#include "workloads/kv/message.h"

#include <utility>

#include "base/bytes.h"

namespace fabric::kv::wire {
namespace {

constexpr uint8_t kMagic = 0x4b;  // 'K'

ByteWriter begin_message(MessageKind kind, uint16_t channel) {
  ByteWriter out;
  out.u8(kMagic);
  out.u8(kVersion);
  out.u8(static_cast<uint8_t>(kind));
  out.u16(channel);
  return out;
}

/// A reader after the head, which decode_head() has checked.
ByteReader message_body(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  in.bytes(5);
  return in;
}

template <class T>
Result<T> complete(const ByteReader& in, T value, const char* what) {
  if (!in.ok() || in.remaining() != 0) return fail(Errc::kBadFormat, what);
  return value;
}

void write_load(ByteWriter& out, const PrefillLoad& load) {
  out.u32(load.requests);
  out.u32(load.requests_max);
  out.u64(load.queued);
}

PrefillLoad read_load(ByteReader& in) {
  PrefillLoad load;
  load.requests = in.u32();
  load.requests_max = in.u32();
  load.queued = in.u64();
  return load;
}

uint32_t count_runs(std::span<const uint32_t> ids) {
  uint32_t runs = 0;
  for (size_t i = 0; i < ids.size(); ++i) runs += i == 0 || ids[i] != ids[i - 1] + 1;
  return runs;
}

/// As runs of consecutive ids (8 bytes each) when that is shorter than the ids (4 bytes each).
void write_pages(ByteWriter& out, const GroupPages& pages) {
  const std::vector<uint32_t>& ids = pages.ids;
  const uint32_t runs = count_runs(ids);
  const bool as_runs = uint64_t{runs} * 2 < ids.size();
  out.u32(pages.first);
  out.u8(as_runs ? 1 : 0);
  out.u32(as_runs ? runs : static_cast<uint32_t>(ids.size()));
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (as_runs && end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    out.u32(ids[i]);
    if (as_runs) out.u32(static_cast<uint32_t>(end - i));
    i = end;
  }
}

/// `left`: entries that the message may still hold, so that a short message of long runs cannot
/// make its reader allocate without bound.
GroupPages read_pages(ByteReader& in, uint64_t& left) {
  GroupPages pages;
  pages.first = in.u32();
  const uint8_t as_runs = in.u8();
  const uint32_t entries = in.u32();
  in.require(as_runs <= 1 && entries <= in.remaining() / (as_runs != 0 ? 8 : 4));
  for (uint32_t i = 0; i < entries && in.ok(); ++i) {
    const uint32_t first = in.u32();
    const uint32_t count = as_runs != 0 ? in.u32() : 1;
    in.require(count > 0 && count <= left && first <= UINT32_MAX - (count - 1));
    if (!in.ok()) break;
    left -= count;
    for (uint32_t k = 0; k < count; ++k) pages.ids.push_back(first + k);
  }
  return pages;
}

void write_numbers(ByteWriter& out, std::span<const uint32_t> numbers) {
  out.u32(static_cast<uint32_t>(numbers.size()));
  for (const uint32_t number : numbers) out.u32(number);
}

std::vector<uint32_t> read_numbers(ByteReader& in, uint32_t most) {
  const uint32_t count = in.u32();
  in.require(count <= most && count <= in.remaining() / 4);
  std::vector<uint32_t> numbers;
  if (!in.ok()) return numbers;
  numbers.reserve(count);
  for (uint32_t i = 0; i < count; ++i) numbers.push_back(in.u32());
  return numbers;
}

}  // namespace

std::vector<std::byte> encode_hello(uint16_t channel, const Hello& hello) {
  ByteWriter out = begin_message(MessageKind::kHello, channel);
  out.u64(hello.next_serial);
  out.bytes(hello.layout);
  return out.take();
}

std::vector<std::byte> encode_grants(uint16_t channel, const Grants& grants) {
  ByteWriter out = begin_message(MessageKind::kGrants, channel);
  out.u32(grants.set);
  out.u32(grants.generation);
  out.u32(grants.total);
  out.u32(grants.first);
  out.u8(static_cast<uint8_t>((grants.has_tail ? 1 : 0) | (grants.has_staging ? 2 : 0)));
  out.u32(static_cast<uint32_t>(grants.descs.size()));
  for (const auto desc : grants.descs) {
    out.u16(static_cast<uint16_t>(desc.size()));
    out.bytes(desc);
  }
  return out.take();
}

std::vector<std::byte> encode_dispatch(uint16_t channel, const Dispatch& dispatch) {
  ByteWriter out = begin_message(MessageKind::kDispatch, channel);
  out.u64(dispatch.serial);
  out.u16(static_cast<uint16_t>(dispatch.id.size()));
  out.text(dispatch.id);
  out.u32(dispatch.attempt);
  out.u8(static_cast<uint8_t>((dispatch.per_layer ? 1 : 0) | (dispatch.wants_quiet ? 2 : 0) |
                              (dispatch.has_tail ? 4 : 0)));
  out.u64(dispatch.plan_hash);
  out.u32(dispatch.prompt_tokens);
  out.u32(dispatch.set);
  out.u32(dispatch.set_generation);
  out.u64(dispatch.tail_offset);
  out.u64(dispatch.tail_bytes_max);
  write_numbers(out, dispatch.cached_tokens);
  write_numbers(out, dispatch.counter_keys);
  out.u64(dispatch.staging_record_bytes);
  write_pages(out, dispatch.staging_records);
  out.u32(static_cast<uint32_t>(dispatch.pages.size()));
  for (const GroupPages& pages : dispatch.pages) write_pages(out, pages);
  out.u32(static_cast<uint32_t>(dispatch.info.size()));
  out.bytes(dispatch.info);
  return out.take();
}

std::vector<std::byte> encode_cancel(uint16_t channel, uint64_t serial) {
  ByteWriter out = begin_message(MessageKind::kCancel, channel);
  out.u64(serial);
  return out.take();
}

std::vector<std::byte> encode_accept(uint16_t channel, const Answer& answer) {
  ByteWriter out = begin_message(MessageKind::kAccept, channel);
  out.u64(answer.serial);
  write_load(out, answer.load);
  return out.take();
}

std::vector<std::byte> encode_refuse(uint16_t channel, const Refuse& refuse) {
  ByteWriter out = begin_message(MessageKind::kRefuse, channel);
  out.u64(refuse.serial);
  write_load(out, refuse.load);
  out.u8(static_cast<uint8_t>(refuse.code));
  const std::string_view text = std::string_view(refuse.text).substr(0, kRefuseTextMax);
  out.u16(static_cast<uint16_t>(text.size()));
  out.text(text);
  return out.take();
}

std::vector<std::byte> encode_ended(uint16_t channel, MessageKind kind, const Ended& ended) {
  ByteWriter out = begin_message(kind, channel);
  out.u64(ended.serial);
  out.u64(ended.landed);
  out.u64(ended.unknown);
  return out.take();
}

std::vector<std::byte> encode_quiet(uint16_t channel, uint64_t serial, uint64_t unknown) {
  ByteWriter out = begin_message(MessageKind::kQuiet, channel);
  out.u64(serial);
  out.u64(unknown);
  return out.take();
}

Result<MessageHead> decode_head(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const uint8_t magic = in.u8();
  const uint8_t version = in.u8();
  const uint8_t kind = in.u8();
  const uint16_t channel = in.u16();
  if (!in.ok() || magic != kMagic) return fail(Errc::kBadFormat, "message");
  if (version != kVersion) return fail(Errc::kVersion, "message", version);
  if (kind < static_cast<uint8_t>(MessageKind::kHello) ||
      kind > static_cast<uint8_t>(MessageKind::kQuiet)) {
    return fail(Errc::kBadFormat, "message: unknown kind", kind);
  }
  return MessageHead{static_cast<MessageKind>(kind), channel};
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  ByteReader in = message_body(bytes);
  Hello hello;
  hello.next_serial = in.u64();
  in.require(hello.next_serial > 0);
  hello.layout = in.rest();
  return complete(in, hello, "hello");
}

Result<Grants> decode_grants(std::span<const std::byte> bytes) {
  ByteReader in = message_body(bytes);
  Grants grants;
  grants.set = in.u32();
  grants.generation = in.u32();
  grants.total = in.u32();
  grants.first = in.u32();
  const uint8_t flags = in.u8();
  grants.has_tail = (flags & 1) != 0;
  grants.has_staging = (flags & 2) != 0;
  const uint32_t besides = (grants.has_tail ? 1 : 0) + (grants.has_staging ? 1 : 0);
  const uint32_t count = in.u32();
  in.require(flags < 4 && grants.set < kGrantSetsMax && grants.total > 0 &&
             grants.total <= kRegionsMax + besides && count > 0 && grants.first < grants.total &&
             count <= grants.total - grants.first);
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    const uint16_t size = in.u16();
    in.require(size <= MemoryRegion::kDescBytesMax);
    grants.descs.push_back(in.bytes(size));
  }
  return complete(in, std::move(grants), "grants");
}

Result<Dispatch> decode_dispatch(std::span<const std::byte> bytes, uint64_t pages_max) {
  ByteReader in = message_body(bytes);
  Dispatch dispatch;
  dispatch.serial = in.u64();
  const uint16_t id_bytes = in.u16();
  in.require(id_bytes > 0 && id_bytes <= kRequestIdBytesMax);
  dispatch.id = std::string(in.text(id_bytes));
  dispatch.attempt = in.u32();
  const uint8_t flags = in.u8();
  in.require(flags < 8);
  dispatch.per_layer = (flags & 1) != 0;
  dispatch.wants_quiet = (flags & 2) != 0;
  dispatch.has_tail = (flags & 4) != 0;
  dispatch.plan_hash = in.u64();
  dispatch.prompt_tokens = in.u32();
  dispatch.set = in.u32();
  dispatch.set_generation = in.u32();
  dispatch.tail_offset = in.u64();
  dispatch.tail_bytes_max = in.u64();
  dispatch.cached_tokens = read_numbers(in, kGroupsMax);
  // All groups together have no more layers than this.
  dispatch.counter_keys = read_numbers(in, kGroupsMax * kLayersMax + 1);
  dispatch.staging_record_bytes = in.u64();
  in.require(dispatch.staging_record_bytes <= kStagingRecordBytesMax);
  uint64_t left = pages_max;
  dispatch.staging_records = read_pages(in, left);
  const uint32_t groups = in.u32();
  in.require(groups <= kGroupsMax);
  left = pages_max;
  for (uint32_t i = 0; i < groups && in.ok(); ++i) dispatch.pages.push_back(read_pages(in, left));
  const uint32_t info_bytes = in.u32();
  in.require(info_bytes <= kInfoBytesMax);
  const auto info = in.bytes(info_bytes);
  dispatch.info.assign(info.begin(), info.end());
  return complete(in, std::move(dispatch), "dispatch");
}

Result<uint64_t> decode_cancel(std::span<const std::byte> bytes) {
  ByteReader in = message_body(bytes);
  const uint64_t serial = in.u64();
  return complete(in, serial, "cancel");
}

Result<Answer> decode_accept(std::span<const std::byte> bytes) {
  ByteReader in = message_body(bytes);
  Answer answer;
  answer.serial = in.u64();
  answer.load = read_load(in);
  return complete(in, answer, "accept");
}

Result<Refuse> decode_refuse(std::span<const std::byte> bytes) {
  ByteReader in = message_body(bytes);
  Refuse refuse;
  refuse.serial = in.u64();
  refuse.load = read_load(in);
  const uint8_t code = in.u8();
  in.require(code <= static_cast<uint8_t>(RefuseCode::kUnknownDecoder));
  refuse.code = static_cast<RefuseCode>(code);
  const uint16_t size = in.u16();
  in.require(size <= kRefuseTextMax);
  refuse.text = std::string(in.text(size));
  return complete(in, std::move(refuse), "refuse");
}

Result<Ended> decode_ended(std::span<const std::byte> bytes) {
  ByteReader in = message_body(bytes);
  Ended ended;
  ended.serial = in.u64();
  ended.landed = in.u64();
  ended.unknown = in.u64();
  return complete(in, ended, "ended");
}

Result<Ended> decode_quiet(std::span<const std::byte> bytes) {
  ByteReader in = message_body(bytes);
  Ended ended;
  ended.serial = in.u64();
  ended.unknown = in.u64();
  return complete(in, ended, "quiet");
}

}  // namespace fabric::kv::wire
