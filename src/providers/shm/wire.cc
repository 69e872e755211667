#include "providers/shm/wire.h"

#include <algorithm>

#include "base/bytes.h"

namespace fabric::shm {

namespace {

constexpr uint8_t kVersion = 1;
// What a greeting supports: 0, kMembarrier or kCountsArrivals, which includes the former.
constexpr uint8_t kMembarrier = 1, kCountsArrivals = 3;

void put(ByteWriter& writer, const Address& address) {
  writer.u8(kVersion);
  writer.bytes(address.host);
  writer.u64(address.net_namespace);
  writer.u64(address.instance);
  writer.u32(address.user);
  writer.u8(static_cast<uint8_t>(address.directory.size()));
  writer.text(address.directory);
}

Address take_address(ByteReader& reader) {
  Address address;
  reader.require(reader.u8() == kVersion);
  const auto host = reader.bytes(address.host.size());
  if (reader.ok()) std::copy(host.begin(), host.end(), address.host.begin());
  address.net_namespace = reader.u64();
  address.instance = reader.u64();
  address.user = reader.u32();
  const uint8_t length = reader.u8();
  reader.require(length <= kDirectoryBytesMax);
  address.directory = reader.text(length);
  // An embedded zero would truncate the path.
  reader.require(address.directory.find('\0') == std::string::npos);
  reader.require(length == 0 || address.directory.front() == '/');
  return address;
}

void put_body(ByteWriter& writer, const Greeting& frame) {
  put(writer, frame.from);
  writer.u32(frame.connection);
  writer.u8(!frame.membarrier ? 0 : frame.counts_arrivals ? kCountsArrivals : kMembarrier);
  writer.u64(frame.beacon.address);
  writer.bytes(frame.beacon.value);
}
void put_body(ByteWriter&, const Datagram&) {}
void put_body(ByteWriter&, const Wake&) {}
void put_body(ByteWriter& writer, const RingReady& frame) {
  writer.u32(frame.lane);
  writer.u32(frame.path);
  writer.u32(frame.epoch_index);
  writer.u64(frame.epoch);
  writer.u8(frame.can_pull);
}
void put_body(ByteWriter& writer, const BlockRequest& frame) { writer.u64(frame.block); }
void put_body(ByteWriter& writer, const BlockReply& frame) {
  writer.u64(frame.block);
  writer.u64(frame.size_bytes);
}
void put_body(ByteWriter& writer, const BlockReleased& frame) { writer.u64(frame.block); }
void put_body(ByteWriter&, const MemoryRequest&) {}
void put_body(ByteWriter&, const MemoryReply&) {}
void put_body(ByteWriter&, const Arrivals&) {}

Greeting take_greeting(ByteReader& reader) {
  Greeting frame;
  frame.from = take_address(reader);
  frame.connection = reader.u32();
  const uint8_t support = reader.u8();
  frame.membarrier = support != 0;
  frame.counts_arrivals = support == kCountsArrivals;
  frame.beacon.address = reader.u64();
  const auto value = reader.bytes(Beacon::kBytes);
  if (reader.ok()) std::copy(value.begin(), value.end(), frame.beacon.value.begin());
  return frame;
}

RingReady take_ring(ByteReader& reader) {
  RingReady frame;
  frame.lane = reader.u32();
  frame.path = reader.u32();
  frame.epoch_index = reader.u32();
  frame.epoch = reader.u64();
  frame.can_pull = reader.u8() != 0;
  return frame;
}

/// Decodes the body that follows the type; `reader` fails on an unknown type.
void take_body(ByteReader& reader, uint8_t type, uint32_t descriptors, Frame& frame) {
  switch (type) {
    case 0:
      reader.require(descriptors == 2);
      frame.emplace<Greeting>(take_greeting(reader));
      return;
    case 1:
      reader.require(descriptors == 0);
      frame.emplace<Datagram>(Datagram{reader.rest()});
      return;
    case 2:
      reader.require(descriptors == 0);
      frame.emplace<Wake>();
      return;
    case 3:
      reader.require(descriptors == 1);
      frame.emplace<RingReady>(take_ring(reader));
      return;
    case 4:
      reader.require(descriptors == 0);
      frame.emplace<BlockRequest>(BlockRequest{reader.u64()});
      return;
    case 5: {
      reader.require(descriptors <= 1);
      BlockReply& block = frame.emplace<BlockReply>();
      block.block = reader.u64();
      block.size_bytes = reader.u64();
      return;
    }
    case 6:
      reader.require(descriptors == 0);
      frame.emplace<BlockReleased>(BlockReleased{reader.u64()});
      return;
    case 7:
      reader.require(descriptors == 0);
      frame.emplace<MemoryRequest>();
      return;
    case 8:
      reader.require(descriptors <= 1);
      frame.emplace<MemoryReply>();
      return;
    case 9:
      reader.require(descriptors == 1);
      frame.emplace<Arrivals>();
      return;
    default:
      reader.fail();
  }
}

}  // namespace

std::vector<std::byte> encode(const Address& address) {
  ByteWriter writer;
  put(writer, address);
  return writer.take();
}

Result<Address> decode_address(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Address address = take_address(reader);
  reader.require(reader.remaining() == 0);
  if (auto status = reader.status("shm address"); !status) return status.error();
  return address;
}

std::vector<std::byte> encode(const PathHello& hello) {
  ByteWriter writer;
  put(writer, hello.from);
  writer.u32(hello.lane);
  writer.u32(hello.path);
  return writer.take();
}

Result<PathHello> decode_hello(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  PathHello hello;
  hello.from = take_address(reader);
  hello.lane = reader.u32();
  hello.path = reader.u32();
  reader.require(reader.remaining() == 0);
  if (auto status = reader.status("shm hello"); !status) return status.error();
  return hello;
}

std::vector<std::byte> encode(const WireRkey& rkey) {
  ByteWriter writer;
  writer.u8(kVersion);
  writer.u32(rkey.index);
  writer.u32(rkey.generation);
  return writer.take();
}

Result<WireRkey> decode_rkey(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  reader.require(reader.u8() == kVersion);
  WireRkey rkey;
  rkey.index = reader.u32();
  rkey.generation = reader.u32();
  reader.require(reader.remaining() == 0 && rkey.generation != 0);
  if (auto status = reader.status("shm rkey"); !status) return status.error();
  return rkey;
}

std::vector<std::byte> encode(const Frame& frame) {
  ByteWriter writer;
  writer.u8(static_cast<uint8_t>(frame.index()));
  std::visit([&](const auto& body) { put_body(writer, body); }, frame);
  return writer.take();
}

Result<Frame> decode_frame(std::span<const std::byte> bytes, uint32_t descriptors) {
  ByteReader reader(bytes);
  const uint8_t type = reader.u8();
  Result<Frame> frame = Frame(Wake{});
  take_body(reader, type, descriptors, *frame);
  reader.require(reader.remaining() == 0);
  if (!reader.ok()) frame = fail(Errc::kBadFormat, "shm frame");
  return frame;
}

}  // namespace fabric::shm
