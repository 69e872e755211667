#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "kv/kv_cluster.h"
#include "kv/test_rounds.h"
#include "support/log_guard.h"

// One request, and a cancel or a fault at every network event of its life, with 1, 2 and 4 sources,
// on NICs with and without order. In every step of every run each page is in one state, free pages
// keep their canary and what the decoder wrote itself stays; at the end all pages are back.
//
// FABRICLIB_TEST_ROUNDS=N takes N times as many events, all of them when there are not as many; 600
// are more than there are.

namespace fabric::kv::test::sweep_test {
namespace {

using sim::Fault;
using Kind = DecodeEvent::Kind;

constexpr uint32_t kDrawn = 2;  ///< events of each case by default
constexpr uint32_t kPrompt = 90;

struct SweepCase {
  const char* name;
  bool cancels = false;         ///< at the event
  uint32_t fault_after = 0;     ///< events after the cancel, when there is one
  std::vector<Fault> faults{};  ///< node numbers as in the cluster: 0 the decoder, 1 a prefiller
  Nanos undone_after{};         ///< 0: never
  bool from_start = false;      ///< the faults hold from the beginning
  bool unordered_only = false;
  bool late_bytes = false;  ///< bytes and counts are 3 ms late, from the beginning
  double drop = 0, reorder = 0, duplicate = 0;  ///< of control datagrams
};

const std::vector<SweepCase>& sweep_cases() {
  static const std::vector<SweepCase> all{
      {.name = "cancel", .cancels = true},
      {.name = "cancel_bad_control",
       .cancels = true,
       .drop = 0.2,
       .reorder = 0.3,
       .duplicate = 0.1},
      {.name = "crash", .faults = {Fault::crash(1)}},
      {.name = "crash_after_cancel",
       .cancels = true,
       .fault_after = 3,
       .faults = {Fault::crash(1)}},
      {.name = "stop_continue", .faults = {Fault::stop(1)}, .undone_after = 700ms},
      {.name = "zombie", .faults = {Fault::stop(1)}, .undone_after = 6s},
      {.name = "stop_for_ever", .faults = {Fault::stop(1)}},
      {.name = "cancel_while_stopped",
       .cancels = true,
       .fault_after = 1,
       .faults = {Fault::stop(1)},
       .undone_after = 6s},
      {.name = "cut", .faults = {Fault::cut(0, 1)}, .undone_after = 900ms},
      {.name = "long_cut", .faults = {Fault::cut(0, 1)}, .undone_after = 6s},
      {.name = "cancel_acks_lost",
       .cancels = true,
       .faults = {Fault::lose_acks(1, 0)},
       .undone_after = 6s,
       .from_start = true},
      {.name = "acks_lost", .faults = {Fault::lose_acks(1, 0)}, .undone_after = 6s},
      {.name = "cancel_late_counts",
       .cancels = true,
       .faults = {Fault::late_counts(0, 3ms)},
       .from_start = true},
      {.name = "cancel_late_bytes",
       .cancels = true,
       .faults = {Fault::late_bytes(0, 3ms)},
       .from_start = true},
      {.name = "crash_late_bytes", .faults = {Fault::crash(1)}, .late_bytes = true},
      {.name = "twice",
       .cancels = false,
       .faults = {Fault::twice(1, 0), Fault::late_acks(1, 2ms)},
       .from_start = true,
       .unordered_only = true},
      {.name = "cancel_twice",
       .cancels = true,
       .faults = {Fault::twice(1, 0), Fault::late_acks(1, 2ms)},
       .from_start = true,
       .unordered_only = true},
      {.name = "late_proof", .faults = {Fault::stop(1), Fault::late_proof(0, 4s)}},
  };
  return all;
}

struct SweepParam {
  SweepCase sweep;
  bool ordered;
  uint32_t sources;
};

std::vector<SweepParam> sweep_params() {
  std::vector<SweepParam> params;
  for (const SweepCase& sweep : sweep_cases()) {
    for (const bool ordered : {true, false}) {
      if (ordered && sweep.unordered_only) continue;
      for (const uint32_t sources : {1u, 2u, 4u}) params.push_back({sweep, ordered, sources});
    }
  }
  return params;
}

/// What the runs of a case came to, for the report.
struct SweepTotals {
  uint64_t runs = 0, complete = 0, cancelled = 0, again = 0, revokes = 0, fences = 0, proved = 0,
           late = 0, waited_for_counts = 0, waited_for_quiet = 0;
};

class KvSweep : public testing::TestWithParam<SweepParam> {
 protected:
  ClusterOptions cluster_options(uint64_t seed) const {
    ClusterOptions options{.seed = seed, .sources = GetParam().sources, .pages = 16};
    options.model = GetParam().ordered ? sim::NicModel::connectx7() : sim::NicModel::efa_200g();
    options.network.drop_control = GetParam().sweep.drop;
    options.network.reorder_control = GetParam().sweep.reorder;
    options.network.duplicate_control = GetParam().sweep.duplicate;
    return options;
  }
  /// Network events of a run without a fault. Lost and late datagrams make it longer: then the last
  /// of its events have no fault.
  uint64_t events_without_faults() const {
    static std::map<std::pair<bool, uint32_t>, uint64_t> known;
    uint64_t& events = known[{GetParam().ordered, GetParam().sources}];
    if (events > 0) return events;
    ClusterOptions options = cluster_options(fabric::test::test_seed());
    options.network = {};
    KvCluster cluster(options);
    EXPECT_TRUE(cluster.start("r", kPrompt));
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_over(); }, 60s));
    events = cluster.world.events();
    cluster.expect_all_back();
    return events;
  }
  void inject(KvCluster& cluster, uint64_t event) {
    const SweepCase& sweep = GetParam().sweep;
    if (sweep.late_bytes) cluster.happens(Fault::late_bytes(0, 3ms));
    for (const Fault& fault : sweep.faults) {
      if (sweep.from_start) {
        cluster.happens(fault);
      } else {
        ASSERT_TRUE(cluster.world.at_event(event + sweep.fault_after, fault));
      }
    }
  }
  void run_one(uint64_t event, SweepTotals& totals) {
    const SweepCase& sweep = GetParam().sweep;
    ClusterOptions options = cluster_options(fabric::test::test_seed() + event);
    options.per_layer = event % 2 == 1;
    KvCluster cluster(options);
    inject(cluster, event);
    ASSERT_TRUE(cluster.start("r", kPrompt));
    bool undone = sweep.undone_after == Nanos{};
    Nanos undo_at{};
    bool cancelled = !sweep.cancels;
    const auto done = [&] {
      if (!cancelled && cluster.world.events() >= event) {
        cancelled = true;
        (void)cluster.decoder->cancel("r");  // not found: it is over already
      }
      const bool came = cluster.world.events() >= event + sweep.fault_after || sweep.from_start;
      if (!undone && undo_at == Nanos{} && came) undo_at = cluster.world.now() + sweep.undone_after;
      if (!undone && undo_at != Nanos{} && cluster.world.now() >= undo_at) {
        undone = true;
        for (const Fault& fault : sweep.faults) {
          if (const auto opposite = sim::opposite(fault)) cluster.happens(*opposite);
        }
      }
      return cluster.all_over() && cancelled;
    };
    ASSERT_TRUE(cluster.run_until(done, 60s)) << cluster.engine->dump();
    // A fault that comes after the request, and a prefiller that is still stopped: its own batches
    // end when it continues.
    const uint64_t last = event + sweep.fault_after + 1;
    if (!sweep.from_start) cluster.run_until([&] { return cluster.world.events() > last; }, 20s);
    for (const Fault& fault : sweep.faults) {
      if (const auto opposite = sim::opposite(fault)) cluster.happens(*opposite);
    }
    cluster.run_until([&] { return cluster.prefills_idle(); }, 15s);
    const bool complete = cluster.attempt("r").count(Kind::kComplete) ||
                          cluster.attempt("r", 1).count(Kind::kComplete);
    const bool was_cancelled = cluster.attempt("r").count(Kind::kCancelled);
    EXPECT_TRUE(complete || (sweep.cancels && cluster.decoder->stats().cancelled > 0))
        << "neither complete nor cancelled";
    const DecoderStats stats = cluster.decoder->stats();
    cluster.expect_all_back();
    ++totals.runs;
    totals.complete += complete;
    totals.cancelled += was_cancelled;
    totals.again += stats.failed;
    totals.revokes += stats.revokes;
    totals.fences += stats.fences;
    totals.proved += stats.fences_proved;
    totals.late += stats.fences_late;
    totals.waited_for_counts += stats.waited_for_counts;
    totals.waited_for_quiet += stats.waited_for_quiet;
  }
};

