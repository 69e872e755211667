#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include <fabric/fabric.h>

#include "core/core.h"
#include "support/log_guard.h"

namespace fabric::core::config_test {
namespace {

using namespace std::chrono_literals;

/// Sets an environment variable for its scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value, 1);
  }
  ~Variable() {
    if (old_) {
      ::setenv(name_, old_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

Error refusal(const Config& config) { return effective_config(config).error(); }

Error refusal(const char* variable, const char* value) {
  const Variable set(variable, value);
  Config config;
  config.log_sink = test::test_log_sink();
  return refusal(config);
}

TEST(Config, TheDefaultsAreGood) { EXPECT_TRUE(effective_config({})); }

// ---- Fields -------------------------------------------------------------------------------------

struct BadField {
  const char* name;
  Errc code;
  std::function<void(Config&)> set_bad_value;
};

void expect_refused(const BadField& bad) {
  Config config;
  bad.set_bad_value(config);
  const Error error = refusal(config);
  EXPECT_EQ(error.code, bad.code) << bad.name;
  EXPECT_STREQ(error.what, bad.name);
}

TEST(Config, EveryTimeHasBounds) {
  const std::pair<const char*, Nanos Config::*> times[] = {
      {"default_timeout", &Config::default_timeout}, {"drain_timeout", &Config::drain_timeout},
      {"timeout_max", &Config::timeout_max},         {"peer_timeout", &Config::peer_timeout},
      {"lost_timeout", &Config::lost_timeout},       {"retransmit", &Config::retransmit}};
  for (const auto& [name, field] : times) {
    for (const Nanos value : {Nanos(0), Nanos(-1), Nanos::min(), Nanos::max()}) {
      // The default may not be above the maximum: with a long one it would be refused first.
      const bool is_max = field == &Config::timeout_max;
      expect_refused({name, Errc::kInvalidArgument, [&, f = field](Config& c) {
                        if (is_max && value > Nanos(0)) c.default_timeout = 1s;
                        c.*f = value;
                      }});
    }
  }
  expect_refused({"spin", Errc::kInvalidArgument, [](Config& c) { c.spin = Nanos(-1); }});
  Config no_spin;
  no_spin.spin = Nanos(0);
  EXPECT_TRUE(effective_config(no_spin)) << "no spinning must be allowed";
  expect_refused({"default_timeout", Errc::kInvalidArgument,
                  [](Config& c) { c.default_timeout = c.timeout_max + 1ns; }});
}

TEST(Config, EveryCountHasBounds) {
  struct Count {
    const char* name;
    uint32_t Config::*field;
    uint32_t most;
  };
  const Count counts[] = {{"ops_max", &Config::ops_max, 1u << 20},
                          {"batches_max", &Config::batches_max, 1u << 20},
                          {"peers_max", &Config::peers_max, 1u << 16},
                          {"regions_max", &Config::regions_max, 1u << 20},
                          {"counters_max", &Config::counters_max, 1u << 20},
                          {"names_per_peer_max", &Config::names_per_peer_max, 1u << 20},
                          {"message_bytes_max", &Config::message_bytes_max, 1u << 20},
                          {"message_buffers", &Config::message_buffers, 1u << 20},
                          {"message_credits", &Config::message_credits, 4096}};
  for (const Count& count : counts) {
    for (const uint32_t bad : {0u, count.most + 1, UINT32_MAX}) {
      expect_refused(
          {count.name, Errc::kInvalidArgument, [&](Config& c) { c.*count.field = bad; }});
    }
    for (const uint32_t good : {1u, count.most}) {
      Config config;
      config.*count.field = good;
      EXPECT_TRUE(effective_config(config)) << count.name << " = " << good;
    }
  }
}

TEST(Config, EverySizeHasBounds) {
  struct Size {
    const char* name;
    uint64_t Config::*field;
    uint64_t least, most;
  };
  const Size sizes[] = {{"index_arena_bytes", &Config::index_arena_bytes, 4096, 1ull << 36},
                        {"stripe_bytes_min", &Config::stripe_bytes_min, 0, 1ull << 40},
                        {"stripe_align", &Config::stripe_align, 1, 1ull << 30},
                        {"bulk_slice_bytes", &Config::bulk_slice_bytes, 2, 1ull << 40}};
  for (const Size& size : sizes) {
    for (const uint64_t bad : {size.least - 1, 2 * size.most, uint64_t{UINT64_MAX}}) {
      expect_refused({size.name, Errc::kInvalidArgument, [&](Config& c) { c.*size.field = bad; }});
    }
    for (const uint64_t good : {size.least, size.most}) {
      Config config;
      config.*size.field = good;
      EXPECT_TRUE(effective_config(config)) << size.name << " = " << good;
    }
  }
  expect_refused(
      {"stripe_align", Errc::kInvalidArgument, [](Config& c) { c.stripe_align = 3000; }});
}

TEST(Config, WhatIsShownToPeersHasBounds) {
  expect_refused({"app_info", Errc::kTooLarge, [](Config& c) { c.app_info.assign(1025, 'x'); }});
  Config config;
  config.app_info.assign(1024, 'x');
  EXPECT_TRUE(effective_config(config));
}

TEST(Config, NetworksAreNamedWellAndOnce) {
  const auto networks = [](std::vector<Network> list) {
    return [list](Config& c) { c.networks = list; };
  };
  const BadField bad[] = {
      {"networks.provider", Errc::kInvalidArgument, networks({{.provider = ""}})},
      {"networks.provider", Errc::kInvalidArgument, networks({{.provider = "s\nim"}})},
      {"networks.provider", Errc::kInvalidArgument, networks({{.provider = std::string(32, 'x')}})},
      {"networks.provider", Errc::kInvalidArgument, networks({{.provider = "self"}})},
      {"networks.name", Errc::kInvalidArgument, networks({{.provider = "sim", .name = "self"}})},
      {"networks.name", Errc::kInvalidArgument, networks({{.provider = "sim", .name = "\x7f"}})},
      {"networks.name", Errc::kInvalidArgument,
       networks({{.provider = "sim"}, {.provider = "sim"}})},
      {"networks.name", Errc::kInvalidArgument,
       networks({{.provider = "sim", .name = "a"}, {.provider = "tcp", .name = "a"}})},
      {"networks.rails_max", Errc::kInvalidArgument,
       networks({{.provider = "sim", .rails_max = 0}})},
      {"networks.rails_max", Errc::kInvalidArgument,
       networks({{.provider = "sim", .rails_max = kRailsMax + 1}})},
      {"networks.near", Errc::kInvalidArgument, networks({{.provider = "verbs", .near = "gpu-0"}})},
      {"networks.stripe_bytes_min", Errc::kInvalidArgument,
       networks({{.provider = "sim", .stripe_bytes_min = (1ull << 40) + 1}})},
      {"networks", Errc::kTooLarge, networks(std::vector<Network>(9, {.provider = "sim"}))},
  };
  for (const BadField& field : bad) expect_refused(field);
}

// ---- Variables ----------------------------------------------------------------------------------

TEST(Environment, SetsEveryKindOfField) {
  const Variable variables[] = {{"FABRICLIB_OPS_MAX", "8192"},
                                {"FABRICLIB_SPIN", "20us"},
                                {"FABRICLIB_STRIPE_ALIGN", "65536"},
                                {"FABRICLIB_NETWORKS", "shm,tcp"},
                                {"FABRICLIB_WORKER_CPUS", "0,3,11"},
                                {"FABRICLIB_REROUTE", "0"},
                                {"FABRICLIB_APP_INFO", "llama"},
                                {"FABRICLIB_LOG_LEVEL", "debug"},
                                {"FABRICLIB_JOB_KEY", ""},
                                {"FABRICLIB_TEST_SOMETHING", "whatever"},
                                {"FABRICLIB_ENGINE_ID", "18446744073709551615"}};
  Config asked;
  asked.ops_max = 1;
  asked.job_key = "secret";
  asked.reroute = true;
  const auto config = effective_config(asked);
  ASSERT_TRUE(config) << config.error().what;
  EXPECT_EQ(config->ops_max, 8192u) << "the variable wins";
  EXPECT_EQ(config->spin, 20us);
  EXPECT_EQ(config->stripe_align, 65536u);
  ASSERT_EQ(config->networks.size(), 2u);
  EXPECT_EQ(config->networks[0].provider, "shm");
  EXPECT_EQ(config->networks[1].provider, "tcp");
  EXPECT_TRUE(config->networks[1].required);
  EXPECT_EQ(config->worker_cpus, (std::vector<int>{0, 3, 11}));
  EXPECT_FALSE(config->reroute);
  EXPECT_EQ(config->app_info, "llama");
  EXPECT_EQ(config->log_level, LogLevel::kDebug);
  EXPECT_EQ(config->job_key, "");
  EXPECT_EQ(config->engine_id, UINT64_MAX);
}

TEST(Environment, EveryTimeAndEveryLimitHasAVariableOfItsName) {
  const std::tuple<const char*, const char*, Nanos Config::*, Nanos> times[] = {
      {"FABRICLIB_TIMEOUT_MAX", "90s", &Config::timeout_max, 90s},
      {"FABRICLIB_DEFAULT_TIMEOUT", "41s", &Config::default_timeout, 41s},
      {"FABRICLIB_DRAIN_TIMEOUT", "42s", &Config::drain_timeout, 42s},
      {"FABRICLIB_PEER_TIMEOUT", "43s", &Config::peer_timeout, 43s},
      {"FABRICLIB_LOST_TIMEOUT", "44s", &Config::lost_timeout, 44s},
      {"FABRICLIB_RETRANSMIT", "45ms", &Config::retransmit, 45ms},
      {"FABRICLIB_SPIN", "46us", &Config::spin, 46us}};
  const std::tuple<const char*, const char*, uint32_t Config::*, uint32_t> counts[] = {
      {"FABRICLIB_OPS_MAX", "51", &Config::ops_max, 51},
      {"FABRICLIB_BATCHES_MAX", "52", &Config::batches_max, 52},
      {"FABRICLIB_PEERS_MAX", "53", &Config::peers_max, 53},
      {"FABRICLIB_REGIONS_MAX", "54", &Config::regions_max, 54},
      {"FABRICLIB_COUNTERS_MAX", "64", &Config::counters_max, 64},
      {"FABRICLIB_NAMES_PER_PEER_MAX", "55", &Config::names_per_peer_max, 55},
      {"FABRICLIB_MESSAGE_BYTES_MAX", "56", &Config::message_bytes_max, 56},
      {"FABRICLIB_MESSAGE_BUFFERS", "57", &Config::message_buffers, 57},
      {"FABRICLIB_MESSAGE_CREDITS", "58", &Config::message_credits, 58}};
  const std::tuple<const char*, const char*, uint64_t Config::*, uint64_t> sizes[] = {
      {"FABRICLIB_INDEX_ARENA_BYTES", "61440", &Config::index_arena_bytes, 61440},
      {"FABRICLIB_STRIPE_BYTES_MIN", "62", &Config::stripe_bytes_min, 62},
      {"FABRICLIB_STRIPE_ALIGN", "32", &Config::stripe_align, 32},
      {"FABRICLIB_BULK_SLICE_BYTES", "63", &Config::bulk_slice_bytes, 63}};
  const auto sets = [](const auto& table) {
    for (const auto& [name, text, field, value] : table) {
      const Variable set(name, text);
      const auto config = effective_config({});
      ASSERT_TRUE(config) << name << ": " << config.error().what;
      EXPECT_EQ((*config).*field, value) << name;
      EXPECT_NE(Config{}.*field, value) << name << " has its default: the test shows nothing";
    }
  };
  sets(times);
  sets(counts);
  sets(sizes);
}

TEST(Environment, DurationsHaveAUnit) {
  const std::pair<const char*, Nanos> good[] = {
      {"1ns", 1ns}, {"250us", 250us}, {"30ms", 30ms}, {"7s", 7s}};
  for (const auto& [text, value] : good) {
    const Variable set("FABRICLIB_RETRANSMIT", text);
    ASSERT_TRUE(effective_config({})) << text;
    EXPECT_EQ(effective_config({})->retransmit, value);
  }
  for (const char* text : {"", "5", "s", "1.5s", "-1s", " 1s", "1s ", "1m", "5 ms", "1S",
                           "99999999999999999999s", "18446744073709551615ns"}) {
    const Error error = refusal("FABRICLIB_RETRANSMIT", text);
    EXPECT_EQ(error.code, Errc::kInvalidArgument) << text;
    EXPECT_STREQ(error.what, "FABRICLIB_RETRANSMIT") << text;
  }
}

TEST(Environment, AMalformedValueNamesItsVariable) {
  const std::pair<const char*, const char*> bad[] = {
      {"FABRICLIB_OPS_MAX", "many"},       {"FABRICLIB_OPS_MAX", ""},
      {"FABRICLIB_OPS_MAX", "-1"},         {"FABRICLIB_OPS_MAX", "0x10"},
      {"FABRICLIB_OPS_MAX", "4294967296"}, {"FABRICLIB_INDEX_ARENA_BYTES", "8M"},
      {"FABRICLIB_REROUTE", "yes"},        {"FABRICLIB_REROUTE", ""},
      {"FABRICLIB_LOG_LEVEL", "loud"},     {"FABRICLIB_LOG_LEVEL", "Debug"},
      {"FABRICLIB_NETWORKS", ""},          {"FABRICLIB_NETWORKS", "sim,,tcp"},
      {"FABRICLIB_NETWORKS", ",sim"},      {"FABRICLIB_WORKER_CPUS", "0-3"},
      {"FABRICLIB_WORKER_CPUS", "1,"},     {"FABRICLIB_NETWORKS", "sim,"}};
  for (const auto& [name, value] : bad) {
    const Error error = refusal(name, value);
    EXPECT_EQ(error.code, Errc::kInvalidArgument) << name << "=" << value;
    EXPECT_STREQ(error.what, name) << value;
  }
}

TEST(Environment, AValueOutOfRangeNamesTheField) {
  const Error error = refusal("FABRICLIB_OPS_MAX", "0");
  EXPECT_EQ(error.code, Errc::kInvalidArgument);
  EXPECT_STREQ(error.what, "ops_max");
}

TEST(Environment, AnUnknownVariableIsAnError) {
  for (const char* name : {"FABRICLIB_OPS", "FABRICLIB_", "FABRICLIB_ops_max", "FABRICLIB_LOG_SINK",
                           "FABRICLIB_OPS_MAX_", "FABRICLIB_TESTING"}) {
    test::expect_log("unknown environment variable");
    const Error error = refusal(name, "1");
    EXPECT_EQ(error.code, Errc::kInvalidArgument) << name;
    EXPECT_STREQ(error.what, name);
    EXPECT_GT(test::logged("variable=" + std::string(name)), 0u);
  }
}

TEST(Environment, AnUnknownVariableIsLoggedWithTheNearestKnownOne) {
  const std::pair<const char*, const char*> typos[] = {
      {"FABRICLIB_OPS", "FABRICLIB_OPS_MAX"},
      {"FABRICLIB_ops_max", "FABRICLIB_OPS_MAX"},
      {"FABRICLIB_OPSMAX", "FABRICLIB_OPS_MAX"},
      {"FABRICLIB_PEER_MAX", "FABRICLIB_PEERS_MAX"},
      {"FABRICLIB_DRAIN_TIMOUT", "FABRICLIB_DRAIN_TIMEOUT"},
      {"FABRICLIB_NETWORK", "FABRICLIB_NETWORKS"},
      {"FABRICLIB_LOGLEVEL", "FABRICLIB_LOG_LEVEL"},
      {"FABRICLIB_CLOCKS", "FABRICLIB_CLOCK"}};
  for (const auto& [name, meant] : typos) {
    const std::string text =
        "unknown environment variable, did you mean another? variable=" + std::string(name) +
        " nearest=" + meant;
    test::expect_log(text);
    EXPECT_STREQ(refusal(name, "1").what, name);
    EXPECT_EQ(test::logged(text), 1u) << text;
  }
  for (const char* name : {"FABRICLIB_NO_SUCH_THING", "FABRICLIB_"}) {
    test::expect_log("unknown environment variable");
    EXPECT_STREQ(refusal(name, "1").what, name);
  }
  EXPECT_EQ(test::logged("did you mean"), std::size(typos))
      << "a suggestion was made for an unrelated name";
}

// Other libraries use FABRIC_ too. Whatever those variables hold, an engine opens as without them.
TEST(Environment, VariablesOfOtherProgramsDoNotMatter) {
  const Variable variables[] = {
      {"FABRIC_OPS_MAX", "many"},   {"FABRIC_NETWORKS", "no such network"},
      {"FABRIC_NO_SUCH_THING", ""}, {"FABRIC_", "1"},
      {"FABRIC_TEST_SEED", "x"},    {"FABRICLIB", "1"},
      {"FABRICLIBS_OPS_MAX", "1"},  {"FABRIK_OPS", "1"}};
  Config asked;
  asked.log_sink = test::test_log_sink();
  const auto config = effective_config(asked);
  ASSERT_TRUE(config) << config.error().what;
  EXPECT_EQ(config->ops_max, asked.ops_max);
  EXPECT_TRUE(config->networks.empty());
  EXPECT_TRUE(Engine::open(asked, std::make_shared<InlineRuntime>()));
}

TEST(Environment, TheClockIsForTheProcessAndHasTwoWords) {
  EXPECT_EQ(refusal("FABRICLIB_CLOCK", "kernel").code, Errc::kOk);
  EXPECT_EQ(refusal("FABRICLIB_CLOCK", "ticks").code, Errc::kOk);
  const Error error = refusal("FABRICLIB_CLOCK", "sundial");
  EXPECT_EQ(error.code, Errc::kInvalidArgument);
  EXPECT_STREQ(error.what, "FABRICLIB_CLOCK");
}

TEST(Environment, ReachesEnginesThatAreOpened) {
  Config config;
  config.log_sink = test::test_log_sink();
  {
    const Variable set("FABRICLIB_NO_SUCH_THING", "1");
    test::expect_log("variable=FABRICLIB_NO_SUCH_THING");
    const auto engine = Engine::open(config, std::make_shared<InlineRuntime>());
    EXPECT_EQ(engine.error().code, Errc::kInvalidArgument);
    EXPECT_STREQ(engine.error().what, "FABRICLIB_NO_SUCH_THING");
  }
  const Variable set("FABRICLIB_BATCHES_MAX", "1");
  auto engine = Engine::open(config, std::make_shared<InlineRuntime>());
  ASSERT_TRUE(engine);
  const auto first = engine->make_batch();
  EXPECT_TRUE(first);
  EXPECT_EQ(engine->make_batch().error().code, Errc::kExhausted);
}

TEST(Environment, ReachesTheWorkerThread) {
  Config config;
  config.log_sink = test::test_log_sink();
  ASSERT_TRUE(Engine::open(config));
  const Variable set("FABRICLIB_WORKER_CPUS", "100000");
  EXPECT_EQ(Engine::open(config).error().code, Errc::kInvalidArgument)
      << "the worker was started although the processor does not exist";
}

}  // namespace
}  // namespace fabric::core::config_test
