#include <algorithm>
#include <map>
#include <set>

#include "harness/host.h"
#include "support/log_guard.h"

// Closing an engine with everything in flight: every operation is reported once, by whatever way it
// asked for, and the memory is the caller's again (P1, P3, P22).

namespace fabric::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

/// One of every kind of request, each by every way of being by, towards a peer that is slow.
class Everything {
 public:
  enum class ReportBy { kCallback, kInbox, kFlag, kBatch, kNone };
  static constexpr ReportBy kReportKinds[] = {ReportBy::kCallback, ReportBy::kInbox, ReportBy::kFlag, ReportBy::kBatch,
                                   ReportBy::kNone};

  explicit Everything(Host& here, const RemoteHost& there)
      : host_(here),
        remote_(there),
        inbox_(*here.engine.make_inbox(1024)),
        batch_(*here.engine.make_batch()),
        group_(*here.engine.make_group({&there.peer, 1})),
        subscription_(*here.engine.subscribe(unhandled.notify())) {}

  /// Every kind that may be in flight together; a fence ends the others, so it is apart.
  void submit_all() {
    for (const ReportBy by : kReportKinds) {
      submit(by,
             Write{.source = host_.memory.at(0), .target = remote_.at(0), .size_bytes = 4 * kMiB});
      submit(by, PagedWrite{.source = host_.memory.id(),
                              .source_pages = {.indices = kPages, .stride_bytes = 65536},
                              .target = remote_.region,
                              .target_pages = {.indices = kPages, .stride_bytes = 65536},
                              .page_bytes = 65536});
      const ScatterTarget targets[] = {{.target = remote_.at(0), .size_bytes = kMiB},
                                       {.target = remote_.at(kMiB), .size_bytes = kMiB}};
      submit(by, Scatter{.source = host_.memory.id(), .targets = targets});
      submit(by, Signal{.group = group_, .keys = kKeys});
      submit(by, Send{.peer = remote_.peer, .channel = 5, .bytes = text_});
      submit(by, Timer{.after = 100s});
      submit(by, Resolve{.peer = remote_.peer, .names = kNames, .out = resolved_});
      regions_.push_back(*host_.engine.register_memory({.address = text_, .size_bytes = 64}));
      submit(by, Deregister{.region = regions_.back().id()});
      counters_.push_back(*host_.engine.make_counter());
      const uint64_t tag = ++last_tag_;
      const auto expectation = counters_.back().expect(1, notify(by, tag), 100s);
      // An expectation has no batch: whoever asks for nothing else hears of it as a subscriber.
      note(by == ReportBy::kBatch ? ReportBy::kNone : by, tag, expectation);
    }
  }
  void submit_fences() {
    for (const ReportBy by : kReportKinds) submit(by, Fence{.peer = remote_.peer});
  }

  /// Looks at every report; called when the engine has closed.
  void check() {
    std::vector<Event> out(1024);
    const uint32_t n = inbox_.poll(out);
    out.resize(n);
    std::multiset<uint64_t> by_inbox, by_call;
    for (const Event& event : out) by_inbox.insert(event.tag);
    for (const Event& event : called.events) by_call.insert(event.tag);
    EXPECT_EQ(by_inbox, expected_[ReportBy::kInbox]);
    EXPECT_EQ(by_call, expected_[ReportBy::kCallback]);
    EXPECT_EQ(batch_.pending(), 0u);
    // Flags and those who asked for nothing: a success is silent, a failure is never lost.
    std::map<OpId, uint32_t> reports;
    for (const Event& event : unhandled.events) {
      if (event.kind == EventKind::kUnhandled) ++reports[event.op];
    }
    for (const auto& [op, times] : reports) EXPECT_EQ(times, 1u) << "op " << op.slot;
    for (const OpId op : without_event_) {
      if (!reports.contains(op)) ++succeeded_in_silence;
    }
    EXPECT_EQ(reports.size() + succeeded_in_silence, without_event_.size());
    for (const auto* events : {&out, &called.events}) {
      for (const Event& event : *events) codes.insert(event.code);
    }
    EXPECT_EQ(host_.engine.stats().ops_in_flight, 0u);
  }

