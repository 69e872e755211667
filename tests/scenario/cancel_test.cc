#include <algorithm>

#include "harness/write_auditor.h"
#include "support/log_guard.h"

// Cancelling what is queued, on its way or done, at every step, alone and against everything else
// that may end it at the same moment (P1, P3, P4).

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 1 << 20;
constexpr uint64_t kCancelStride = 17;    // run the test at every n-th network event
constexpr uint32_t kA = 0, kB = 1;  // nodes

class CancelSetup {
 public:
  explicit CancelSetup(const sim::NicModel& model = slow_rc())
      : world(sim::WorldOptions{.seed = test_seed()}),
        a(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
        b(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
        to{&b, connect(a, b)},
        auditor(a, test_seed()) {
    await_connected(world, a, to.remote.peer);
  }

  void submit(Timeout timeout = {}) {
    auditor.write(to, 150'000, {.timeout = timeout});
    auditor.pages(to, 30, 4096, {.timeout = timeout});
    auditor.write(to, 60'000, {.timeout = timeout, .priority = Priority::kBulk, .unsplit = true});
    auditor.write(to, 500, {.timeout = timeout, .counted = false});
  }

  void run_to_event(uint64_t at) {
    world.run_until([&] { return world.events() >= at; }, 10s);
  }
  void cancel(size_t op) {
    const auto asked = a.engine.cancel(auditor.ops[op].id);
    if (asked) return;
    EXPECT_EQ(asked.error().code, Errc::kNotFound);
    EXPECT_EQ(auditor.ops[op].reports, 1u) << "it is said to have ended";
  }
  void cancel_all() {
    for (size_t i = 0; i < auditor.ops.size(); ++i) cancel(i);
  }

  sim::World world;
  Host a, b;
  WriteAuditor::Target to;
  WriteAuditor auditor;
};

std::pair<uint64_t, uint64_t> undisturbed(const sim::NicModel& model) {
  CancelSetup pair(model);
  const uint64_t begin = pair.world.events();
  pair.submit();
  EXPECT_TRUE(pair.world.run_until([&] { return pair.auditor.all_completed(); }, 10s));
  return {begin, pair.world.events()};
}

using Codes = std::initializer_list<Errc>;

/// What all of these stories end with. `codes`: those that an operation may end with.
void ends_well(CancelSetup& pair, Codes codes) {
  run_until_complete(pair.world, pair.auditor);
  ASSERT_NO_FATAL_FAILURE(pair.auditor.check());
  for (const auto& op : pair.auditor.ops) {
    EXPECT_TRUE(std::ranges::count(codes, op.event.code) == 1) << to_string(op.event.code);
  }
}

/// Tells a story once for every few events between the first submit and the last completion.
void at_any_step(const sim::NicModel& model, const std::function<void(CancelSetup&, uint64_t)>& body) {
  expect_fault_logs();
  const auto [begin, end] = undisturbed(model);
  ASSERT_GT(end, begin + 100);
  for (uint64_t at = begin; at < end; at += kCancelStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    CancelSetup pair(model);
    body(pair, at);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Cancel, OfOneOperationLeavesTheOthersAlone) {
  for (const size_t victim : {0u, 1u, 2u}) {
    at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
      pair.submit();
      pair.run_to_event(at);
      const Nanos asked = pair.world.now();
      pair.cancel(victim);
      ends_well(pair, {Errc::kOk, Errc::kCancelled});
      pair.auditor.check_keys();
      for (size_t i = 0; i < pair.auditor.ops.size(); ++i) {
        EXPECT_TRUE(i == victim || pair.auditor.ops[i].ok()) << "operation " << i;
      }
      EXPECT_LE(pair.auditor.ops[victim].completed, asked + 1ms) << "nothing stood in its way";
      EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
      EXPECT_EQ(logged("an operation does not drain"), 0u);
      EXPECT_EQ(logged("a path broke"), 0u);
    });
  }
}

TEST(Cancel, OfABatchStopsAllOfItAndRefusesMore) {
  for (const sim::NicModel& model : {slow_rc(), slow_srd()}) {
    at_any_step(model, [&](CancelSetup& pair, uint64_t at) {
      pair.submit();
      Batch batch = *pair.a.engine.make_batch();
      const Write more{.source = pair.a.memory.at(900'000),
                       .target = pair.to.remote.at(900'000),
                       .size_bytes = 100'000,
                       .batch = batch};
      ASSERT_TRUE(pair.a.engine.submit(more));
      pair.run_to_event(at);
      pair.cancel_all();
      ASSERT_TRUE(pair.a.engine.cancel(batch));
      EXPECT_EQ(pair.a.engine.submit(more).error().code, Errc::kCancelled);
      ends_well(pair, {Errc::kOk, Errc::kCancelled});
      pair.auditor.check_keys();
      EXPECT_EQ(batch.pending(), 0u);
      EXPECT_EQ(batch.delivered() + batch.failed(), 1u);
      ASSERT_TRUE(batch.reset());
      ASSERT_TRUE(pair.a.engine.submit(more));
      EXPECT_TRUE(pair.a.engine.wait(batch));
    });
  }
}

TEST(Cancel, OfPagesThatAreNotPostedYetEndsEachOfThem) {
  constexpr uint32_t kPages = 5;
  CancelSetup pair;
  auto& op = pair.auditor.pages(pair.to, kPages, 4096);
  ASSERT_TRUE(pair.a.engine.cancel(op.id));
  ends_well(pair, {Errc::kCancelled});
  EXPECT_EQ(op.batch->failed(), kPages);
  for (const auto& part : op.parts) {
    EXPECT_EQ(part.code, Errc::kCancelled);
    EXPECT_EQ(part.remote, Remote::kNotDelivered);
  }
  EXPECT_TRUE(untouched(pair.b.bytes()));
}

TEST(Cancel, AgainstTheDeadline) {
  expect_fault_logs();
  // The deadline falls into the middle of the writes; the cancel comes right before, with or after.
  for (const Nanos deadline : {Nanos(50us), Nanos(120us), Nanos(250us)}) {
    for (const Nanos apart : {Nanos(-1us), Nanos(0), Nanos(1us)}) {
      SCOPED_TRACE(testing::Message() << deadline.count() << " " << apart.count());
      CancelSetup pair;
      pair.submit(deadline);
      pair.world.run_for(deadline + apart);
      pair.cancel_all();
      ends_well(pair, {Errc::kOk, Errc::kCancelled, Errc::kTimeout});
      pair.auditor.check_keys();
      EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
    }
  }
}

TEST(Cancel, AgainstABreakOfThePath) {
  for (const Fault& fault : {Fault::break_sender(kA, kB, 0), Fault::break_target(kA, kB, 0),
                             Fault::nic_down(kA, 1), Fault::nic_down(kB, 0)}) {
    at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
      ASSERT_TRUE(pair.world.at_event(at, fault));
      pair.submit();
      pair.run_to_event(at + at % 5);
      pair.cancel_all();
      ends_well(pair, {Errc::kOk, Errc::kCancelled});
      pair.auditor.check_keys();
      EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
    });
  }
}

TEST(Cancel, AgainstTheLossOfEveryRailOfTheReceiver) {
  const Fault all_down = Fault::nic_down(kB, Fault::kAllRails);
  at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
    ASSERT_TRUE(pair.world.at_event(at, all_down));
    pair.submit();
    pair.run_to_event(at);
    const Nanos asked = pair.world.now();
    pair.cancel_all();
    ends_well(pair, {Errc::kOk, Errc::kCancelled});
    pair.auditor.check_keys();
    for (const auto& op : pair.auditor.ops) {
      EXPECT_LE(op.completed, asked + 1ms) << "what was cancelled does not wait for a way";
    }
    ASSERT_TRUE(pair.world.at(pair.world.now(), Fault::nic_up(kB, Fault::kAllRails)));
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
  });
}

TEST(Cancel, AgainstABreakWhoseTargetDoesNotAnswer) {
  at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
    ASSERT_TRUE(pair.world.at_event(at, Fault::stop(kB)));
    ASSERT_TRUE(pair.world.at_event(at, Fault::break_sender(kA, kB, 0)));
    pair.submit();
    pair.run_to_event(at + 3);
    const Nanos asked = pair.world.now();
    pair.cancel_all();
    ASSERT_TRUE(pair.world.run_until([&] { return pair.auditor.all_completed(); }, 60s));
    EXPECT_LE(pair.world.now(), asked + short_timeouts_config().drain_timeout + 1ms);
    // It goes on, hears which keys are spoiled, and is as good as new.
    ASSERT_TRUE(pair.world.at(pair.world.now() + 100ms, Fault::resume(kB)));
    pair.world.run_for(200ms);
    ends_well(pair, {Errc::kOk, Errc::kCancelled});
    pair.auditor.check_keys();
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
  });
}

TEST(Cancel, AgainstTheLossOfThePeer) {
  at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
    ASSERT_TRUE(pair.world.at_event(at, Fault::crash(kB)));
    pair.auditor.died(pair.b);
    pair.submit();
    pair.run_to_event(at + at % 4);
    if (at % 2 == 0) pair.world.run_for(999ms + Nanos(at % 3 * 1'000'000));
    pair.cancel_all();
    ends_well(pair, {Errc::kOk, Errc::kCancelled, Errc::kPeerLost});
    Host next = open_host(pair.world, kB, kSize, short_timeouts_config());
    EXPECT_TRUE(delivers(pair.world, pair.a, next, 5));
  });
}

TEST(Cancel, AgainstClose) {
  at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
    pair.submit();
    pair.run_to_event(at);
    pair.cancel_all();
    ASSERT_TRUE(pair.a.engine.close());
    EXPECT_TRUE(pair.auditor.all_completed());
    ends_well(pair, {Errc::kOk, Errc::kCancelled, Errc::kClosed});
  });
}

}  // namespace
}  // namespace fabric::test
