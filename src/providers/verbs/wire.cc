#include "providers/verbs/wire.h"

#include <algorithm>

#include "base/bytes.h"

namespace fabric::verbs {

namespace {

constexpr uint8_t kVersion = 1;
constexpr uint8_t kAddressTag = 0xa1, kHelloTag = 0xa2, kAnswerTag = 0xa3, kKeyTag = 0xa4;
constexpr uint32_t kFragmentMagic = 0x46425656;  // "VVBF"

void begin(ByteWriter& writer, uint8_t tag) {
  writer.u8(tag);
  writer.u8(kVersion);
}

void expect(ByteReader& reader, uint8_t tag) {
  reader.require(reader.u8() == tag);
  reader.require(reader.u8() == kVersion);
}

void put(ByteWriter& writer, const GidBytes& gid) { writer.bytes(std::as_bytes(std::span(gid))); }

GidBytes take_gid(ByteReader& reader) {
  GidBytes gid{};
  const auto bytes = reader.bytes(gid.size());
  std::transform(bytes.begin(), bytes.end(), gid.begin(),
                 [](std::byte b) { return static_cast<uint8_t>(b); });
  return gid;
}

void put(ByteWriter& writer, const Endpoint& end) {
  writer.u64(end.nonce);
  writer.u32(end.queue_pair);
  writer.u32(end.psn);
  put(writer, end.gid);
  writer.u16(end.lid);
  writer.u8(end.mtu);
  writer.u8(end.grh);
}

Endpoint take_endpoint(ByteReader& reader) {
  Endpoint end;
  end.nonce = reader.u64();
  end.queue_pair = reader.u32();
  end.psn = reader.u32();
  end.gid = take_gid(reader);
  end.lid = reader.u16();
  end.mtu = reader.u8();
  const uint8_t grh = reader.u8();
  end.grh = grh != 0;
  reader.require(end.nonce != 0 && grh <= 1);
  reader.require(end.queue_pair != 0 && end.queue_pair <= kQpnPsnMax && end.psn <= kQpnPsnMax);
  reader.require(end.mtu >= 1 && end.mtu <= 5);
  // It must have a GID or a LID.
  reader.require(end.grh ? !is_zero(end.gid) : end.lid != 0);
  return end;
}

template <class T>
Result<T> whole(const ByteReader& reader, T value, const char* what) {
  if (!reader.ok() || reader.remaining() != 0) return fail(Errc::kBadFormat, what);
  return value;
}

}  // namespace

std::vector<std::byte> encode(const Address& address) {
  ByteWriter writer(OpenNetwork::kAddressBytesMax);
  begin(writer, kAddressTag);
  writer.u64(address.instance);
  writer.u8(address.rails);
  writer.u8(static_cast<uint8_t>(address.control.size()));
  for (const ControlAddress& one : address.control) {
    put(writer, one.ip);
    writer.u16(one.port);
  }
  return writer.take();
}

Result<Address> decode_address(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  expect(reader, kAddressTag);
  Address address;
  address.instance = reader.u64();
  address.rails = reader.u8();
  const uint8_t count = reader.u8();
  reader.require(address.instance != 0);
  reader.require(address.rails >= 1 && address.rails <= kRailsMax);
  reader.require(count >= 1 && count <= kControlAddressesMax);
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    ControlAddress one{.ip = take_gid(reader)};
    one.port = reader.u16();
    reader.require(!is_zero(one.ip) && one.port != 0);
    address.control.push_back(one);
  }
  return whole(reader, std::move(address), "verbs: address");
}

std::vector<std::byte> encode(const PathHello& hello) {
  ByteWriter writer;
  begin(writer, kHelloTag);
  writer.u64(hello.from);
  writer.u64(hello.to);
  writer.u8(hello.to_rail);
  put(writer, hello.end);
  return writer.take();
}

Result<PathHello> decode_hello(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  expect(reader, kHelloTag);
  PathHello hello;
  hello.from = reader.u64();
  hello.to = reader.u64();
  hello.to_rail = reader.u8();
  hello.end = take_endpoint(reader);
  reader.require(hello.from != 0 && hello.to_rail < kRailsMax);
  return whole(reader, hello, "verbs: hello");
}

std::vector<std::byte> encode(const PathAnswer& answer) {
  ByteWriter writer;
  begin(writer, kAnswerTag);
  writer.u64(answer.hello_nonce);
  put(writer, answer.end);
  return writer.take();
}

Result<PathAnswer> decode_answer(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  expect(reader, kAnswerTag);
  PathAnswer answer;
  answer.hello_nonce = reader.u64();
  answer.end = take_endpoint(reader);
  return whole(reader, answer, "verbs: answer");
}

std::vector<std::byte> encode(const WireKey& key) {
  ByteWriter writer(Rail::kWireRkeyBytesMax);
  begin(writer, kKeyTag);
  writer.u32(key.key);
  writer.u32(key.base);
  return writer.take();
}

Result<WireKey> decode_key(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  expect(reader, kKeyTag);
  WireKey key;
  key.key = reader.u32();
  key.base = reader.u32();
  reader.require(key.base <= WireKey::kBaseMax);
  return whole(reader, key, "verbs: key");
}

std::array<std::byte, DatagramPartHead::kBytes> encode(const DatagramPartHead& head) {
  ByteWriter writer;
  writer.u32(kFragmentMagic);
  writer.u64(head.from);
  writer.u32(head.number);
  writer.u16(head.index);
  writer.u16(head.count);
  writer.u8(head.address_index);
  std::array<std::byte, DatagramPartHead::kBytes> bytes{};
  std::copy(writer.view().begin(), writer.view().end(), bytes.begin());
  return bytes;
}

Result<DatagramPartHead> decode_datagram_part(std::span<const std::byte> bytes) {
  ByteReader reader(bytes.first(std::min<size_t>(bytes.size(), DatagramPartHead::kBytes)));
  reader.require(reader.u32() == kFragmentMagic);
  DatagramPartHead head;
  head.from = reader.u64();
  head.number = reader.u32();
  head.index = reader.u16();
  head.count = reader.u16();
  head.address_index = reader.u8();
  reader.require(head.from != 0 && head.index < head.count &&
                 head.address_index < kControlAddressesMax);
  return whole(reader, head, "verbs: datagram part");
}

}  // namespace fabric::verbs