  uint64_t accepted = 0;
  uint64_t succeeded_in_silence = 0;
  std::set<Errc> codes;  ///< how those ended that tell
  EventRecorder called, unhandled;

 private:
  static constexpr uint32_t kPages[] = {0, 5, 9, 2};
  static constexpr uint64_t kNames[] = {1, 2, 3};
  static constexpr CounterKey kKeys[] = {CounterKey::from_wire(77)};

  Notify notify(ReportBy by, uint64_t tag) {
    switch (by) {
      case ReportBy::kCallback:
        return called.notify(tag);
      case ReportBy::kInbox:
        return Notify::inbox(inbox_, tag);
      case ReportBy::kFlag:
        flags_.push_back(*host_.engine.make_flag());
        return Notify::flag(flags_.back());
      default:
        return {};
    }
  }
  template <class Request>
  void submit(ReportBy by, Request request) {
    const uint64_t tag = ++last_tag_;
    request.notify = notify(by, tag);
    if (by == ReportBy::kBatch) request.batch = batch_;
    note(by, tag, host_.engine.submit(request));
  }
  void note(ReportBy by, uint64_t tag, const Result<OpId>& op) {
    ASSERT_TRUE(op) << op.error().what;
    ++accepted;
    if (by == ReportBy::kCallback || by == ReportBy::kInbox) expected_[by].insert(tag);
    if (by == ReportBy::kFlag || by == ReportBy::kNone) without_event_.push_back(*op);
  }

  Host& host_;
  RemoteHost remote_;
  Inbox inbox_;
  Batch batch_;
  PeerGroup group_;
  Subscription subscription_;
  std::vector<Flag> flags_;
  std::vector<Counter> counters_;
  std::vector<MemoryRegion> regions_;
  std::byte text_[64] = {};
  CounterKey resolved_[3];
  uint64_t last_tag_ = 0;
  std::map<ReportBy, std::multiset<uint64_t>> expected_;
  std::vector<OpId> without_event_;
};

sim::NicModel slow_nic() {
  sim::NicModel model;
  model.gbit_per_s = 8;
  return model;
}

struct ShutdownSetup {
  explicit ShutdownSetup(uint64_t seed)
      : world(sim::WorldOptions{.seed = seed}),
        a(open_host(world, world.add_node(2, slow_nic()), 8 * kMiB)),
        b(open_host(world, world.add_node(2, slow_nic()), 8 * kMiB)),
        remote(connect(a, b)),
        back(connect(b, a)) {
    await_connected(world, a, remote.peer);
    await_connected(world, b, back.peer);
  }
  sim::World world;
  Host a, b;
  RemoteHost remote, back;
};

/// Closes at a given time after everything was submitted.
void run_shutdown(uint64_t seed, Nanos after, bool with_fences) {
  ShutdownSetup setup(seed);
  // What the peer writes here is in flight too.
  Batch theirs = *setup.b.engine.make_batch();
  fill(setup.b.bytes(), 3);
  ASSERT_TRUE(setup.b.engine.submit(Write{.source = setup.b.memory.at(0),
                                          .target = setup.back.at(4 * kMiB),
                                          .size_bytes = 4 * kMiB,
                                          .batch = theirs}));
  setup.world.run_for(50us);
  fill(setup.a.bytes(), 1);
  Everything everything(setup.a, setup.remote);
  everything.submit_all();
  if (with_fences) everything.submit_fences();
  setup.world.run_for(after);
  ASSERT_TRUE(setup.a.engine.close());
  ASSERT_NO_FATAL_FAILURE(everything.check());
  EXPECT_TRUE(everything.codes.contains(Errc::kClosed));

  // Reuse: nothing lands here any more, and nothing is read from here.
  std::ranges::fill(setup.a.bytes(), std::byte{0});
  setup.world.run_for(1s);
  EXPECT_TRUE(untouched(setup.a.bytes())) << "something landed after close()";
  EXPECT_EQ(std::ranges::count(setup.b.bytes(), std::byte{0}), 0) << "read after close()";

  // The peer heard of it, and its operations have ended as well.
  EXPECT_EQ(theirs.pending(), 0u);
  const Errc ended = setup.b.engine.wait(theirs).error().code;
  EXPECT_TRUE(ended == Errc::kOk || ended == Errc::kPeerLost) << to_string(ended);
  EXPECT_TRUE(setup.b.engine.peers().empty());
  EXPECT_EQ(setup.a.engine.close().error().code, Errc::kClosed);
}

