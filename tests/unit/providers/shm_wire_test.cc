#include "providers/shm/wire.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "wire/wire_helpers.h"

// Golden bytes for everything that same-host engines send to each other: two builds of the library
// may communicate on one host.

namespace fabric::shm::shm_wire_test {
namespace {

using control::Bytes;
using control::hex;
using control::to_hex;
using control::with;
using control::operator+;

Address address(std::string directory = {}) {
  Address made{.net_namespace = 0xa8a7a6a5a4a3a2a1,
               .instance = 0xb8b7b6b5b4b3b2b1,
               .user = 1000,
               .directory = std::move(directory)};
  for (size_t i = 0; i < made.host.size(); ++i) made.host[i] = static_cast<std::byte>(i);
  return made;
}

const char* const kPlainGolden =
    "01 000102030405060708090a0b0c0d0e0f"  // version, host
    "a1a2a3a4a5a6a7a8 b1b2b3b4b5b6b7b8"    // namespace, instance
    "e8030000 00";                         // user, no directory
const char* const kFileGolden =
    "01 000102030405060708090a0b0c0d0e0f a1a2a3a4a5a6a7a8 b1b2b3b4b5b6b7b8 e8030000"
    "04 2f72756e";  // "/run"
constexpr size_t kDirectoryBytesAt = 37, kDirectoryAt = 38;

Beacon beacon() {
  Beacon made{.address = 0x7f0000001234};
  made.value.fill(std::byte{0xbe});
  return made;
}

/// A frame, its bytes, and the minimum and maximum number of descriptors.
struct Sample {
  const char* name;
  Frame frame;
  Bytes golden;
  uint32_t descriptors_min = 0, descriptors_max = 0;
};

std::vector<Sample> samples() {
  return {
      {"Greeting",
       Greeting{.from = address(), .connection = 7, .membarrier = true, .beacon = beacon()},
       hex("00") + hex(kPlainGolden) +
           hex("07000000 01 34120000007f0000 bebebebebebebebebebebebebebebebe"),
       2, 2},
      {"Datagram", Datagram{}, hex("01")},
      {"Wake", Wake{}, hex("02")},
      {"RingReady",
       RingReady{.lane = 1, .path = 0x20003, .epoch_index = 5, .epoch = 0x1122, .can_pull = true},
       hex("03 01000000 03000200 05000000 2211000000000000 01"), 1, 1},
      {"BlockRequest", BlockRequest{0x99}, hex("04 9900000000000000")},
      {"Block", BlockReply{0x99, 0x200000}, hex("05 9900000000000000 0000200000000000"), 0, 1},
      {"BlockReleased", BlockReleased{0x98}, hex("06 9800000000000000")},
      {"MemoryRequest", MemoryRequest{}, hex("07")},
      {"MemoryReply", MemoryReply{}, hex("08"), 0, 1},
      {"Arrivals", Arrivals{}, hex("09"), 1, 1},
  };
}

TEST(ShmWire, AddressesHaveTheirGoldenBytes) {
  EXPECT_EQ(to_hex(encode(address())), to_hex(hex(kPlainGolden)));
  EXPECT_EQ(to_hex(encode(address("/run"))), to_hex(hex(kFileGolden)));
  EXPECT_EQ(*decode_address(hex(kPlainGolden)), address());
  EXPECT_EQ(*decode_address(hex(kFileGolden)), address("/run"));
}

TEST(ShmWire, AnAddressIsDecodedCompletelyOrNotAtAll) {
  const auto decode = [](const Bytes& bytes) { return decode_address(bytes); };
  control::expect_no_prefix_decodes(hex(kPlainGolden), decode, false);
  control::expect_no_prefix_decodes(hex(kFileGolden), decode, false);
  EXPECT_FALSE(decode_address(hex(kPlainGolden) + hex("00"))) << "trailing bytes";
  EXPECT_FALSE(decode_address(with(hex(kPlainGolden), 0, 2))) << "another version";
  EXPECT_FALSE(decode_address(with(hex(kPlainGolden), kDirectoryBytesAt, 255)));
}

TEST(ShmWire, ADirectoryIsAPathAndFitsIntoTheNameOfASocket) {
  const std::string longest = "/" + std::string(kDirectoryBytesMax - 1, 'd');
  EXPECT_EQ(decode_address(encode(address(longest)))->directory, longest);
  EXPECT_LE(encode(address(longest)).size(), 128u) << "the core's limit for an address";
  EXPECT_FALSE(decode_address(encode(address(longest + "d"))));
  for (size_t at = kDirectoryAt; at < hex(kFileGolden).size(); ++at) {
    EXPECT_FALSE(decode_address(with(hex(kFileGolden), at, 0)))
        << "a zero byte in the name at " << at;
  }
  EXPECT_FALSE(decode_address(with(hex(kFileGolden), kDirectoryAt, 'r'))) << "a relative one";
}

TEST(ShmWire, HellosHaveTheirGoldenBytes) {
  const Bytes golden = hex(kFileGolden) + hex("02000000 03000100");
  const PathHello hello{.from = address("/run"), .lane = 2, .path = 0x10003};
  EXPECT_EQ(to_hex(encode(hello)), to_hex(golden));
  const auto decoded = decode_hello(golden);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->from, hello.from);
  EXPECT_EQ(decoded->lane, hello.lane);
  EXPECT_EQ(decoded->path, hello.path);
  control::expect_no_prefix_decodes(
      golden, [](const Bytes& b) { return decode_hello(b); }, false);
  EXPECT_FALSE(decode_hello(golden + hex("00")));
  EXPECT_FALSE(decode_hello(with(golden, 0, 0)));
}

TEST(ShmWire, RkeysHaveTheirGoldenBytes) {
  const Bytes golden = hex("01 05000000 03000000");
  EXPECT_EQ(to_hex(encode(WireRkey{.index = 5, .generation = 3})), to_hex(golden));
  const auto decoded = decode_rkey(golden);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->index, 5u);
  EXPECT_EQ(decoded->generation, 3u);
  control::expect_no_prefix_decodes(
      golden, [](const Bytes& b) { return decode_rkey(b); }, false);
  EXPECT_FALSE(decode_rkey(golden + hex("00")));
  EXPECT_FALSE(decode_rkey(with(golden, 0, 2)));
  EXPECT_FALSE(decode_rkey(with(golden, 5, 0, 4))) << "generation 0 is invalid";
}

