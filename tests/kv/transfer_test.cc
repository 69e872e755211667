#include <gtest/gtest.h>

#include "kv/kv_cluster.h"
#include "support/log_guard.h"

// Requests without faults: every way in which the two sides may meet and layers may be pushed.

namespace fabric::kv::test {
namespace {

using Kind = DecodeEvent::Kind;

struct TransferCase {
  const char* name;
  ClusterOptions options;
};

std::vector<TransferCase> transfer_cases() {
  std::vector<TransferCase> cases;
  const auto add = [&](const char* name, auto change) {
    ClusterOptions options{.seed = 3};
    change(options);
    cases.push_back({name, options});
  };
  add("dispatch_first", [](ClusterOptions&) {});
  add("offer_first", [](ClusterOptions& o) { o.offer_first = true; });
  add("efa", [](ClusterOptions& o) { o.model = sim::NicModel::efa_200g(); });
  add("two_sources", [](ClusterOptions& o) { o.sources = 2; });
  add("four_sources_efa", [](ClusterOptions& o) {
    o.sources = 4;
    o.model = sim::NicModel::efa_200g();
  });
  add("chunks", [](ClusterOptions& o) { o.chunks = 3; });
  add("per_layer", [](ClusterOptions& o) { o.per_layer = true; });
  add("per_layer_two_sources_no_tail", [](ClusterOptions& o) {
    o.per_layer = true;
    o.sources = 2;
    o.tail = false;
  });
  add("watch_word", [](ClusterOptions& o) { o.watch_word = true; });
  add("prefill_longer_than_the_wait_for_a_dispatch", [](ClusterOptions& o) {
    o.offer_first = true;
    o.offer_wait = 5ms;
    o.layer_time = 3ms;
  });
  add("few_operations", [](ClusterOptions& o) {
    o.ops_max = 16;
    o.layer_time = Nanos(100);
  });
  return cases;
}

class KvTransfer : public testing::TestWithParam<TransferCase> {};

TEST_P(KvTransfer, CompletesWithEveryByteInPlaceAndAllPagesBack) {
  KvCluster cluster(GetParam().options);
  for (uint32_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(cluster.start("request " + std::to_string(i), 30 + 11 * i));
  }
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); })) << cluster.engine->dump();
  for (uint32_t i = 0; i < 6; ++i) {
    const AttemptRecord& record = cluster.attempt("request " + std::to_string(i));
    EXPECT_TRUE(record.count(Kind::kComplete));
    EXPECT_TRUE(record.count(Kind::kMayWrite));
    EXPECT_FALSE(record.count(Kind::kFailed));
    const auto layers = std::ranges::count(record.events, Kind::kLayer, &DecodeEvent::kind);
    EXPECT_EQ(layers, GetParam().options.per_layer ? 4 : 0);
  }
  const bool final = GetParam().options.model.ordered;
  EXPECT_EQ(cluster.decoder->stats().waited_for_quiet > 0, !final);
  cluster.expect_all_back();
  for (const PrefillEvent& event : cluster.prefill(0).events) EXPECT_EQ(event.code, Errc::kOk);
  EXPECT_EQ(cluster.decoder->stats().completed, 6u);
  EXPECT_EQ(cluster.decoder->stats().revokes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Cases, KvTransfer, testing::ValuesIn(transfer_cases()),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace fabric::kv::test
