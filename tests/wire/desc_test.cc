#include <gtest/gtest.h>

#include "base/base64.h"
#include "control/descriptor.h"
#include "wire/samples.h"
#include "wire/wire_helpers.h"

namespace fabric::control::desc_test {
namespace {

const char* const kGolden =
    "46414244 01 00 0000 65000000"                 // FABD 1.0, 101 bytes
    "0100 3900 8877665544332211 0807060504030201"  // region: owner and incarnation,
    "05000000 09000000 0000100000000000"           // slot, generation, 1 MiB,
    "01 03000000 ddccbbaa00000000 11000000"        // CUDA 3, granted to, grant 17,
    "f8f7f6f5f4f3f2f1"                             // in this session
    "0200 0d00 04 66617374 02 02 6b30 03 6b3031"   // network "fast": two rkeys
    "0200 0700 04 736c6f77 01 00";                 // network "slow": one empty rkey
constexpr size_t kRegionAt = 12, kNetworkAt = 73;

TEST(DescWire, HasItsGoldenBytes) {
  const auto encoded = encode(samples::desc());
  ASSERT_TRUE(encoded);
  EXPECT_EQ(to_hex(*encoded), to_hex(hex(kGolden)));
  const auto decoded = decode_desc(hex(kGolden));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, samples::desc());
}

TEST(DescWire, RefusesEveryPrefix) {
  const Bytes whole = hex(kGolden);
  for (size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    const auto decoded = decode_desc(cut);
    ASSERT_FALSE(decoded) << size;
    EXPECT_EQ(decoded.error().code, Errc::kBadFormat) << size;
    EXPECT_STREQ(decoded.error().what, "desc");
    const bool section_ends = size == kNetworkAt || size == kNetworkAt + 4 + 0x0d;
    if (size < 12) continue;
    EXPECT_EQ(decode_desc(with_length(cut)).has_value(), section_ends) << size;
  }
}

TEST(DescWire, RefusesAnotherMajorByName) {
  EXPECT_EQ(decode_desc(with(hex(kGolden), kMajorAt, 2)).error().code, Errc::kVersion);
  EXPECT_EQ(decode_desc(with(hex(kGolden), kMajorAt, 0)).error().code, Errc::kVersion);
}

TEST(DescWire, TakesANewerMinorWithMoreInASection) {
  const Bytes longer = with_length(with(hex(kGolden) + hex("abcd"), kNetworkAt + 0x11 + 2, 9));
  EXPECT_EQ(decode_desc(longer).error().code, Errc::kBadFormat);
  const auto decoded = decode_desc(with(longer, kMinorAt, 1));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, samples::desc());
}

TEST(DescWire, SkipsUnknownSections) {
  const auto decoded = decode_desc(with_length(hex(kGolden) + hex("0300 0100 ff")));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, samples::desc());
}

TEST(DescWire, RefusesFieldsOutOfRange) {
  const Bytes whole = hex(kGolden);
  const size_t body = kRegionAt + 4;
  const auto refused = [](const Bytes& bytes) {
    return decode_desc(bytes).error().code == Errc::kBadFormat;
  };
  EXPECT_TRUE(refused(with(whole, kTypeAt, 1, 2)));
  EXPECT_TRUE(refused(with(whole, kRegionAt, 9, 2))) << "no region section";
  EXPECT_TRUE(refused(with(whole, body, 0, 8))) << "owner 0";
  EXPECT_TRUE(refused(with(whole, body + 8, 0, 8))) << "incarnation 0";
  EXPECT_TRUE(refused(with(whole, body + 20, 0, 4))) << "generation 0";
  EXPECT_TRUE(refused(with(whole, body + 32, 3))) << "memory kind";
  EXPECT_TRUE(refused(with(whole, body + 33, 0xfffffffe, 4))) << "device -2";
  EXPECT_FALSE(refused(with(whole, body + 33, 0xffffffff, 4))) << "device -1";
  EXPECT_TRUE(refused(with(whole, body + 37, 0, 8))) << "a grant without a peer";
  EXPECT_TRUE(refused(with(whole, body + 45, 0, 4))) << "a grant with number 0";
  EXPECT_TRUE(refused(with(whole, kNetworkAt + 4, 0))) << "empty name";
  EXPECT_TRUE(refused(with(whole, kNetworkAt + 9, 0))) << "no rails";
  EXPECT_TRUE(refused(with(whole, kNetworkAt + 9, 9))) << "nine rails";
}

