#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "harness/host.h"
#include "scenario/list_steps.h"
#include "scenario/pairs.h"
#include "support/log_guard.h"

// Prepared write lists: a plan that stays with the engine, submitted by ranges.

namespace fabric::test::write_lists_test {
namespace {

uint64_t lists_held(const Engine& engine) { return held(engine, "prepared_lists"); }

/// Writes of different sizes, an empty one among them; sources in another order than targets, and
/// gaps between the targets.
std::vector<ListedWrite> draw_writes(uint32_t count, uint64_t size_max) {
  Rng rng(5);
  std::vector<ListedWrite> writes(count);
  uint64_t at = 0;
  for (ListedWrite& write : writes) {
    write.size_bytes = rng.below(size_max + 1);
    write.target_offset = at;
    at += write.size_bytes + rng.below(9);
  }
  if (count > 1) writes[1].size_bytes = 0;
  uint64_t from = 0;
  for (size_t i = writes.size(); i > 0; --i) {
    writes[i - 1].source_offset = from;
    from += writes[i - 1].size_bytes;
  }
  return writes;
}

/// Exactly these writes have arrived, shifted by the bases.
void check(const Host& a, const Host& b, std::span<const ListedWrite> writes, uint64_t here,
           uint64_t there) {
  std::vector<std::byte> expected(b.bytes().size());
  for (const ListedWrite& write : writes) {
    std::ranges::copy(a.bytes(here + write.source_offset, write.size_bytes),
                      expected.begin() + static_cast<ptrdiff_t>(there + write.target_offset));
  }
  EXPECT_TRUE(std::ranges::equal(b.bytes(), expected));
}

TEST(WriteLists, APlanOf38000WritesIsSubmittedByRanges) {
  constexpr uint32_t kWrites = 38'000, kRange = 1000;
  constexpr uint64_t kHere = 24, kThere = 100;
  const auto writes = draw_writes(kWrites, 40);
  Config config = test_config();
  config.index_arena_bytes = 4096;  // nothing of a list is copied there
  ConnectedPair pair(config, 2 << 20);
  Engine& engine = pair.a.engine;
  fill(pair.a.bytes(), 3);
  const WriteList list = *engine.make_write_list(writes);
  EXPECT_EQ(list.size(), kWrites);
  Counter counter = *pair.b.engine.make_counter();
  Batch batch = *engine.make_batch();
  uint64_t bytes = 0;
  EventRecorder ended;
  // The last range first: ranges need no order.
  for (uint32_t first = kWrites; first > 0; first -= kRange) {
    const auto op = engine.submit(ListedWrites{.list = list,
                                               .first = first - kRange,
                                               .count = kRange,
                                               .source = pair.a.memory.at(kHere),
                                               .target = pair.remote.at(kThere),
                                               .imm = counter.key(),
                                               .batch = batch,
                                               .notify = ended.notify(first)});
    ASSERT_TRUE(op) << op.error().what;
  }
  ASSERT_TRUE(engine.wait(batch, 60s));
  ASSERT_TRUE(counter.wait(kWrites, 60s));
  check(pair.a, pair.b, writes, kHere, kThere);
  ASSERT_TRUE(pair.world.run_until([&] { return ended.count() == kWrites / kRange; }, 1s));
  for (const Event& event : ended.events) bytes += event.value;
  uint64_t expected = 0;
  for (const ListedWrite& write : writes) expected += write.size_bytes;
  EXPECT_EQ(bytes, expected);
  EXPECT_EQ(counter.count(), 0u);
}

TEST(WriteLists, OneListServesSeveralPeersAndTheirNextSessions) {
  const auto writes = draw_writes(64, 300);
  sim::World world;
  Host a = open_host(world, world.add_node(2), 1 << 16);
  fill(a.bytes(), 4);
  const WriteList list = *a.engine.make_write_list(writes);
  Batch batch = *a.engine.make_batch();
  for (int i = 0; i < 3; ++i) {
    Host b = open_host(world, world.add_node(2), 1 << 16);
    const RemoteHost remote = connect(a, b);
    Counter counter = *b.engine.make_counter();
    ASSERT_TRUE(a.engine.submit(ListedWrites{.list = list,
                                             .count = 64,
                                             .source = a.memory.at(0),
                                             .target = remote.at(8),
                                             .imm = counter.key(),
                                             .batch = batch}));
    ASSERT_TRUE(counter.wait(64, 10s));
    ASSERT_TRUE(a.engine.wait(batch, 10s));
    check(a, b, writes, 0, 8);
  }
}

TEST(WriteLists, ARangeIsCheckedAloneWhenTheListIsLargerThanTheRegion) {
  ConnectedPair pair(test_config(), 4096);
  Engine& engine = pair.a.engine;
  const ListedWrite writes[] = {{0, 0, 100}, {100, 4000, 96}, {4095, 0, 2}, {0, 1 << 20, 1}};
  const WriteList list = *engine.make_write_list(writes);
  const auto submit = [&](uint32_t first, uint32_t count, uint64_t here, uint64_t there) {
    return engine.submit(ListedWrites{.list = list,
                                      .first = first,
                                      .count = count,
                                      .source = pair.a.memory.at(here),
                                      .target = pair.remote.at(there)});
  };
  const auto refused = [](const Result<OpId>& op, Errc code, const char* what) {
    EXPECT_EQ(op.error().code, code) << to_string(op.error().code);
    EXPECT_STREQ(op.error().what, what);
  };
  EXPECT_TRUE(submit(0, 2, 0, 0));
  refused(submit(0, 2, 0, 1), Errc::kOutOfBounds, "target");
  refused(submit(0, 3, 0, 0), Errc::kOutOfBounds, "source");
  refused(submit(3, 1, 0, 0), Errc::kOutOfBounds, "target");
  refused(submit(0, 1, 3997, 0), Errc::kOutOfBounds, "source");
  refused(submit(0, 1, UINT64_MAX, 0), Errc::kOutOfBounds, "source");
  refused(submit(0, 0, 0, 0), Errc::kInvalidArgument, "count");
  refused(submit(4, 1, 0, 0), Errc::kOutOfBounds, "first");
  refused(submit(3, 2, 0, 0), Errc::kOutOfBounds, "count");
  refused(submit(1, UINT32_MAX, 0, 0), Errc::kOutOfBounds, "count");
}

TEST(WriteLists, BadListsAreRefusedByName) {
  ConnectedPair pair(test_config(), 4096);
  Engine& engine = pair.a.engine;
  const auto code = [](const auto& result) { return result.error().code; };
  EXPECT_EQ(code(engine.make_write_list({})), Errc::kInvalidArgument);
  const ListedWrite wraps[] = {{0, 0, 1}, {UINT64_MAX, 0, 1}};
  EXPECT_EQ(code(engine.make_write_list(wraps)), Errc::kInvalidArgument);
  EXPECT_STREQ(engine.make_write_list(wraps).error().what, "writes");
  const ListedWrite good[] = {{0, 0, 1}};
  WriteList list = *engine.make_write_list(good);
  const WriteList theirs = *pair.b.engine.make_write_list(good);
  EXPECT_EQ(list.id().slot, theirs.id().slot);
  ListedWrites request{
      .list = theirs, .count = 1, .source = pair.a.memory.at(0), .target = pair.remote.at(0)};
  EXPECT_EQ(code(engine.submit(request)), Errc::kNotFound) << "of another engine";
  request.list = WriteListId(9, 9);
  EXPECT_EQ(code(engine.submit(request)), Errc::kNotFound);
  request.list = {};
  EXPECT_EQ(code(engine.submit(request)), Errc::kInvalidArgument);
  EXPECT_STREQ(engine.submit(request).error().what, "list");
  request.list = list;
  list = WriteList();
  EXPECT_EQ(code(engine.submit(request)), Errc::kNotFound) << "destroyed";
  const WriteList last = *engine.make_write_list(good);
  request.list = last;
  request.source.region = {};
  EXPECT_STREQ(engine.submit(request).error().what, "source");
  request.source = pair.a.memory.at(0);
  request.target.region = {};
  EXPECT_STREQ(engine.submit(request).error().what, "target");
  ASSERT_TRUE(engine.close());
  EXPECT_EQ(code(engine.make_write_list(good)), Errc::kClosed);
  EXPECT_EQ(code(engine.submit(request)), Errc::kClosed);
}

// One work request each: what is too large for that fails, and nothing else does.
TEST(WriteLists, AWriteThatIsTooLargeForTheNetworkFailsAlone) {
  sim::NicModel model = sim::NicModel::connectx7();
  model.write_bytes_max = 4096;
  sim::World world;
  Host a = open_host(world, world.add_node(2, model), 1 << 16);
  Host b = open_host(world, world.add_node(2, model), 1 << 16);
  const RemoteHost remote = connect(a, b);
  fill(a.bytes(), 4);
  const ListedWrite writes[] = {{0, 0, 4096}, {9000, 9000, 4097}, {20'000, 20'000, 100}};
  const WriteList list = *a.engine.make_write_list(writes);
  Counter counter = *b.engine.make_counter();
  EventRecorder ended;
  ASSERT_TRUE(a.engine.submit(ListedWrites{.list = list,
                                           .count = 3,
                                           .source = a.memory.at(0),
                                           .target = remote.at(0),
                                           .imm = counter.key(),
                                           .notify = ended.notify()}));
  ASSERT_TRUE(world.run_until([&] { return ended.count() == 1; }, 1s));
  EXPECT_EQ(ended.events[0].code, Errc::kTooLarge);
  EXPECT_EQ(ended.events[0].parts_failed, 1u);
  EXPECT_EQ(ended.events[0].first_failed, 1u);
  EXPECT_EQ(ended.events[0].value, 4196u);
  world.run_for(1ms);
  EXPECT_EQ(counter.count(), 2u);
  const ListedWrite arrived[] = {writes[0], writes[2]};
  check(a, b, arrived, 0, 0);
}

TEST(WriteLists, TakeTurnsOnTheRails) {
  constexpr uint32_t kRails = 4, kWrites = 256;
  std::vector<ListedWrite> writes(kWrites);
  for (uint32_t i = 0; i < kWrites; ++i) writes[i] = {i * 512, i * 512, 512};
  sim::World world;
  Host a = open_host(world, world.add_node(kRails), 1 << 17);
  Host b = open_host(world, world.add_node(kRails), 1 << 17);
  const RemoteHost remote = connect(a, b);
  const WriteList list = *a.engine.make_write_list(writes);
  Batch batch = *a.engine.make_batch();
  ASSERT_TRUE(a.engine.submit(ListedWrites{.list = list,
                                           .count = kWrites,
                                           .source = a.memory.at(0),
                                           .target = remote.at(0),
                                           .batch = batch}));
  ASSERT_TRUE(a.engine.wait(batch, 10s));
  uint32_t seen = 0;
  for (const RailStats& rail : a.engine.rail_stats()) {
    if (rail.tx.bytes == 0) continue;
    ++seen;
    EXPECT_EQ(rail.tx.bytes, kWrites / kRails * 512u);
  }
  EXPECT_EQ(seen, kRails);
}

// Half of the writes have nearly all of the bytes: in turns over the rails, half of the rails would
// carry them.
TEST(WriteLists, AlternatingSizesUseAllRails) {
  constexpr uint32_t kRails = 8, kWrites = 256;
  constexpr uint64_t kLarge = 900'000;
  std::vector<ListedWrite> writes(kWrites);
  for (uint32_t i = 0; i < kWrites; ++i) {
    const uint64_t size = i % 2 == 0 ? kLarge : 1024;
    writes[i] = {.source_offset = i % 7, .target_offset = 0, .size_bytes = size};
  }
  for (const auto priority : {Priority::kNormal, Priority::kBulk}) {
    sim::World world({.carry_bytes = false});
    Host a = open_host(world, world.add_node(kRails), 1 << 20);
    Host b = open_host(world, world.add_node(kRails), 1 << 20);
    const RemoteHost remote = connect(a, b);
    const WriteList list = *a.engine.make_write_list(writes);
    Counter counter = *b.engine.make_counter();
    Batch batch = *a.engine.make_batch();
    // Ranges as a plan submits them, some of which begin or end with a small write.
    uint32_t first = 0;
    for (const uint32_t count : {64u, 33u, 63u, 96u}) {
      ASSERT_TRUE(a.engine.submit(ListedWrites{.list = list,
                                               .first = first,
                                               .count = count,
                                               .source = a.memory.at(0),
                                               .target = remote.at(0),
                                               .imm = counter.key(),
                                               .priority = priority,
                                               .batch = batch}));
      first += count;
    }
    ASSERT_EQ(first, kWrites);
    ASSERT_TRUE(a.engine.wait(batch, 10s));
    EXPECT_TRUE(counter.wait(kWrites, 1s));
    EXPECT_EQ(counter.count(), 0u);
    std::vector<uint64_t> bytes;
    for (const RailStats& rail : a.engine.rail_stats()) {
      if (rail.network != "self") bytes.push_back(rail.tx.bytes);
    }
    ASSERT_EQ(bytes.size(), kRails);
    const auto [least, most] = std::ranges::minmax(bytes);
    EXPECT_LE(most, least + least / 10) << testing::PrintToString(bytes);
  }
}

// Every kind of end, at every step; the handle is destroyed right after the submit.
TEST(WriteLists, EveryWriteArrivesOnceWhenAPathBreaksAtAnyStep) {
  const auto writes = draw_writes(120, 900);
  break_paths_at_any_step(
      19,
      [&](ListTransfer& transfer) {
        Engine& engine = transfer.a.engine;
        for (const uint32_t first : {60u, 0u}) {
          const WriteList list = *engine.make_write_list(writes);
          ASSERT_TRUE(engine.submit(
              ListedWrites{.list = list,
                           .first = first,
                           .count = 60,
                           .source = transfer.a.memory.at(0),
                           .target = transfer.remote.at(0),
                           .imm = transfer.counter.key(),
                           .priority = first == 0 ? Priority::kNormal : Priority::kBulk,
                           .batch = transfer.batch}));
        }
        EXPECT_EQ(lists_held(engine), 2u);
      },
      [&](ListTransfer& transfer) {
        EXPECT_EQ(transfer.counter.count(), 120u);
        check(transfer.a, transfer.b, writes, 0, 0);
      });
}

TEST(WriteLists, AreFreedByCancelTimeoutAndClose) {
  const auto writes = draw_writes(200, 100);
  ConnectedPair pair;
  Engine& engine = pair.a.engine;
  Batch batch = *engine.make_batch();
  const auto submit = [&](Timeout timeout) {
    const WriteList list = *engine.make_write_list(writes);
    return engine.submit(ListedWrites{.list = list,
                                      .count = 200,
                                      .source = pair.a.memory.at(0),
                                      .target = pair.remote.at(0),
                                      .timeout = timeout,
                                      .batch = batch});
  };
  ASSERT_TRUE(engine.cancel(*submit(1s)));
  ASSERT_TRUE(submit(1ns));
  EXPECT_FALSE(engine.wait(batch, 10s));
  EXPECT_EQ(lists_held(engine), 0u);
  const WriteList list = *engine.make_write_list(writes);
  ASSERT_TRUE(submit(1s));
  EXPECT_TRUE(engine.close());
  EXPECT_EQ(list.size(), 200u);
}

}  // namespace
}  // namespace fabric::test::write_lists_test