TEST(ShmWire, FramesHaveTheirGoldenBytes) {
  for (const Sample& sample : samples()) {
    EXPECT_EQ(to_hex(encode(sample.frame)), to_hex(sample.golden)) << sample.name;
    EXPECT_LE(sample.golden.size(), kFrameHeadBytesMax) << sample.name;
    const auto decoded = decode_frame(sample.golden, sample.descriptors_max);
    ASSERT_TRUE(decoded) << sample.name;
    EXPECT_EQ(decoded->index(), sample.frame.index()) << sample.name;
    EXPECT_EQ(to_hex(encode(*decoded)), to_hex(sample.golden)) << sample.name;
  }
}

TEST(ShmWire, EverySampleIsThere) {
  const auto all = samples();
  ASSERT_EQ(all.size(), std::variant_size_v<Frame>);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].frame.index(), i) << all[i].name;
}

TEST(ShmWire, AFrameIsDecodedCompletelyOrNotAtAll) {
  for (const Sample& sample : samples()) {
    const auto decode = [&](const Bytes& bytes) {
      return decode_frame(bytes, sample.descriptors_max);
    };
    control::expect_no_prefix_decodes(sample.golden, decode, false);
    if (std::holds_alternative<Datagram>(sample.frame)) continue;  // whatever follows is its own
    EXPECT_FALSE(decode(sample.golden + hex("00"))) << sample.name;
  }
  for (uint32_t type = std::variant_size_v<Frame>; type < 256; ++type) {
    EXPECT_FALSE(decode_frame(with(hex("00"), 0, type), 0)) << type;
  }
}

TEST(ShmWire, TheNumberOfDescriptorsIsPartOfTheFormat) {
  for (const Sample& sample : samples()) {
    for (uint32_t count = 0; count <= kDescriptorsMax + 1; ++count) {
      const bool right = count >= sample.descriptors_min && count <= sample.descriptors_max;
      EXPECT_EQ(decode_frame(sample.golden, count).has_value(), right) << sample.name << count;
    }
  }
}

TEST(ShmWire, ADatagramIsTheRestOfItsFrame) {
  const Bytes frame = hex("01 c0ffee");
  const auto decoded = decode_frame(frame, 0);
  ASSERT_TRUE(decoded);
  const auto bytes = std::get<Datagram>(*decoded).bytes;
  EXPECT_EQ(bytes.data(), frame.data() + 1) << "borrowed";
  EXPECT_EQ(to_hex(bytes), "c0ffee");
}

// Versions that know only membarrier take any other byte than 0 for it.
TEST(ShmWire, OneByteOfAGreetingSaysWhatTheSenderSupports) {
  const auto golden = [](const char* support) {
    return hex("00") + hex(kPlainGolden) + hex("07000000") + hex(support) +
           hex("34120000007f0000 bebebebebebebebebebebebebebebebe");
  };
  struct Support {
    bool membarrier, counts_arrivals;
    const char* byte;
  };
  for (const Support& one :
       {Support{false, false, "00"}, Support{true, false, "01"}, Support{true, true, "03"}}) {
    const Greeting greeting{.from = address(),
                            .connection = 7,
                            .membarrier = one.membarrier,
                            .counts_arrivals = one.counts_arrivals,
                            .beacon = beacon()};
    EXPECT_EQ(to_hex(encode(Frame(greeting))), to_hex(golden(one.byte)));
    const auto decoded = decode_frame(golden(one.byte), 2);
    ASSERT_TRUE(decoded);
    EXPECT_EQ(std::get<Greeting>(*decoded).membarrier, one.membarrier);
    EXPECT_EQ(std::get<Greeting>(*decoded).counts_arrivals, one.counts_arrivals);
  }
  const Greeting alone{
      .from = address(), .connection = 7, .counts_arrivals = true, .beacon = beacon()};
  EXPECT_EQ(to_hex(encode(Frame(alone))), to_hex(golden("00"))) << "not without membarrier";
}

TEST(ShmWire, AGreetingWithAnInvalidAddressIsRejected) {
  const Bytes golden = samples()[0].golden;
  EXPECT_FALSE(decode_frame(with(golden, 1, 2), 2)) << "another version";
  EXPECT_FALSE(decode_frame(with(golden, 1 + kDirectoryBytesAt, 4), 2))
      << "directory length beyond the frame";
  EXPECT_FALSE(decode_frame(with(golden, 1 + kDirectoryBytesAt, 200), 2));
}

}  // namespace
}  // namespace fabric::shm::shm_wire_test
