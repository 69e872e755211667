#include "control/address.h"

#include <gtest/gtest.h>

#include "wire/samples.h"
#include "wire/wire_helpers.h"

namespace fabric::control::address_test {
namespace {

const char* const kGolden =
    "46414241 01 00 0000 52000000"                 // FABA 1.0, 82 bytes
    "0100 1000 8877665544332211 0807060504030201"  // identity: engine, incarnation
    "0200 1300 03 73696d 04 66617374"              // network: "sim", "fast",
    "02 01 03000000 0200 6e31"                     // 2 rails, local fence, kinds, "n1"
    "0200 1700 03 746370 04 736c6f77"              // network: "tcp", "slow",
    "08 00 01000000 0600 686f73743a37";            // 8 rails, no fence, host, "host:7"
constexpr size_t kIdentityAt = 12, kNetworkAt = 32;

// A section of an unknown type, with three bytes.
const Bytes kUnknownSection = hex("ff7f 0300 010203");

TEST(AddressWire, HasItsGoldenBytes) {
  EXPECT_EQ(to_hex(encode(samples::address())), to_hex(hex(kGolden)));
  const auto decoded = decode_address(hex(kGolden));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, samples::address());
}

// Cutting at the end of a section leaves a shorter address that is complete in itself: the length
// in front is what finds it.
TEST(AddressWire, RefusesEveryPrefix) {
  const Bytes whole = hex(kGolden);
  for (size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    const auto decoded = decode_address(cut);
    ASSERT_FALSE(decoded) << size;
    EXPECT_EQ(decoded.error().code, Errc::kBadFormat) << size;
    EXPECT_STREQ(decoded.error().what, "address");
    const bool section_ends = size == kNetworkAt || size == kNetworkAt + 4 + 0x13;
    if (size < 12) continue;
    EXPECT_EQ(decode_address(with_length(cut)).has_value(), section_ends) << size;
  }
}

TEST(AddressWire, RefusesAnotherMajorByName) {
  for (const uint64_t major : {0, 2, 255}) {
    EXPECT_EQ(decode_address(with(hex(kGolden), kMajorAt, major)).error().code, Errc::kVersion);
  }
  EXPECT_EQ(decode_address(with(hex(kGolden), 0, 'X')).error().code, Errc::kBadFormat);
}

TEST(AddressWire, TakesANewerMinorWithMoreInASection) {
  // Two bytes more at the end of the last section.
  const Bytes longer = with_length(with(hex(kGolden) + hex("abcd"), 57, 0x19));
  EXPECT_EQ(decode_address(longer).error().code, Errc::kBadFormat);
  const auto decoded = decode_address(with(longer, kMinorAt, 1));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, samples::address());
}

TEST(AddressWire, SkipsUnknownSections) {
  const Bytes whole = hex(kGolden);
  const auto network = whole.begin() + kNetworkAt;
  const Bytes mixed = Bytes(whole.begin(), network) + kUnknownSection + Bytes(network, whole.end());
  const auto decoded = decode_address(with_length(mixed));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, samples::address());
}

TEST(AddressWire, RefusesBytesAfterItsLength) {
  EXPECT_FALSE(decode_address(hex(kGolden) + hex("00")));
  EXPECT_FALSE(decode_address(with(hex(kGolden) + hex("00"), kMinorAt, 1)));
}

