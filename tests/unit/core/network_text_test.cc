#include "providers/verbs/port_name.h"

#include <string_view>

#include <gtest/gtest.h>

namespace fabric::verbs {
namespace {

std::string refused(std::vector<std::string> devices) {
  const auto options = parse_options(devices);
  if (options) return "";
  EXPECT_EQ(options.error().code, Errc::kInvalidArgument);
  return options.error().what;
}

TEST(VerbsOptions, GoThroughANetworkAndBack) {
  Options options{.devices = {"mlx5_0", "mlx5_1:2"}, .gid_index = 3, .mtu_bytes = 1024};
  options.traffic_class = 106;
  options.service_level = 3;
  options.pkey_index = 1;
  options.timeout_code = 18;
  options.retry_count = 0;
  options.rnr_retry = 3;
  options.rnr_timer = 14;
  options.send_depth = 512;
  options.receive_depth = 64;
  options.inline_bytes = 0;
  options.control_address = "192.0.2.7";
  options.control_port = 4711;
  const Network line = network(options);
  EXPECT_EQ(line.provider, "verbs");
  const auto back = parse_options(line.devices);
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(back->devices, options.devices);
  EXPECT_EQ(back->gid_index, 3);
  EXPECT_EQ(back->mtu_bytes, 1024u);
  EXPECT_EQ(back->traffic_class, 106u);
  EXPECT_EQ(back->service_level, 3u);
  EXPECT_EQ(back->pkey_index, 1u);
  EXPECT_EQ(back->timeout_code, 18u);
  EXPECT_EQ(back->retry_count, 0u);
  EXPECT_EQ(back->rnr_retry, 3u);
  EXPECT_EQ(back->rnr_timer, 14u);
  EXPECT_EQ(back->send_depth, 512u);
  EXPECT_EQ(back->receive_depth, 64u);
  EXPECT_EQ(back->inline_bytes, 0u);
  EXPECT_EQ(back->control_address, "192.0.2.7");
  EXPECT_EQ(back->control_port, 4711u);
  EXPECT_TRUE(network({}).devices.empty());
}

TEST(VerbsOptions, SevenRetriesAreRefusedByName) {
  // On some devices seven means for ever.
  EXPECT_EQ(refused({"retry_count=6"}), "");
  EXPECT_EQ(refused({"retry_count=7"}), "retry_count");
}

TEST(VerbsOptions, NameWhatIsOutOfRange) {
  EXPECT_EQ(refused({"mtu_bytes=1000"}), "mtu_bytes");
  EXPECT_EQ(refused({"mtu_bytes=128"}), "mtu_bytes");
  EXPECT_EQ(refused({"mtu_bytes=8192"}), "mtu_bytes");
  EXPECT_EQ(refused({"timeout_code=0"}), "timeout_code");
  EXPECT_EQ(refused({"timeout_code=23"}), "timeout_code");
  EXPECT_EQ(refused({"gid_index=-2"}), "gid_index");
  EXPECT_EQ(refused({"gid_index=255"}), "");
  EXPECT_EQ(refused({"gid_index=256"}), "gid_index") << "it would be cut to eight bits";
  EXPECT_EQ(refused({"traffic_class=256"}), "traffic_class");
  EXPECT_EQ(refused({"service_level=16"}), "service_level");
  EXPECT_EQ(refused({"rnr_retry=8"}), "rnr_retry");
  EXPECT_EQ(refused({"send_depth=15"}), "send_depth");
  EXPECT_EQ(refused({"receive_depth=20000"}), "receive_depth");
  EXPECT_EQ(refused({"receive_depth=3"}), "receive_depth");
  EXPECT_EQ(refused({"inline_bytes=513"}), "inline_bytes");
  EXPECT_EQ(refused({"control_port=65536"}), "control_port");
}

TEST(VerbsOptions, RefuseWhatIsNoNumberAndNoDevice) {
  for (const char* text : {"send_depth=", "send_depth=12x", "send_depth= 64", "send_depth=-1"}) {
    EXPECT_EQ(refused({text}), "send_depth") << text;
  }
  for (const char* text : {"", "mlx5/0", "mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:x", ":1",
                           "depth=3", "=3", "../x"}) {
    EXPECT_EQ(refused({text}), "networks.devices") << text;
  }
}

}  // namespace
}  // namespace fabric::verbs
