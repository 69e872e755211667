#include "providers/verbs/port_name.h"

#include <gtest/gtest.h>

namespace fabric::verbs::verbs_port_name_test {
namespace {

TEST(VerbsPortName, IsADeviceAndPerhapsAPort) {
  const auto plain = parse_port_name("mlx5_0");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->device, "mlx5_0");
  EXPECT_EQ(plain->port, 1u);
  const auto second = parse_port_name("rocep1s0.4-x:255");
  ASSERT_TRUE(second);
  EXPECT_EQ(second->device, "rocep1s0.4-x");
  EXPECT_EQ(second->port, 255u);
}

TEST(VerbsPortName, AnythingElseIsRefused) {
  for (const char* text :
       {"", "mlx5/0", "mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:x", "mlx5_0:1x", ":1", "../x"}) {
    const auto name = parse_port_name(text);
    ASSERT_FALSE(name) << text;
    EXPECT_EQ(name.error().code, Errc::kInvalidArgument);
    EXPECT_STREQ(name.error().what, "networks.devices");
  }
}

}  // namespace
}  // namespace fabric::verbs::verbs_port_name_test
