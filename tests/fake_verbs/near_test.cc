#include <algorithm>
#include <cstdlib>
#include <mutex>

#include <gmock/gmock.h>

#include "fake_verbs/fake_nic_setup.h"
#include "support/recorded_sysfs.h"
#include "topology/machine.h"

// Network::near: which of the host's NICs an engine takes, on a recorded sysfs tree.

namespace fabric::test::near_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Every line of an engine's log, with its fields.
class LogLines {
 public:
  LogSink sink() {
    return {[](void* context, const LogRecord& record) {
              static_cast<LogLines*>(context)->add(record);
            },
            this};
  }
  /// Those that contain `part`.
  std::vector<std::string> with(std::string_view part) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    std::ranges::copy_if(lines_, std::back_inserter(found), [&](const std::string& line) {
      return line.find(part) != std::string::npos;
    });
    return found;
  }

 private:
  void add(const LogRecord& record) {
    std::string line = to_string(record.level) + std::string(": ") + std::string(record.text);
    for (const LogField& field : record.fields) {
      line.append(" ").append(field.key).append("=").append(field.value);
    }
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// A host with ten fake NICs: those of the recorded 8-GPU host, of which ca1 and ca6 are for
/// storage, on NUMA nodes 0 and 1. The NICs of host B are in no sysfs.
class VerbsNear : public testing::Test {
 protected:
  ~VerbsNear() override { topology::exchange_sysfs_root_for_tests(before_); }

  Result<Engine> open(const Network& network) {
    return Engine::open(
        {.networks = {network}, .log_level = LogLevel::kInfo, .log_sink = log_.sink()});
  }
  std::vector<std::string> rails(const Network& network) {
    const auto engine = open(network);
    EXPECT_TRUE(engine) << engine.error().what;
    return engine ? rails(*engine) : std::vector<std::string>{};
  }
  static std::vector<std::string> rails(const Engine& engine) {
    std::vector<std::string> names;
    for (const RailStats& rail : engine.rail_stats()) {
      if (rail.network == "verbs") names.push_back(rail.device);
    }
    return names;
  }

  RecordedSysfs sysfs_ = RecordedSysfs::open("eight_gpus", {{"mlx5_", "ca"}});
  const std::string before_ = topology::exchange_sysfs_root_for_tests(sysfs_.root());
  LogLines log_;
};

TEST_F(VerbsNear, AnEngineTakesOnlyTheNicBehindTheSwitchOfItsGpu) {
  FakeNicSetup setup({.rails = 10});
  Config config = setup.config(0);
  config.networks[0].devices.clear();
  config.networks[0].near = "gpu0";
  config.log_level = LogLevel::kInfo;
  config.log_sink = log_.sink();
  auto engine = Engine::open(config);
  ASSERT_TRUE(engine) << engine.error().what;
  ASSERT_THAT(rails(*engine), ElementsAre("ca0"));
  const auto facts = engine->rail_stats()[0].facts;
  EXPECT_THAT(facts,
              testing::Contains(testing::Pair("near", "gpu0, PCI 0000:1b:00.0: same PCI switch")));

  EXPECT_THAT(log_.with("taken"),
              ElementsAre("info: the nearest NICs are taken network=verbs near=gpu0, PCI "
                          "0000:1b:00.0 devices=ca0 distance=same PCI switch"));
  EXPECT_EQ(log_.with("left out").size(), 19u) << "all others of both hosts";
  EXPECT_THAT(log_.with("device=ca6"),
              ElementsAre("info: a NIC is left out network=verbs device=ca6 reason=nearest to no "
                          "GPU, farther from gpu0 than ca0: other NUMA node"));
  EXPECT_THAT(log_.with("device=ca2"),
              ElementsAre(HasSubstr("nearest to gpu1, farther from gpu0")));
  EXPECT_THAT(log_.with("device=cb0"), ElementsAre(HasSubstr("no PCI device in sysfs")));

  CheckedWrites writes(*engine, setup[1], {.count = 64, .bytes = 200'000});
  writes.submit();
  ASSERT_TRUE(setup.until([&] { return writes.ended(); })) << engine->dump();
  writes.expect_delivered();
}

TEST_F(VerbsNear, WithoutItEveryNicIsTakenAndSysfsIsNotRead) {
  FakeNics nics({.hosts = 1, .rails = 10, .wire_thread = false});
  EXPECT_EQ(rails({.provider = "verbs"}).size(), 8u);
  EXPECT_THAT(log_.with("left out"), IsEmpty());
}

TEST_F(VerbsNear, ChoosesAmongTheNamedPortsInTheirOrder) {
  FakeNics nics({.hosts = 1, .rails = 10, .wire_thread = false});
  EXPECT_THAT(rails({.provider = "verbs", .devices = {"ca6", "ca4", "ca3"}, .near = "gpu0"}),
              ElementsAre("ca4", "ca3"));
  EXPECT_THAT(log_.with("left out"), ElementsAre(HasSubstr("device=ca6")));
  const auto absent = open({.provider = "verbs", .devices = {"ca3", "mlx5_0"}, .near = "gpu0"});
  ASSERT_FALSE(absent) << "a port that is named must exist, near or not";
  EXPECT_STREQ(absent.error().what, "verbs: no such device");
}

TEST_F(VerbsNear, RailsFollowThePciAddressesUpToRailsMax) {
  FakeNics nics({.hosts = 1, .rails = 10, .wire_thread = false});
  EXPECT_THAT(rails({.provider = "verbs", .near = "numa:0"}),
              ElementsAre("ca0", "ca1", "ca2", "ca3", "ca4"));
  EXPECT_THAT(rails({.provider = "verbs", .near = "numa:0", .rails_max = 2}),
              ElementsAre("ca0", "ca1"));
  EXPECT_THAT(log_.with("reason=rails_max"),
              ElementsAre(HasSubstr("ca2"), HasSubstr("ca3"), HasSubstr("ca4")));
}

TEST_F(VerbsNear, APortThatIsDownIsNotNear) {
  FakeNics nics({.hosts = 1, .rails = 10, .wire_thread = false});
  nics.port(0, 0, false);
  sysfs_.add("file class/infiniband/ca0/ports/1/state 1:~DOWN");
  EXPECT_THAT(rails({.provider = "verbs", .near = "gpu0"}),
              ElementsAre("ca1", "ca2", "ca3", "ca4"));
  EXPECT_THAT(log_.with("device=ca0"), ElementsAre(HasSubstr("no active port")));
}

TEST_F(VerbsNear, WhatDoesNotExistIsRefusedAndTheLogSaysWhatDoes) {
  FakeNics nics({.hosts = 1, .rails = 10, .wire_thread = false});
  const auto engine = open({.provider = "verbs", .near = "gpu9"});
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, Errc::kInvalidArgument);
  EXPECT_STREQ(engine.error().what, "networks.near");
  EXPECT_THAT(log_.with("error: "),
              ElementsAre("error: no NIC is chosen network=verbs reason=near: no such GPU 'gpu9'; "
                          "there are gpu0..gpu7"));
  EXPECT_THAT(rails({.provider = "verbs", .near = "gpu9", .required = false}), IsEmpty());
  EXPECT_EQ(log_.with("error: ").size(), 1u) << "an optional network may be missing";
}

TEST_F(VerbsNear, TheVariablesChooseToo) {
  FakeNics nics({.hosts = 1, .rails = 10, .wire_thread = false});
  ASSERT_EQ(::setenv("FABRICLIB_NETWORKS", "verbs near=gpu:1", 1), 0);
  EXPECT_THAT(rails({.provider = "shm"}), ElementsAre("ca2"));
  ASSERT_EQ(::unsetenv("FABRICLIB_NETWORKS"), 0);
  ASSERT_EQ(::setenv("CUDA_VISIBLE_DEVICES", "4,5", 1), 0);
  EXPECT_THAT(rails({.provider = "verbs", .near = "gpu1"}), ElementsAre("ca7"));
  EXPECT_THAT(log_.with("CUDA_VISIBLE_DEVICES=4,5"), ElementsAre(HasSubstr("info: ")));
  ASSERT_EQ(::setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937", 1), 0);
  EXPECT_THAT(rails({.provider = "verbs", .near = "gpu1"}), ElementsAre("ca2"));
  EXPECT_THAT(log_.with("GPU-8932f937"), ElementsAre(HasSubstr("warning: ")));
  ASSERT_EQ(::unsetenv("CUDA_VISIBLE_DEVICES"), 0);
}

}  // namespace
}  // namespace fabric::test::near_test
