#include "kv/scale_cluster.h"

#include <ostream>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "kv/test_rounds.h"
#include "support/log_guard.h"

// 16 prefillers and 64 decoders that crash, are stopped, drain, leave and join, and prompts of 128K
// tokens. Every request completes, at once or after it was sent again, and all pages come back.
// FABRICLIB_TEST_ROUNDS=N serves N times as many requests.

namespace fabric::kv::test::scale_test {
namespace {

struct ScaleCase {
  const char* name;
  bool ordered;
  bool bytes;  ///< carried and compared, in a smaller deployment
};

void PrintTo(const ScaleCase& scale, std::ostream* out) { *out << scale.name; }

ScaleOptions scale_options(const ScaleCase& scale) {
  ScaleOptions options;
  ClusterOptions& cache = options.cache;
  cache.seed = fabric::test::test_seed();
  cache.model = scale.ordered ? sim::NicModel::connectx7() : sim::NicModel::efa_200g();
  cache.deadline = 60s;
  cache.patience = 1s;
  cache.requests_max = 24;
  if (scale.bytes) {
    options.prefillers = 4;
    options.decoders = 16;
    options.decoder_pages = 64;
    options.requests = static_cast<uint32_t>(120 * test_rounds());
    options.prompt_tokens_min = 60;
    options.prompt_tokens_max = 400;
    options.request_gap = 10ms;
    options.churn_gap = 60ms;
    options.churn_ends = 1500ms * test_rounds();
    cache.pages = 1200;
    cache.chunks = 2;
    cache.layer_time = 2ms;
    return options;
  }
  options.requests = static_cast<uint32_t>(128 * test_rounds());
  options.request_gap = 15ms;
  options.churn_ends = 3s * test_rounds();
  cache.page_tokens = 2048;
  cache.head_size = 1;
  cache.layers = 8;
  cache.pages = 64 * 32;
  cache.chunks = 8;
  cache.layer_time = 5ms;
  cache.bytes = false;
  cache.network.carry_bytes = false;
  cache.network.packet_bytes_max = 1u << 20;
  return options;
}

class KvScale : public testing::TestWithParam<ScaleCase> {};

TEST_P(KvScale, EveryRequestCompletesAndAllPagesComeBackWhileMembersComeAndGo) {
  const ScaleOptions options = scale_options(GetParam());
  ScaleCluster cluster(options);
  EXPECT_TRUE(cluster.run(300s)) << "requests did not complete";
  if (HasFailure()) return;
  cluster.expect_all_back();
  const ScaleTotals& totals = cluster.totals();
  fmt::print(
      "{} prefillers, {} decoders, {} requests: {} complete, {} sent again ({} attempts failed, {} "
      "refused)\n  crashes {} + {}, stops {} + {}, drains {} + {}, joins {}, proofs {}; {:.1f} s "
      "of virtual time\n",
      options.prefillers, options.decoders, options.requests, totals.complete, totals.sent_again,
      totals.failed, totals.refused, totals.prefiller_crashes, totals.decoder_crashes,
      totals.prefiller_stops, totals.decoder_stops, totals.prefiller_drains, totals.decoder_drains,
      totals.joins, totals.fences_proved,
      std::chrono::duration<double>(cluster.world().now()).count());
  EXPECT_EQ(totals.complete, options.requests);
  EXPECT_EQ(totals.wrong, 0u);
  // Each kind of churn was there, and hit requests.
  EXPECT_GT(totals.prefiller_crashes, 0u);
  EXPECT_GT(totals.decoder_crashes, 0u);
  EXPECT_GT(totals.prefiller_stops, 0u);
  EXPECT_GT(totals.decoder_stops, 0u);
  EXPECT_GT(totals.prefiller_drains, 0u);
  EXPECT_GT(totals.decoder_drains, 0u);
  EXPECT_GT(totals.sent_again, 0u);
  EXPECT_GT(totals.fences_proved, 0u);
}

INSTANTIATE_TEST_SUITE_P(Deployments, KvScale,
                         testing::Values(ScaleCase{"cx7", true, false},
                                         ScaleCase{"efa", false, false},
                                         ScaleCase{"cx7_bytes", true, true},
                                         ScaleCase{"efa_bytes", false, true}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace fabric::kv::test::scale_test
