#include "core/registry.h"

#include <algorithm>
#include <string_view>

#include <gtest/gtest.h>

namespace fabric::core::registry_test {
namespace {

TEST(Registry, OpensAProviderByItsName) {
  const auto network = open_network({.provider = "self"}, {.engine_id = 1});
  ASSERT_TRUE(network);
  EXPECT_EQ((*network)->rail_count(), 1u);
}

TEST(Registry, NamesTheFieldWhenTheProviderIsUnknown) {
  for (const char* name : {"", "Self", "selfish", "carrier-pigeon"}) {
    const auto network = open_network({.provider = name}, {});
    ASSERT_FALSE(network);
    EXPECT_EQ(network.error().code, Errc::kUnsupported);
    EXPECT_EQ(std::string_view(network.error().what), "networks.provider");
  }
}

TEST(Registry, ListsWhatThisBuildHas) {
  const auto names = built_providers();
  EXPECT_EQ(std::count(names.begin(), names.end(), "self"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "sim"), 1);
}

}  // namespace
}  // namespace fabric::core::registry_test
