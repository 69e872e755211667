#include "core/network_text.h"

#include <string>

#include <gtest/gtest.h>

namespace fabric::core::network_text_test {
namespace {

/// The name of what was refused; empty: nothing was.
std::string refused(const std::string& text) {
  const auto network = parse_network(text);
  if (network) return "";
  EXPECT_EQ(network.error().code, Errc::kInvalidArgument) << text;
  return network.error().what;
}

TEST(NetworkText, EveryOptionOfVerbsSurvivesARoundTrip) {
  const std::string text =
      "verbs mlx5_0 mlx5_1:2 name=blue near=gpu3 rails_max=2 stripe_bytes_min=5000 required=0 "
      "trusted=1 gid_index=3 "
      "mtu_bytes=1024 "
      "traffic_class=106 service_level=3 pkey_index=1 timeout_code=18 retry_count=0 rnr_retry=3 "
      "rnr_timer=14 send_depth=512 receive_depth=64 inline_bytes=0 control_address=192.0.2.7 "
      "control_port=4711";
  const auto network = parse_network(text);
  ASSERT_TRUE(network) << network.error().what;
  EXPECT_EQ(network->provider, "verbs");
  EXPECT_EQ(network->name, "blue");
  EXPECT_EQ(network->devices, (std::vector<std::string>{"mlx5_0", "mlx5_1:2"}));
  EXPECT_EQ(network->near, "gpu3");
  EXPECT_EQ(network->rails_max, 2u);
  EXPECT_EQ(network->stripe_bytes_min, 5000u);
  EXPECT_FALSE(network->required);
  EXPECT_TRUE(network->trusted);
  const auto* options = std::get_if<verbs::Options>(&network->options);
  ASSERT_NE(options, nullptr);
  EXPECT_EQ(options->gid_index, 3);
  EXPECT_EQ(options->mtu_bytes, 1024u);
  EXPECT_EQ(options->traffic_class, 106u);
  EXPECT_EQ(options->service_level, 3u);
  EXPECT_EQ(options->pkey_index, 1u);
  EXPECT_EQ(options->timeout_code, 18u);
  EXPECT_EQ(options->retry_count, 0u);
  EXPECT_EQ(options->rnr_retry, 3u);
  EXPECT_EQ(options->rnr_timer, 14u);
  EXPECT_EQ(options->send_depth, 512u);
  EXPECT_EQ(options->receive_depth, 64u);
  EXPECT_EQ(options->inline_bytes, 0u);
  EXPECT_EQ(options->control_address, "192.0.2.7");
  EXPECT_EQ(options->control_port, 4711u);
  EXPECT_EQ(to_string(*network), text);
}

TEST(NetworkText, OptionsOfShmAndDefaults) {
  const auto network = parse_network("  shm lanes=2  directory=/run/fabric ");
  ASSERT_TRUE(network) << network.error().what;
  const auto* options = std::get_if<shm::Options>(&network->options);
  ASSERT_NE(options, nullptr);
  EXPECT_EQ(options->lanes, 2u);
  EXPECT_EQ(options->directory, "/run/fabric");
  EXPECT_EQ(to_string(*network), "shm lanes=2 directory=/run/fabric");
  EXPECT_EQ(to_string(*parse_network("shm")), "shm");
  EXPECT_EQ(to_string(*parse_network("shm required=false trusted=true")),
            "shm required=0 trusted=1");
  EXPECT_EQ(to_string(*parse_network("sim world:1/node:0")), "sim world:1/node:0");
}

TEST(NetworkText, SevenRetriesAreRefusedByName) {
  // On some devices seven retries mean endless retries.
  EXPECT_EQ(refused("verbs retry_count=6"), "");
  EXPECT_EQ(refused("verbs retry_count=7"), "retry_count");
}

TEST(NetworkText, AValueOutOfRangeNamesItsOption) {
  for (const char* bad : {"mtu_bytes=1000",
                          "mtu_bytes=128",
                          "mtu_bytes=8192",
                          "timeout_code=0",
                          "timeout_code=23",
                          "gid_index=-2",
                          "gid_index=256",
                          "traffic_class=256",
                          "service_level=16",
                          "rnr_retry=8",
                          "send_depth=15",
                          "receive_depth=20000",
                          "receive_depth=3",
                          "inline_bytes=513",
                          "control_port=65536",
                          "send_depth=",
                          "send_depth=12x",
                          "send_depth=-1",
                          "rails_max=9",
                          "rails_max=0",
                          "stripe_bytes_min=1099511627777",
                          "stripe_bytes_min=-1",
                          "required=2",
                          "trusted=yes",
                          "near=",
                          "near=gpu",
                          "near=mlx5_0"}) {
    const std::string option = bad;
    EXPECT_EQ(refused("verbs " + option), option.substr(0, option.find('='))) << option;
  }
  EXPECT_EQ(refused("verbs gid_index=255"), "");
  EXPECT_EQ(refused("shm lanes=9"), "lanes");
}

TEST(NetworkText, NearTakesEveryForm) {
  for (const char* near : {"auto", "gpu0", "gpu:0", "numa:1", "0000:19:00.0", "19:00.0"}) {
    const std::string text = std::string("verbs near=") + near;
    const auto network = parse_network(text);
    ASSERT_TRUE(network) << text;
    EXPECT_EQ(network->near, near);
    EXPECT_EQ(to_string(*network), text);
  }
}

TEST(NetworkText, AnUnknownOptionOrNoProviderIsRefused) {
  EXPECT_EQ(refused("verbs depth=3"), "networks.options");
  EXPECT_EQ(refused("verbs =3"), "networks.options");
  EXPECT_EQ(refused("shm gid_index=3"), "networks.options");
  EXPECT_EQ(refused("sim lanes=3"), "networks.options");
  EXPECT_EQ(refused(""), "networks");
  EXPECT_EQ(refused("   "), "networks");
}

TEST(NetworkText, OptionsSetByAProgramAreCheckedAtOpen) {
  EXPECT_TRUE(check_network_options({.provider = "verbs", .options = verbs::Options{}}));
  const auto range =
      check_network_options({.provider = "verbs", .options = verbs::Options{.retry_count = 7}});
  ASSERT_FALSE(range);
  EXPECT_STREQ(range.error().what, "retry_count");
  const auto other = check_network_options({.provider = "shm", .options = verbs::Options{}});
  ASSERT_FALSE(other) << "options of another provider";
  EXPECT_STREQ(other.error().what, "networks.options");
}

}  // namespace
}  // namespace fabric::core::network_text_test