TEST_P(KvSweep, NoPageIsLostOrWrittenByTheWrongRequest) {
  for (const char* part : {"peer", "path", "rail", "drain", "fence", "proof", "control"}) {
    fabric::test::expect_log(part);
  }
  const uint64_t end = events_without_faults();
  SweepTotals totals;
  Rng rng(fabric::test::test_seed());
  const uint64_t wanted = kDrawn * test_rounds();
  std::set<uint64_t> events;
  if (wanted >= end) {
    for (uint64_t event = 0; event < end + 3; ++event) events.insert(event);
  } else {
    while (events.size() < wanted) events.insert(rng.below(end + 3));
  }
  for (const uint64_t event : events) {
    SCOPED_TRACE("at event " + std::to_string(event) + " of " + std::to_string(end) + ", " +
                 fabric::test::replay(fabric::test::test_seed()));
    run_one(event, totals);
    if (HasFailure()) return;
  }
  fmt::print(
      "{}: {} runs, of {} events; {} complete, {} cancelled, {} sent again, {} revokes and {} "
      "fences, {} proved, "
      "{} of them late, waited for counts {}, for quiet {}\n",
      testing::UnitTest::GetInstance()->current_test_info()->name(), totals.runs, end,
      totals.complete, totals.cancelled, totals.again, totals.revokes, totals.fences, totals.proved,
      totals.late, totals.waited_for_counts, totals.waited_for_quiet);
}

INSTANTIATE_TEST_SUITE_P(Events, KvSweep, testing::ValuesIn(sweep_params()), [](const auto& one) {
  return std::string(one.param.sweep.name) + (one.param.ordered ? "_cx7_" : "_efa_") +
         std::to_string(one.param.sources);
});

}  // namespace
}  // namespace fabric::kv::test::sweep_test
