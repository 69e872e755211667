#include "base/hash.h"

#include <array>

#include <gtest/gtest.h>

namespace fabric::hash_test {
namespace {

// A trace hash written down on one machine holds on all.
TEST(TraceHash, IsTheSameEverywhere) {
  EXPECT_EQ(TraceHash().value(), 0xcbf29ce484222325u);
  EXPECT_EQ(TraceHash().add(uint64_t{0}).value(), 0xf8bb92c91b3f5cc0u);
  EXPECT_EQ(TraceHash().add(uint64_t{1}).add(uint64_t{2}).value(), 0x9c2dda1ae14ab8c4u);
}

TEST(TraceHash, DependsOnOrderAndOnWhereTextsEnd) {
  EXPECT_NE(TraceHash().add(uint64_t{1}).add(uint64_t{2}).value(),
            TraceHash().add(uint64_t{2}).add(uint64_t{1}).value());
  EXPECT_NE(TraceHash().add("ab").add("c").value(), TraceHash().add("a").add("bc").value());
}

TEST(TraceHash, TreatsTextAndItsBytesAlike) {
  const std::array<std::byte, 2> bytes{std::byte{'h'}, std::byte{'i'}};
  EXPECT_EQ(TraceHash().add("hi").value(),
            TraceHash().add(std::span<const std::byte>(bytes)).value());
}

}  // namespace
}  // namespace fabric::hash_test