TEST(Shutdown, ReportsEveryOperationOnceAtWhateverTimeItComes) {
  using Times = std::initializer_list<Nanos>;
  for (const Nanos after : Times{0ns, 1ns, 500ns, 3us, 10us, 100us, 1ms, 5ms}) {
    SCOPED_TRACE(testing::Message() << "closed after " << after.count() << " ns");
    ASSERT_NO_FATAL_FAILURE(run_shutdown(test_seed(), after, false));
  }
}

TEST(Shutdown, ReportsEveryOperationOnceUnderFencesToo) {
  for (const uint64_t seed : seeds(4)) {
    SCOPED_TRACE(replay(seed));
    for (const Nanos after : std::initializer_list<Nanos>{0ns, 3us, 1ms}) {
      ASSERT_NO_FATAL_FAILURE(run_shutdown(seed, after, true));
    }
  }
}

TEST(Shutdown, OfBothSidesAtOnceEndsOnBoth) {
  ShutdownSetup setup(test_seed());
  Everything at_a(setup.a, setup.remote), at_b(setup.b, setup.back);
  at_a.submit_all();
  at_b.submit_all();
  setup.world.run_for(20us);
  ASSERT_TRUE(setup.a.engine.close());
  ASSERT_TRUE(setup.b.engine.close());
  ASSERT_NO_FATAL_FAILURE(at_a.check());
  ASSERT_NO_FATAL_FAILURE(at_b.check());
}

TEST(Shutdown, BeforeThePeerIsThereEndsWhatWaitsForIt) {
  sim::World world;
  Host a = open_host(world, world.add_node(2, slow_nic()), 8 * kMiB);
  Host b = open_host(world, world.add_node(2, slow_nic()), 8 * kMiB);
  const RemoteHost remote = connect(a, b);
  ASSERT_TRUE(b.engine.close());  // before it heard of the first hello
  Everything everything(a, remote);
  everything.submit_all();
  world.run_for(10us);
  ASSERT_TRUE(a.engine.close());
  ASSERT_NO_FATAL_FAILURE(everything.check());
}

TEST(Shutdown, LeavesHandlesInertAndOthersAtWork) {
  ShutdownSetup setup(test_seed());
  Host c = open_host(setup.world, setup.world.add_node(2), kMiB);
  const RemoteHost remote = connect(c, setup.b);
  Counter counter = *setup.b.engine.make_counter();
  Batch batch = *c.engine.make_batch();
  ASSERT_TRUE(c.engine.submit(Write{.source = c.memory.at(0),
                                    .target = remote.at(0),
                                    .size_bytes = kMiB,
                                    .imm = counter.key(),
                                    .batch = batch}));
  ASSERT_TRUE(setup.a.engine.close());
  EXPECT_EQ(setup.a.memory.desc().error().code, Errc::kClosed);
  EXPECT_EQ(setup.a.memory.bytes().size(), 8 * kMiB) << "the bytes are still the caller's";
  ASSERT_TRUE(counter.wait(1));
  ASSERT_TRUE(c.engine.wait(batch));
}

}  // namespace
}  // namespace fabric::test
