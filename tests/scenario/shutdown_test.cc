#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "harness/write_auditor.h"
#include "support/log_guard.h"

// Closing an engine with everything in flight: every operation is reported once, in
// the way that it asked for, and the memory is the caller's again (P1, P3, P22).

namespace fabric::test::shutdown_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

/// One of every kind of request, with every kind of report, to a slow peer.
class Everything {
 public:
  enum class ReportBy { kCallback, kInbox, kFlag, kBatch, kNone };
  static constexpr ReportBy kReportKinds[] = {ReportBy::kCallback, ReportBy::kInbox,
                                              ReportBy::kFlag, ReportBy::kBatch, ReportBy::kNone};

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
      // An expectation has no batch: its failure goes to the subscribers.
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
  std::set<Errc> codes;  ///< of the operations that reported to an inbox or a callback
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
  EXPECT_EQ(std::ranges::count(setup.b.bytes(), std::byte{0}), 0)
      << "a source was read after close()";

  // The peer received the goodbye, and its operations have completed as well.
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
  ASSERT_TRUE(b.engine.close());  // before it received the first hello
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

// ---- Peers that do not answer -------------------------------------------------------------------

// Closing an engine whose peers do not answer, at every step of what it was doing (P1, P2): within
// the drain bound and a moment, with every operation reported once.

using sim::Fault;

constexpr uint64_t kSize = 1 << 20;
constexpr uint64_t kStride = 13;    // run the test at every n-th network event
constexpr uint32_t kA = 0, kB = 1;  // nodes
constexpr Nanos kMoment = 250ms;    // for goodbyes without an answer, and the tear-down

class CloseInTime : public testing::Test {
 protected:
  struct CloseSetup {
    explicit CloseSetup(const sim::NicModel& model)
        : world(sim::WorldOptions{.seed = test_seed()}),
          a(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
          b(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
          c(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
          to_b{&b, connect(a, b)},
          to_c{&c, connect(a, c)},
          auditor(a, test_seed()) {
      await_connected(world, a, to_b.remote.peer);
      await_connected(world, a, to_c.remote.peer);
    }
    void submit() {
      auditor.write(to_b, 150'000);
      auditor.pages(to_b, 20, 4096);
      auditor.write(to_c, 50'000);
      auditor.write(to_b, 40'000, {.priority = Priority::kBulk, .unsplit = true});
      const auto channel =
          a.engine.submit(Send{.peer = to_b.remote.peer, .notify = seen.notify(1)});
      const auto fence = a.engine.submit(Resolve{.peer = to_b.remote.peer,
                                                 .names = {&name, 1},
                                                 .out = {&key, 1},
                                                 .notify = seen.notify(2)});
      ASSERT_TRUE(channel && fence);
    }

    uint64_t name = 3;
    CounterKey key;
    EventRecorder seen;
    sim::World world;
    Host a, b, c;
    WriteAuditor::Target to_b, to_c;
    WriteAuditor auditor;
  };

  /// The faults come after an event, and close() some time after them.
  static void run_with(const std::vector<Fault>& faults, Nanos after,
                       const std::vector<Fault>& repair, const sim::NicModel& model = slow_rc()) {
    expect_fault_logs();
    uint64_t begin = 0, end = 0;
    {
      CloseSetup trio(model);
      begin = trio.world.events();
      trio.submit();
      ASSERT_TRUE(trio.world.run_until([&] { return trio.auditor.all_completed(); }, 10s));
      end = trio.world.events();
    }
    for (uint64_t at = begin; at <= end; at += kStride) {
      SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
      CloseSetup trio(model);
      for (const Fault& fault : faults) ASSERT_TRUE(trio.world.at_event(at, fault));
      if (faults[0].kind == Fault::Kind::kCrash) trio.auditor.died(trio.b);
      trio.submit();
      trio.world.run_until([&] { return trio.world.events() >= at; }, 1s);
      trio.world.run_for(after);
      const Nanos asked = trio.world.now();
      const auto closed = trio.a.engine.close();
      EXPECT_LE(trio.world.now(), asked + short_timeouts_config().drain_timeout + kMoment);
      EXPECT_TRUE(closed || closed.error().code == Errc::kTimeout);
      EXPECT_TRUE(trio.auditor.all_completed()) << "on return everything has been reported";
      EXPECT_EQ(trio.seen.count(), 2u);
      for (const Fault& fault : repair) ASSERT_TRUE(trio.world.at(trio.world.now(), fault));
      trio.world.run_for(2s);
      ASSERT_NO_FATAL_FAILURE(trio.auditor.check());
      EXPECT_EQ(trio.seen.count(), 2u) << "nothing is reported twice";
      for (const auto& op : trio.auditor.ops) {
        EXPECT_TRUE(op.ok() || op.event.code == Errc::kClosed || op.event.code == Errc::kPeerLost)
            << to_string(op.event.code);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
};

TEST_F(CloseInTime, WithADeadPeer) {
  run_with({Fault::crash(kB)}, 0s, {});
  run_with({Fault::crash(kB)}, 700ms, {});  // its NIC has given up, its peer has not
}

TEST_F(CloseInTime, WithAStoppedPeer) { run_with({Fault::stop(kB)}, 0s, {Fault::resume(kB)}); }

TEST_F(CloseInTime, WithAPeerThatIsCutOff) {
  run_with({Fault::cut(kA, kB)}, 0s, {Fault::heal(kA, kB)});
  run_with({Fault::cut(kA, kB)}, 0s, {Fault::heal(kA, kB)}, slow_srd());
}

TEST_F(CloseInTime, WithARailDown) {
  run_with({Fault::nic_down(kA, 0)}, 0s, {Fault::nic_up(kA, 0)});
  run_with({Fault::nic_down(kB, 0), Fault::nic_down(kB, 1)}, 5us, {});
}

TEST_F(CloseInTime, WithWritesWhoseTargetDoesNotAnswer) {
  run_with({Fault::stop(kB), Fault::break_sender(kA, kB, 0), Fault::break_sender(kA, kB, 1)}, 5us,
           {Fault::resume(kB)});
}

TEST_F(CloseInTime, WithANicThatTakesNothing) {
  run_with({Fault::refuse_posts(kA)}, 5us, {Fault::take_posts(kA)});
}

// Nothing that happens would wake it in time, so the close itself has to: three quarters of the
// bound are for the NIC, and then the path that holds the write is torn down.
TEST_F(CloseInTime, OfAnEngineThatSleepsKeepsTheDrainBound) {
  expect_fault_logs();
  Config patient = short_timeouts_config();
  patient.default_timeout = 20s;
  patient.peer_timeout = patient.lost_timeout = 100s;
  EventRecorder ended;
  sim::World world({.seed = test_seed()});
  Host a = open_host(world, world.add_node(1, slow_srd()), kSize, patient);
  Host b = open_host(world, world.add_node(1, slow_srd()), kSize, patient);
  const RemoteHost remote = connect(a, b, {.warm = true});
  await_connected(world, a, remote.peer);
  world.run_for(100ms);
  ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                    .target = remote.at(0),
                                    .size_bytes = kSize,
                                    .notify = ended.notify(1)}));
  world.run_for(100us);
  ASSERT_TRUE(world.at(world.now(), Fault::cut(kA, kB)));
  world.run_for(10ms);
  const Nanos asked = world.now();
  EXPECT_TRUE(a.engine.close()) << "close() did not complete within its bound";
  EXPECT_LE(world.now(), asked + patient.drain_timeout + kMoment);
  ASSERT_EQ(ended.count(), 1u);
  EXPECT_EQ(ended.events[0].code, Errc::kClosed);
}

}  // namespace
}  // namespace fabric::test::shutdown_test
