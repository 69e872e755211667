#include "control/keyed_hash.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fabric::control::keyed_hash_test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(KeyedHash, IsZeroWithoutAKey) {
  EXPECT_EQ(keyed_hash("", {bytes_of("anything")}), Mac{});
  EXPECT_NE(keyed_hash("k", {bytes_of("anything")}), Mac{});
}

TEST(KeyedHash, TakesKeysOfAnyLength) {
  std::vector<Mac> seen;
  for (const size_t length : {1u, 15u, 16u, 32u, 64u, 65u, 5000u}) {
    const Mac mac = keyed_hash(std::string(length, 'k'), {bytes_of("body")});
    for (const Mac& other : seen) EXPECT_FALSE(equal(mac, other)) << length;
    seen.push_back(mac);
  }
}

TEST(KeyedHash, HashesThePartsAsOneText) {
  EXPECT_EQ(keyed_hash("k", {bytes_of("ab"), {}, bytes_of("c")}),
            keyed_hash("k", {bytes_of("abc")}));
}

TEST(KeyedHash, EqualLooksAtEveryByte) {
  const Mac mac = keyed_hash("k", {bytes_of("body")});
  EXPECT_TRUE(equal(mac, mac));
  for (size_t i = 0; i < mac.size(); ++i) {
    Mac other = mac;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(equal(mac, other)) << i;
  }
}

}  // namespace
}  // namespace fabric::control::keyed_hash_test