TEST(DescWire, BoundsTheBytesOfAKey) {
  RegionDesc desc = samples::desc();
  desc.networks = {{"fast", {Bytes(32, std::byte{1})}}};
  const auto longest = encode(desc);
  ASSERT_TRUE(longest);
  EXPECT_EQ(*decode_desc(*longest), desc);
  const Bytes longer = with(with(*longest + hex("01"), kNetworkAt + 2, 0x28), kNetworkAt + 10, 33);
  EXPECT_FALSE(decode_desc(with_length(longer)));
}

TEST(DescWire, DoesNotFitBeyondItsBound) {
  RegionDesc desc = samples::desc();
  // 73 bytes up to the networks; a section of one network takes 10 bytes and 33 a rail.
  desc.networks = {{"wide", std::vector<Bytes>(8, Bytes(32))},
                   {"more", std::vector<Bytes>(4, Bytes(32))}};
  desc.networks[1].rail_keys.push_back(Bytes(512 - 73 - 2 * 10 - 12 * 33 - 1));
  const auto fits = encode(desc);
  ASSERT_TRUE(fits);
  EXPECT_EQ(fits->size(), MemoryRegion::kDescBytesMax);
  EXPECT_EQ(*decode_desc(*fits), desc);

  desc.networks[1].rail_keys.back().push_back(std::byte{0});
  const auto too_large = encode(desc);
  ASSERT_FALSE(too_large);
  EXPECT_EQ(too_large.error().code, Errc::kTooLarge);
  EXPECT_FALSE(decode_desc(with_length(*fits + hex("0900 0000"))))
      << "an unknown section must respect the limit too";
}

const char* const kOfferGolden =
    "4641424f 01 00 0000 27000000"  // FABO 1.0, 39 bytes
    "0100 0700 61646472657373"      // the address
    "0200 0400 64657363"            // the descriptor
    "0300 0400 23010000";           // the rkey

std::string offer_text(const Bytes& bytes) { return "fabric-offer1:" + base64url_encode(bytes); }

TEST(OfferWire, HasItsGoldenText) {
  EXPECT_EQ(encode_offer(samples::offer()), offer_text(hex(kOfferGolden)));
  EXPECT_EQ(encode_offer(samples::offer()),
            "fabric-offer1:RkFCTwEAAAAnAAAAAQAHAGFkZHJlc3MCAAQAZGVzYwMABAAjAQAA");
  const auto decoded = decode_offer(encode_offer(samples::offer()));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->address, samples::offer().address);
  EXPECT_EQ(decoded->desc, samples::offer().desc);
  EXPECT_EQ(decoded->key, samples::offer().key);
}

TEST(OfferWire, RefusesEveryPrefix) {
  expect_no_prefix_decodes(
      hex(kOfferGolden), [](const Bytes& cut) { return decode_offer(offer_text(cut)); }, true);
  const std::string whole = encode_offer(samples::offer());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(decode_offer(whole.substr(0, size)).error().code, Errc::kBadFormat) << size;
  }
}

TEST(OfferWire, TellsAnotherVersionFromNonsense) {
  EXPECT_EQ(decode_offer("fabric-offer2:AAAA").error().code, Errc::kVersion);
  EXPECT_EQ(decode_offer("fabric1:AAAA").error().code, Errc::kBadFormat);
  EXPECT_EQ(decode_offer("fabric-offer1:AAAA").error().code, Errc::kBadFormat);
  const auto major = decode_offer(offer_text(with(hex(kOfferGolden), kMajorAt, 2)));
  EXPECT_EQ(major.error().code, Errc::kVersion);
  EXPECT_STREQ(major.error().what, "offer");
}

TEST(OfferWire, TakesANewerMinorAndUnknownSections) {
  const Bytes longer = with_length(with(hex(kOfferGolden) + hex("ee"), 33, 5));
  EXPECT_FALSE(decode_offer(offer_text(longer)));
  EXPECT_TRUE(decode_offer(offer_text(with(longer, kMinorAt, 9))));
  EXPECT_TRUE(decode_offer(offer_text(with_length(hex(kOfferGolden) + hex("0900 0100 01")))));
}

TEST(OfferWire, RefusesFieldsOutOfRange) {
  const Bytes whole = hex(kOfferGolden);
  EXPECT_FALSE(decode_offer(offer_text(with(whole, 35, 0x10000000, 4)))) << "29 bits";
  EXPECT_TRUE(decode_offer(offer_text(with(whole, 35, 0x0fffffff, 4))));
  EXPECT_TRUE(decode_offer(offer_text(with(whole, 35, 0, 4)))) << "no counter";
  EXPECT_FALSE(decode_offer(offer_text(with(whole, 12, 2, 2)))) << "two descriptors";
  EXPECT_FALSE(decode_offer(offer_text(with(whole, 12, 9, 2)))) << "no address";
}

}  // namespace
}  // namespace fabric::control::desc_test