TEST(AddressWire, RefusesFieldsOutOfRange) {
  const Bytes whole = hex(kGolden);
  const auto code = [](const Bytes& bytes) { return decode_address(bytes).error().code; };
  EXPECT_EQ(code(with(whole, kTypeAt, 1, 2)), Errc::kBadFormat);
  EXPECT_EQ(code(with(whole, kIdentityAt + 4, 0, 8)), Errc::kBadFormat) << "engine id 0";
  EXPECT_EQ(code(with(whole, kIdentityAt + 12, 0, 8)), Errc::kBadFormat) << "incarnation 0";
  EXPECT_EQ(code(with(whole, kIdentityAt, 2, 2)), Errc::kBadFormat) << "no identity";
  EXPECT_EQ(code(with(whole, kNetworkAt + 5, '\n')), Errc::kBadFormat) << "name does not print";
  EXPECT_EQ(code(with(whole, kNetworkAt + 5, 0x80)), Errc::kBadFormat) << "name is not ASCII";
  const size_t rails_at = kNetworkAt + 13;
  for (const uint64_t rails : {0, 9, 255}) {
    EXPECT_EQ(code(with(whole, rails_at, rails)), Errc::kBadFormat) << rails;
  }
  EXPECT_EQ(code(with(whole, rails_at + 1, 4)), Errc::kBadFormat) << "fence kind";
  EXPECT_EQ(code(with(whole, rails_at + 2, 8)), Errc::kBadFormat) << "memory kind";
  const auto newer = decode_address(with(with(whole, rails_at + 2, 0xf9), kMinorAt, 3));
  ASSERT_TRUE(newer) << "a newer version may have more memory kinds";
  EXPECT_EQ(newer->networks[0].memory_kinds, 1u);
}

TEST(AddressWire, RefusesEmptyAndOverlongNames) {
  const Bytes head =
      hex("46414241 01 00 0000 00000000 0100 1000 0100000000000000 0100000000000000");
  const auto network = [&](size_t name_bytes) {
    const Bytes body = hex("03 73696d") + Bytes{static_cast<std::byte>(name_bytes)} +
                       Bytes(name_bytes, std::byte{'n'}) + hex("01 00 01000000 0000");
    return decode_address(
        with_length(head + hex("0200") + with(Bytes(2), 0, body.size(), 2) + body));
  };
  EXPECT_FALSE(network(0));
  EXPECT_TRUE(network(1));
  EXPECT_TRUE(network(kNameBytesMax));
  EXPECT_FALSE(network(kNameBytesMax + 1));
}

TEST(AddressWire, BoundsNetworksAndTheirAddresses) {
  Address most = samples::address();
  most.networks.assign(kNetworksMax, most.networks[0]);
  most.networks[0].address.assign(128, std::byte{7});
  const Bytes full = encode(most);
  const auto decoded = decode_address(full);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, most);

  const Bytes one_more(full.end() - 0x17, full.end());  // a copy of the last section
  EXPECT_FALSE(decode_address(with_length(full + one_more)));
  const Bytes too_long = hex("0200 9100 03 73696d 04 66617374 01 00 01000000 8100") + Bytes(129);
  const Bytes head(full.begin(), full.begin() + kNetworkAt);
  EXPECT_FALSE(decode_address(with_length(head + too_long)));
}

TEST(AddressWire, RefusesASecondIdentity) {
  const Bytes whole = hex(kGolden);
  const Bytes identity(whole.begin() + kIdentityAt, whole.begin() + kNetworkAt);
  EXPECT_FALSE(decode_address(with_length(whole + identity)));
}

TEST(AddressText, HasItsGoldenText) {
  EXPECT_EQ(address_to_text(hex("00ff10")), "fabric1:AP8Q");
  const auto bytes = address_from_text("fabric1:AP8Q");
  ASSERT_TRUE(bytes);
  EXPECT_EQ(*bytes, hex("00ff10"));
}

TEST(AddressText, TellsAnotherVersionFromNonsense) {
  for (const char* text : {"fabric2:AP8Q", "fabric10:AP8Q", "fabric0:"}) {
    EXPECT_EQ(address_from_text(text).error().code, Errc::kVersion) << text;
  }
  for (const char* text : {"", "fabric1", "fabric:AP8Q", "fabrik1:AP8Q", "fabric1:AP9", ":", "1:AA",
                           "fabric1:AP8Q ", "fabric-offer1:AP8Q", "fabric1a:AP8Q"}) {
    EXPECT_EQ(address_from_text(text).error().code, Errc::kBadFormat) << text;
    EXPECT_STREQ(address_from_text(text).error().what, "address");
  }
}

}  // namespace
}  // namespace fabric::control::address_test
