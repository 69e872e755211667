#include <gtest/gtest.h>

#include <cstring>

#include "kv/disaggregated_run.h"
#include "kv/kv_cluster.h"
#include "kv/plan_model.h"
#include "support/log_guard.h"

// Staged transfers that are cut short: neither pages nor staging records are touched after they are
// free, and what is refused is refused by name. layouts_test.cc has those that complete.

namespace fabric::kv::test::staging_test {
namespace {

constexpr uint32_t kPrompt = 75;
constexpr uint64_t kRecords = 2 * 5;  ///< of the request: two sources, five units
constexpr std::byte kByte{0x5c};

/// NHD on two prefill ranks to NHD on one decode rank.
struct Layouts {
  Side prefill, decode;
  std::vector<RankWords> sources, targets;
  std::vector<DisaggregatedRun::RankMemory> source_memory, target_memory;

  Layouts() {
    SideSpec spec{.tp = 2, .order = PageOrder::kNHD};
    spec.groups = {{.tensors = {{.name = "k", .heads = 4}, {.name = "v", .heads = 4}}}};
    prefill = make_side(spec);
    spec.tp = 1;
    decode = make_side(spec);
    const auto allocate = [](const Side& side, auto& words, auto& memory) {
      words.resize(side.ranks.size());
      for (size_t r = 0; r < words.size(); ++r) {
        words[r].emplace_back(side.ranks[r].region_bytes[0] / kWordBytes, 0x11111111u);
        memory.push_back({std::as_writable_bytes(std::span(words[r][0]))});
      }
    };
    allocate(prefill, sources, source_memory);
    allocate(decode, targets, target_memory);
  }
};

DisaggregatedRun::Request request_of(std::vector<uint32_t> pages) {
  return {
      .prompt_tokens = kPrompt,
      .groups = {{"full", {.source_pages = {4, 2, 0, 1, 3}, .target_pages = std::move(pages)}}}};
}

/// All passes are done before the first write: `world` runs the writes.
void begin(DisaggregatedRun& run, uint32_t attempt) {
  run.start(request_of({9, 3, 8, 1, 6}), attempt);
  run.begin_pass({0, kPrompt});
  run.all_layers_done();
  run.end_prompt();
}

/// Each lease that is not quiet holds the five records of its source, and no other is taken.
bool records_are_leased(const DisaggregatedRun& run) {
  const DecoderStats now = run.decoder(0).stats();
  const uint64_t leases = now.in_flight + now.stopping + now.draining + now.awaiting_quiet +
                          now.fencing + now.quarantined;
  return now.staging_records == leases * (kRecords / 2);
}

struct FaultCase {
  const char* name;
  bool crash;
  sim::NicModel model;
};

class KvStagingFaults : public testing::TestWithParam<FaultCase> {};

TEST_P(KvStagingFaults, LeaveFreePagesAndRecordsUntouchedAtEveryEvent) {
  for (const char* part : {"peer", "path", "rail", "drain", "fence", "proof"}) {
    fabric::test::expect_log(part);
  }
  DisaggregatedRun::Options options{.plan = {.staging = true}, .model = GetParam().model};
  options.staging_slots = 3;
  options.staging_records = kRecords;
  bool part_seen = false;
  for (uint64_t event = 1;; event += 3) {
    Layouts layouts;
    DisaggregatedRun run(layouts.prefill, layouts.source_memory, layouts.decode,
                         layouts.target_memory, options);
    begin(run, 0);
    const uint64_t first = run.world.events();
    ASSERT_TRUE(run.world.run_until(
        [&] { return run.world.events() >= first + event || run.decode_over(); }, 10s));
    if (run.decode_over()) break;  // every event has had its turn
    const uint64_t held = run.decoder(0).stats().staging_records;
    part_seen = part_seen || held > 0;
    if (GetParam().crash) {
      run.crash_prefill(0);
    } else {
      ASSERT_TRUE(run.decoder(0).cancel(kRunId));
    }
    const auto over = [&] {
      EXPECT_TRUE(records_are_leased(run)) << "event " << event;
      return run.decode_over() || HasFailure();
    };
    ASSERT_TRUE(run.world.run_until(over, 60s)) << "event " << event;
    std::ranges::fill(layouts.target_memory[0][0], kByte);
    std::ranges::fill(run.staging(0), kByte);
    run.world.run_for(2s);  // what would land late, lands now
    EXPECT_TRUE(fabric::test::untouched(layouts.target_memory[0][0], kByte)) << "event " << event;
    EXPECT_TRUE(fabric::test::untouched(run.staging(0), kByte)) << "event " << event;
    if (!GetParam().crash) {  // the same records serve the next attempt
      const uint64_t completed = run.decoder(0).stats().completed;
      begin(run, 1);
      ASSERT_TRUE(run.world.run_until([&] { return run.decode_over(); }, 10s));
      EXPECT_EQ(run.decoder(0).stats().completed, completed + 1) << "event " << event;
    }
    ASSERT_FALSE(HasFailure()) << "event " << event;
  }
  EXPECT_TRUE(part_seen);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, KvStagingFaults,
    testing::Values(FaultCase{"Cancel", false, sim::NicModel::connectx7()},
                    FaultCase{"CancelWithoutOrder", false, sim::NicModel::efa_200g()},
                    FaultCase{"Crash", true, sim::NicModel::connectx7()},
                    FaultCase{"CrashWithoutOrder", true, sim::NicModel::efa_200g()}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(KvStaging, WithoutEnoughRecordsARequestIsRefusedWithTheirNumber) {
  Layouts layouts;
  DisaggregatedRun::Options options{.plan = {.staging = true}};
  options.staging_records = kRecords + 1;
  DisaggregatedRun run(layouts.prefill, layouts.source_memory, layouts.decode,
                       layouts.target_memory, options);
  run.start(request_of({9, 3, 8, 1, 6}));
  EXPECT_EQ(run.decoder(0).stats().staging_records, kRecords);
  const auto more = run.start_another("another request", {0, 2, 4, 5, 7});
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Errc::kExhausted);
  EXPECT_EQ(more.error().native, static_cast<int32_t>(kRecords));
  EXPECT_EQ(run.decoder(0).stats().staging_records, kRecords) << "and nothing is taken";
  run.begin_pass({0, kPrompt});
  run.all_layers_done();
  run.finish();
  EXPECT_TRUE(run.start_another("another request", {0, 2, 4, 5, 7}));
}

TEST(KvStaging, WithoutStagingMemoryAPlanIsRefusedByName) {
  Layouts layouts;
  sim::World world({.seed = fabric::test::test_seed()});
  Engine engine = *world.open(world.add_node(), fabric::test::short_timeouts_config());
  const MemoryRegion cache =
      *engine.allocate({.size_bytes = layouts.decode.ranks[0].region_bytes[0]});
  const MemoryRegion staging = *engine.allocate({.size_bytes = 4096});
  DecoderOptions options{.layout = layouts.decode.ranks[0], .regions = {&cache}};
  options.plan.staging = true;
  const auto refused = [&] {
    auto decoder = Decoder::open(engine, options);
    return decoder ? decoder->add_prefill(layouts.prefill).error() : decoder.error();
  };
  EXPECT_EQ(refused().code, Errc::kUnsupported);
  options.staging_region = &staging;
  EXPECT_EQ(refused().code, Errc::kInvalidArgument);
  options.staging_record_bytes = 64;
  EXPECT_EQ(refused().code, Errc::kTooLarge);
  // 2 layers, 2 tensors, 16 tokens, 2 heads of 2 words.
  EXPECT_EQ(refused().native, 2 * 2 * 16 * 2 * 2 * 4);
  options.staging_record_bytes = 2 * 2 * 16 * 2 * 2 * 4;
  auto decoder = Decoder::open(engine, options);
  ASSERT_TRUE(decoder);
  EXPECT_TRUE(decoder->add_prefill(layouts.prefill));
}

}  // namespace
}  // namespace fabric::kv::test::staging_test
