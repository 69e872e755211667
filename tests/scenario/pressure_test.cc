#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "scenario/pairs.h"
#include "support/log_guard.h"

// Bounded queues, priorities, and listeners that do not read (P18).

namespace fabric::test::pressure_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

/// One gigabyte a second, so that a microsecond is a kilobyte.
sim::NicModel slow_nic() {
  sim::NicModel model;
  model.gbit_per_s = 8;
  return model;
}

// ---- Full queues --------------------------------------------------------------------------------

TEST(FullQueue, RefusesWithoutTakingAndReportsOnceThereIsRoom) {
  constexpr uint32_t kOps = 16;
  EventRecorder seen, ended;
  sim::World world;
  Config config = test_config();
  config.ops_max = kOps;
  Host a = open_host(world, world.add_node(1, slow_nic()), kMiB, config);
  Host b = open_host(world, world.add_node(1, slow_nic()), kMiB);
  const Subscription subscription = *a.engine.subscribe(seen.notify());
  uint32_t in_flight_then = 0;
  seen.then = [&](const Event& event) {
    if (event.kind == EventKind::kRoom) in_flight_then = a.engine.stats().ops_in_flight;
  };
  const RemoteHost remote = connect(a, b);
  await_connected(world, a, remote.peer);
  Batch batch = *a.engine.make_batch();
  const Write request{.source = a.memory.at(0),
                      .target = remote.at(0),
                      .size_bytes = 64 << 10,
                      .batch = batch,
                      .notify = ended.notify()};
  for (uint32_t i = 0; i < kOps; ++i) ASSERT_TRUE(a.engine.submit(request));
  for (uint32_t i = 0; i < 3; ++i) {
    const auto refused = a.engine.submit(request);
    EXPECT_EQ(refused.error().code, Errc::kExhausted);
    EXPECT_STREQ(refused.error().what, "ops_max");
  }
  EXPECT_EQ(a.engine.submit(Timer{.after = 1s}).error().code, Errc::kExhausted);
  EXPECT_EQ(batch.pending(), kOps) << "a refused one has joined the batch";
  EXPECT_EQ(a.engine.stats().exhausted, 4u);
  EXPECT_EQ(seen.count(EventKind::kRoom), 0u);

  ASSERT_TRUE(world.run_until([&] { return seen.count(EventKind::kRoom) == 1; }, 1s));
  EXPECT_LE(in_flight_then, kOps - kOps / 4) << "reported before a quarter was free";
  EXPECT_GE(in_flight_then, kOps / 2) << "the event does not wait until all of it is free";
  EXPECT_TRUE(a.engine.submit(request));
  ASSERT_TRUE(a.engine.wait(batch));
  EXPECT_EQ(ended.count(), kOps + 1);
  EXPECT_EQ(seen.count(EventKind::kRoom), 1u) << "one event after a refusal, not one each";
  EXPECT_EQ(b.engine.stats().rx.imms, 0u);
  EXPECT_EQ(a.engine.stats().tx.bytes, (kOps + 1) * (64u << 10));
}

TEST(FullQueue, ASpanTakesThePrefixThatFits) {
  sim::World world;
  Config config = test_config();
  config.ops_max = 100;
  Host a = open_host(world, world.add_node(2), kMiB, config);
  Host b = open_host(world, world.add_node(2), kMiB);
  const RemoteHost remote = connect(a, b);
  Counter counter = *b.engine.make_counter();
  Batch batch = *a.engine.make_batch();
  std::vector<Write> requests;
  for (uint64_t i = 0; i < 150; ++i) {
    requests.push_back({.source = a.memory.at(i * 1000),
                        .target = remote.at(i * 1000),
                        .size_bytes = 1000,
                        .imm = counter.key(),
                        .batch = batch});
  }
  fill(a.bytes(), 4);
  const auto first = a.engine.submit(std::span<const Write>(requests));
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, 87u) << "seven eighths: the rest is left for others";
  const auto rest = std::span<const Write>(requests).subspan(87);
  EXPECT_EQ(a.engine.submit(rest).error().code, Errc::kExhausted);
  ASSERT_TRUE(a.engine.wait(batch));
  EXPECT_EQ(*a.engine.submit(rest), 63u);
  ASSERT_TRUE(counter.wait(150));
  EXPECT_TRUE(holds(b.bytes(0, 150 * 1000), 4));
}

TEST(FullQueue, AnInboxThatIsNotReadRefusesNewPromises) {
  EventRecorder seen;
  sim::World world;
  Host a = open_host(world, world.add_node(), 4096);
  const Subscription subscription = *a.engine.subscribe(seen.notify());
  Inbox inbox = *a.engine.make_inbox(4);
  const auto timer = [&](uint64_t tag) {
    return a.engine.submit(Timer{.after = 1us, .notify = Notify::inbox(inbox, tag)});
  };
  for (uint64_t tag = 0; tag < 4; ++tag) ASSERT_TRUE(timer(tag));
  EXPECT_STREQ(timer(4).error().what, "notify");
  world.run_for(1ms);
  EXPECT_EQ(timer(4).error().code, Errc::kExhausted) << "delivered, and not read";
  std::vector<Event> out(3);
  ASSERT_EQ(inbox.poll(out), 3u);
  ASSERT_TRUE(timer(4));
  ASSERT_TRUE(world.run_until([&] { return seen.count(EventKind::kRoom) >= 1; }, 1s));
  ASSERT_TRUE(inbox.wait(1s));
  world.run_for(1ms);
  std::vector<Event> rest(8);
  ASSERT_EQ(inbox.poll(rest), 2u);
  std::set<uint64_t> tags;  // nothing orders them
  for (const Event& event : std::span(out)) tags.insert(event.tag);
  for (const Event& event : std::span(rest).first(2)) tags.insert(event.tag);
  EXPECT_EQ(tags, (std::set<uint64_t>{0, 1, 2, 3, 4}));
}

TEST(FullQueue, AFullArenaIsExhaustedAndAListThatCanNeverFitIsTooLarge) {
  sim::World world;
  Config config = test_config();
  config.index_arena_bytes = 64 << 10;
  Host a = open_host(world, world.add_node(1, slow_nic()), kMiB, config);
  Host b = open_host(world, world.add_node(1, slow_nic()), kMiB);
  const RemoteHost remote = connect(a, b);
  Batch batch = *a.engine.make_batch();
  const auto submit = [&](size_t pages) {
    const std::vector<uint32_t> indices(pages);
    return a.engine.submit(PagedWrite{.source = a.memory.id(),
                                      .source_pages = {.indices = indices},
                                      .target = remote.region,
                                      .target_pages = {.indices = indices},
                                      .page_bytes = 512,
                                      .batch = batch});
  };
  EXPECT_EQ(submit(1 << 20).error().code, Errc::kTooLarge);
  EXPECT_EQ(batch.pending(), 0u);
  uint32_t taken = 0;
  Error refused;
  while (true) {
    const auto op = submit(1000);
    refused = op.error();
    if (!op || ++taken > 100) break;
  }
  EXPECT_GT(taken, 0u);
  EXPECT_LE(taken, 8u) << "more lists than the arena can hold";
  EXPECT_EQ(refused.code, Errc::kExhausted);
  EXPECT_STREQ(refused.what, "index_arena_bytes");
  EXPECT_EQ(batch.pending(), taken);
  ASSERT_TRUE(a.engine.wait(batch)) << a.engine.dump();
  EXPECT_EQ(batch.delivered(), taken * 1000u);
  EXPECT_TRUE(submit(1000)) << "completed operations must free their room";
  ASSERT_TRUE(a.engine.wait(batch));
}

/// The most work requests that were posted at once: on one rail, and to one peer over both.
struct Depths {
  uint64_t on_a_rail = 0, to_a_peer = 0;
  bool operator==(const Depths&) const = default;
};

Depths most_posted(uint32_t depth, uint32_t path_depth) {
  constexpr uint32_t kWrites = 300;
  sim::NicModel model = slow_nic();
  model.depth = depth;
  model.path_depth = path_depth;
  sim::World world;
  Host a = open_host(world, world.add_node(2, model), kMiB);
  Host b = open_host(world, world.add_node(2, model), kMiB);
  Host c = open_host(world, world.add_node(2, model), kMiB);
  const RemoteHost to_b = connect(a, b), to_c = connect(a, c);
  Counter at_b = *b.engine.make_counter(), at_c = *c.engine.make_counter();
  Depths most;
  const sim::Hook watch = world.each_step([&] {
    for (const RailStats& rail : a.engine.rail_stats()) {
      most.on_a_rail = std::max(most.on_a_rail, rail.tx.posted);
    }
    for (const PeerStats& peer : a.engine.peer_stats()) {
      most.to_a_peer = std::max(most.to_a_peer, peer.tx.posted);
    }
  });
  fill(a.bytes(), 2);
  for (uint32_t i = 0; i < kWrites; ++i) {
    const bool even = i % 2 == 0;
    EXPECT_TRUE(a.engine.submit(Write{.source = a.memory.at(i * 100),
                                      .target = (even ? to_b : to_c).at(i * 100),
                                      .size_bytes = 100,
                                      .imm = even ? at_b.key() : at_c.key()}));
  }
  EXPECT_TRUE(at_b.wait(kWrites / 2));
  EXPECT_TRUE(at_c.wait(kWrites / 2));
  for (uint32_t i = 0; i < kWrites; ++i) {
    const Host& target = i % 2 == 0 ? b : c;
    EXPECT_TRUE(std::ranges::equal(target.bytes(i * 100, 100), a.bytes(i * 100, 100)));
  }
  return most;
}

TEST(FullQueue, NeitherANicNorAPathIsEverOverfilled) {
  EXPECT_EQ(most_posted(6, 6), (Depths{4, 4})) << "two of six each: room for a third peer";
  EXPECT_EQ(most_posted(100, 2), (Depths{4, 4}))
      << "the limit is the paths: two to each of two peers";
  EXPECT_EQ(most_posted(1, 1), (Depths{1, 2}));
}

TEST(FullQueue, CancellingABatchReachesWhatIsNotPostedYet) {
  sim::World world;
  Host a = open_host(world, world.add_node(), kMiB);
  Host b = open_host(world, world.add_node(), kMiB);
  const RemoteHost remote = connect(a, b);
  await_connected(world, a, remote.peer);
  Batch batch = *a.engine.make_batch(), other = *a.engine.make_batch();
  const auto submit = [&](BatchId to) {
    ASSERT_TRUE(a.engine.submit(
        Write{.source = a.memory.at(0), .target = remote.at(0), .size_bytes = 4096, .batch = to}));
  };
  for (int i = 0; i < 10; ++i) submit(batch);
  submit(other);
  ASSERT_TRUE(a.engine.cancel(batch));  // before the world has moved: all of them are in the ring
  EXPECT_EQ(a.engine.wait(batch).error().code, Errc::kCancelled);
  EXPECT_EQ(batch.failed(), 10u);
  EXPECT_EQ(batch.unknown(), 0u);
  ASSERT_TRUE(a.engine.wait(other)) << "another batch must not be affected";
  EXPECT_EQ(a.engine.stats().tx.ops, 1u) << "a cancelled write was posted";
}

// ---- Priorities ---------------------------------------------------------------------------------

class Priorities : public testing::TestWithParam<uint32_t> {
 protected:
  Priorities()
      : a(open_host(world, world.add_node(GetParam(), model()), 64 * kMiB)),
        b(open_host(world, world.add_node(GetParam(), model()), 64 * kMiB)),
        remote(connect(a, b)),
        recorder(&a.engine) {
    await_connected(world, a, remote.peer);
    // Paths are opened on first use; the times below are those of a running engine.
    Batch warm = *a.engine.make_batch();
    for (uint32_t i = 0; i < GetParam(); ++i) submit(0, 64, Priority::kNormal, warm);
    EXPECT_TRUE(a.engine.wait(warm));
    EXPECT_TRUE(world.run_until([&] { return recorder.count() == GetParam(); }, 1s));
    recorder.events.clear();
    recorder.times.clear();
    start = world.now();
  }
  ~Priorities() override { EXPECT_TRUE(a.engine.close(1ms)); }
  static sim::NicModel model() {
    sim::NicModel model = slow_nic();
    model.path_depth = 4;
    return model;
  }
  void submit(uint64_t tag, uint64_t size, Priority priority, BatchId batch = {}) {
    ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                      .target = remote.at(0),
                                      .size_bytes = size,
                                      .priority = priority,
                                      .batch = batch,
                                      .notify = recorder.notify(tag)}));
  }
  void finish(uint64_t events) {
    ASSERT_TRUE(world.run_until([&] { return recorder.count() == events; }, 10s));
  }
  Nanos took(uint64_t tag) const { return recorder.when(tag) - start; }

  sim::World world;
  Host a, b;
  RemoteHost remote;
  EventRecorder recorder;
  Nanos start{};
};

TEST_P(Priorities, UrgentOvertakesNormalAndNormalOvertakesBulk) {
  constexpr uint64_t kUrgent = 1, kNormal = 100, kBulk = 200;
  constexpr uint64_t kEach = 32;
  for (uint64_t i = 0; i < kEach; ++i) submit(kBulk + i, 60 << 10, Priority::kBulk);
  for (uint64_t i = 0; i < kEach; ++i) submit(kNormal + i, 60 << 10, Priority::kNormal);
  world.run_for(1us);  // the queues are full now
  submit(kUrgent, 4096, Priority::kUrgent);
  finish(2 * kEach + 1);

  // At most four work requests are on the path, each 61 us long; urgent waits for those only.
  EXPECT_LT(took(kUrgent), 5 * 62us);
  uint64_t normal_first = 0, bulk_first = 0;
  for (uint64_t i = 0; i < kEach; ++i) {
    normal_first += took(kNormal + i) < took(kUrgent) ? 1 : 0;
    bulk_first += took(kBulk + i) < took(kNormal + kEach - 1) ? 1 : 0;
  }
  EXPECT_LE(normal_first, 4u * GetParam()) << "normal writes overtook the urgent one";
  EXPECT_LE(bulk_first, 4u * GetParam()) << "bulk writes overtook normal ones";
}

TEST_P(Priorities, AnUrgentWriteWaitsForOneSlicePerNicWhileBulkIsQueued) {
  constexpr uint64_t kBulk = 1, kUrgent = 2;
  submit(kBulk, 64 * kMiB, Priority::kBulk);
  world.run_for(3ms);  // somewhere in the middle of a slice
  ASSERT_EQ(recorder.count(), 0u);
  const Nanos asked = world.now();
  submit(kUrgent, 4096, Priority::kUrgent);
  finish(2);
  const Nanos slice = 1049us;  // bulk_slice_bytes at a gigabyte a second
  EXPECT_LT(recorder.when(kUrgent) - asked, slice + 20us);
  // And bulk has not been starved either: the wire was busy all the time.
  const Nanos wire = 64 * 1049us / GetParam();
  EXPECT_LT(took(kBulk), wire + wire / 20);
}

TEST_P(Priorities, ASignalIsUrgentByDefault) {
  Counter counter = *b.engine.make_counter();
  const PeerGroup group = *a.engine.make_group({&remote.peer, 1});
  submit(1, 64 * kMiB, Priority::kBulk);
  world.run_for(3ms);
  const Nanos asked = world.now();
  const CounterKey key = counter.key();
  ASSERT_TRUE(a.engine.submit(Signal{.group = group, .keys = {&key, 1}}));
  ASSERT_TRUE(counter.wait(1));
  EXPECT_LT(world.now() - asked, 1070us);
}

INSTANTIATE_TEST_SUITE_P(Rails, Priorities, testing::Values(1, 2),
                         testing::PrintToStringParamName());

// ---- Messages -----------------------------------------------------------------------------------

class MessagePressure : public testing::Test {
 protected:
  static constexpr uint32_t kBuffers = 8, kCredits = 4, kMessages = 100;

  MessagePressure()
      : a(open_host(world, world.add_node(), 4096, config())),
        b(open_host(world, world.add_node(), 4096, config())),
        remote(connect(a, b)),
        inbox(*b.engine.make_inbox(5)),
        unread(*b.engine.listen(1, Notify::inbox(inbox))),
        read(*b.engine.listen(2, received.notify())),
        batch(*a.engine.make_batch()) {}

  static Config config() {
    Config config = test_config();
    config.message_buffers = kBuffers;
    config.message_credits = kCredits;
    return config;
  }
  void send(uint16_t channel, uint32_t number) {
    std::vector<std::byte> text(sizeof number);
    std::memcpy(text.data(), &number, sizeof number);
    ASSERT_TRUE(a.engine.submit(
        Send{.peer = remote.peer, .channel = channel, .bytes = text, .batch = batch}));
  }
  static uint32_t number_of(std::span<const std::byte> text) {
    uint32_t number = 0;
    EXPECT_EQ(text.size(), sizeof number);
    std::memcpy(&number, text.data(), sizeof number);
    return number;
  }

  EventRecorder received;
  sim::World world;
  Host a, b;
  RemoteHost remote;
  Inbox inbox;
  Subscription unread, read;
  Batch batch;
};

TEST_F(MessagePressure, AListenerThatDoesNotReadHoldsItsSenderBackAndNoOther) {
  for (uint32_t i = 0; i < kMessages; ++i) send(1, i);
  world.run_for(50ms);
  // Buffered for the listener and reported as done; the credits beyond it are with the peer.
  EXPECT_EQ(batch.delivered(), kBuffers);
  EXPECT_EQ(b.engine.stats().rx.messages, kBuffers);
  EXPECT_EQ(batch.pending(), kMessages - kBuffers);

  // Another channel of the same peer goes on.
  for (uint32_t i = 0; i < 20; ++i) send(2, 1000 + i);
  ASSERT_TRUE(world.run_until([&] { return received.messages.size() == 20; }, 1s));
  // And so do writes.
  Counter counter = *b.engine.make_counter();
  ASSERT_TRUE(a.engine.submit(Write{
      .source = a.memory.at(0), .target = remote.at(0), .size_bytes = 4096, .imm = counter.key()}));
  ASSERT_TRUE(counter.wait(1, 1s));

  std::multiset<uint32_t> got;
  std::vector<Event> out(3);
  while (got.size() < kMessages) {
    ASSERT_TRUE(inbox.wait(1s)) << "stopped after " << got.size();
    const uint32_t n = inbox.poll(out);
    for (uint32_t i = 0; i < n; ++i) got.insert(number_of(out[i].bytes()));
  }
  ASSERT_TRUE(a.engine.wait(batch));
  std::multiset<uint32_t> sent;
  for (uint32_t i = 0; i < kMessages; ++i) sent.insert(i);
  EXPECT_EQ(got, sent);
  EXPECT_EQ(batch.delivered(), kMessages + 20);
}

TEST_F(MessagePressure, AListenerThatGoesAwayEndsWhatWasHeldBack) {
  for (uint32_t i = 0; i < 20; ++i) send(1, i);
  world.run_for(50ms);
  ASSERT_EQ(batch.delivered(), kBuffers);
  unread = Subscription();
  EXPECT_EQ(a.engine.wait(batch).error().code, Errc::kUnsupported);
  EXPECT_EQ(batch.delivered() + batch.failed(), 20u);
  EXPECT_EQ(batch.unknown(), 0u);
}

TEST_F(MessagePressure, AMessageWithoutAListenerIsAnswered) {
  send(3, 1);
  EXPECT_EQ(a.engine.wait(batch).error().code, Errc::kUnsupported);
  EXPECT_EQ(batch.failed(), 1u);
  EXPECT_EQ(batch.unknown(), 0u);
}

// ---- Room ---------------------------------------------------------------------------------------

// P18: expectations without a limit may hold most slots; a slot that is freed is still reported.
TEST(FullQueue, RoomIsReportedWhileMostSlotsWait) {
  Config config = test_config();
  config.ops_max = 8;
  ConnectedPair p(config);
  EventRecorder recorder;
  auto subscription = p.a.engine.subscribe(recorder.notify());
  std::vector<Counter> counters;
  for (int i = 0; i < 7; ++i) {
    counters.push_back(*p.a.engine.make_counter());
    ASSERT_TRUE(counters.back().expect(1, Notify{}, Timeout::forever()));
  }
  ASSERT_TRUE(p.a.engine.submit(Timer{.after = 1ms}));
  EXPECT_EQ(p.a.engine.submit(Timer{.after = 1ms}).error().code, Errc::kExhausted);
  p.world.run_for(1s);
  EXPECT_EQ(recorder.count(EventKind::kRoom), 1u);
}

// P18: an inbox that is not read has no room, whatever else is free.
TEST(FullQueue, AFullInboxHasRoomOnlyOnceItIsRead) {
  ConnectedPair p;
  EventRecorder recorder;
  auto subscription = p.a.engine.subscribe(recorder.notify());
  auto inbox = p.a.engine.make_inbox(1);
  ASSERT_TRUE(p.a.engine.submit(Timer{.notify = Notify::inbox(*inbox)}));
  p.world.run_for(1ms);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(p.a.engine.submit(Timer{.notify = Notify::inbox(*inbox)}).error().code,
              Errc::kExhausted);
    p.world.run_for(1ms);
  }
  EXPECT_EQ(recorder.count(EventKind::kRoom), 0u);
  Event event;
  ASSERT_EQ(inbox->poll({&event, 1}), 1u);
  p.world.run_for(1ms);
  EXPECT_EQ(recorder.count(EventKind::kRoom), 1u);
  EXPECT_TRUE(p.a.engine.submit(Timer{.notify = Notify::inbox(*inbox)}));
}

// A watcher's last value is never lost, also when the watcher is disarmed while the inbox is full.
TEST(FullQueue, TheLastWatchedValueFollowsWhenTheInboxHasRoomAgain) {
  ConnectedPair p;
  auto inbox = p.a.engine.make_inbox(1);
  auto watcher = p.a.engine.make_watcher(Notify::inbox(*inbox), {.polled = false});
  watcher->arm();
  watcher->store(1);
  p.world.run_for(1ms);
  watcher->store(7);
  watcher->disarm();
  uint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    Event event;
    while (inbox->poll({&event, 1}) == 1) last = event.value;
    p.world.run_for(1ms);
  }
  EXPECT_EQ(last, 7u);
}

// ---- While peers fail ---------------------------------------------------------------------------

// Back-pressure while things fail (P18): a dead, a slow and a flooding peer, and a good one that
// must not notice. Nothing grows with time.

using sim::Fault;

constexpr uint64_t kHostBytes = 256 << 10, kPage = 4096;
constexpr uint32_t kRounds = 60;

sim::NicModel back_pressure_nic() {
  sim::NicModel model = rc_model();
  model.gbit_per_s = 40;
  return model;
}

Config back_pressure_config() {
  Config config = test_config();
  config.peer_timeout = 1s;
  config.lost_timeout = 60s;  // no peer is given up during the test
  config.drain_timeout = 1s;
  return config;
}

/// One engine with a good peer and three others.
class PressureSetup {
 public:
  explicit PressureSetup(const Config& config = back_pressure_config())
      : world({.seed = test_seed()}) {
    for (const char* part :
         {"a path broke", "a path could not be opened", "an operation does not drain"}) {
      expect_log(part);
    }
    for (uint32_t i = 0; i < 5; ++i) {
      world.add_node(2, back_pressure_nic());
      Config others = back_pressure_config();
      if (i == kFlooding) others.ops_max = 512;
      hosts.push_back(open_host(world, i, kHostBytes, i == 0 ? config : others));
    }
    for (uint32_t i = 1; i < 5; ++i) {
      remotes.push_back(connect(hosts[0], hosts[i]));
      await_connected(world, hosts[0], remotes.back().peer);
    }
    fill(hosts[0].bytes(), 3);
  }
  Engine& engine() { return hosts[0].engine; }
  const RemoteHost& good() const { return remotes[0]; }
  const RemoteHost& dead() const { return remotes[1]; }
  const RemoteHost& slow() const { return remotes[2]; }
  const RemoteHost& flooding() const { return remotes[3]; }
  static constexpr uint32_t kDead = 2, kSlow = 3, kFlooding = 4;  // nodes

  Result<OpId> write(const RemoteHost& remote, uint64_t size, Notify notify = {},
                     CounterKey key = {}) {
    return engine().submit(Write{.source = hosts[0].memory.at(0),
                                 .target = remote.at(0),
                                 .size_bytes = size,
                                 .imm = key,
                                 .timeout = 20s,
                                 .notify = notify});
  }
  /// How long so many writes to the good peer take, one after the other.
  Nanos good_work() {
    Counter counter = *hosts[1].engine.make_counter();
    const Nanos began = world.now();
    for (uint32_t i = 0; i < kRounds; ++i) {
      EXPECT_TRUE(write(good(), 64 << 10, {}, counter.key()));
      EXPECT_TRUE(counter.wait(1, 20s)) << engine().dump();
    }
    EXPECT_TRUE(holds(hosts[1].bytes(0, 64 << 10), 3));
    return world.now() - began;
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }

  EventRecorder ended, seen, received;
  sim::World world;
  std::vector<Host> hosts;
  std::vector<RemoteHost> remotes;
};

TEST(BackPressure, OfFaultyPeersDoesNotDelayAGoodPeer) {
  PressureSetup alone;
  const Nanos undisturbed = alone.good_work();
  PressureSetup setup;
  setup.happens(Fault::cut(0, PressureSetup::kDead));
  setup.happens(Fault::slow(PressureSetup::kSlow, 100ms));
  setup.happens(Fault::receiver_not_ready(PressureSetup::kSlow));
  const Subscription listener = *setup.engine().listen(1, setup.received.notify());
  Host& flooder = setup.hosts[PressureSetup::kFlooding];
  const RemoteHost back = connect(flooder, setup.hosts[0]);
  Counter slow = *setup.hosts[PressureSetup::kSlow].engine.make_counter();
  for (uint32_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(setup.write(setup.dead(), kPage, setup.ended.notify(1)));
    ASSERT_TRUE(setup.write(setup.slow(), kPage, setup.ended.notify(2), slow.key()));
  }
  // As much as its own engine takes, of everything, all the time.
  uint64_t name = 1000, flooded = 0;
  std::vector<CounterKey> out(1);
  const sim::Hook flood = setup.world.each_step([&] {
    ++name;
    flooded += flooder.engine.submit(Resolve{.peer = back.peer, .names = {&name, 1}, .out = out})
                   .has_value();
    flooded += flooder.engine.submit(Send{.peer = back.peer, .channel = 1}).has_value();
    flooded += flooder.engine
                   .submit(Write{.source = flooder.memory.at(0),
                                 .target = back.at(kHostBytes / 2),
                                 .size_bytes = 64})
                   .has_value();
  });
  const Nanos disturbed = setup.good_work();
  EXPECT_LE(disturbed, 3 * undisturbed) << "alone " << undisturbed.count();
  EXPECT_GT(flooded, 1000u) << "the test needs a flood";
  EXPECT_LT(setup.ended.count(), 1000u) << "the test needs operations that do not complete";
  setup.happens(Fault::heal(0, PressureSetup::kDead));
  setup.happens(Fault::slow(PressureSetup::kSlow, 0s));
  setup.happens(Fault::receiver_ready(PressureSetup::kSlow));
  EXPECT_TRUE(setup.world.run_until([&] { return setup.ended.count() == 1000; }, 30s))
      << setup.engine().dump();
}

TEST(BackPressure, AFloodOfNamesAndMessagesDoesNotGrowTheEngine) {
  Config config = back_pressure_config();
  config.names_per_peer_max = 100;
  config.message_buffers = 64;
  PressureSetup setup(config);
  Engine& engine = setup.engine();
  Inbox unread = *engine.make_inbox(16);
  const Subscription listener = *engine.listen(1, Notify::inbox(unread));
  Host& flooder = setup.hosts[PressureSetup::kFlooding];
  const RemoteHost back = connect(flooder, setup.hosts[0]);
  std::vector<CounterKey> out(1);
  uint64_t name = 0, ended = 0;
  const auto flood = [&](Nanos time) {
    const Nanos until = setup.world.now() + time;
    while (setup.world.now() < until) {
      ++name;
      const bool took =
          flooder.engine
              .submit(Resolve{.peer = back.peer, .names = {&name, 1}, .out = out, .timeout = 100ms})
              .has_value();
      ended += took;
      (void)flooder.engine.submit(Send{.peer = back.peer, .channel = 1, .timeout = 100ms});
      setup.world.run_for(1ms);
    }
  };
  flood(1s);
  const EngineStats before = engine.stats();
  const size_t dump = engine.dump_json().size();
  flood(10s);
  const EngineStats after = engine.stats();
  EXPECT_EQ(before.counters, 100u) << "the peer must use its quota";
  EXPECT_EQ(after.counters, 100u);
  EXPECT_EQ(after.ops_in_flight, before.ops_in_flight);
  EXPECT_EQ(after.peers, before.peers);
  EXPECT_LE(engine.dump_json().size(), dump + 200) << "state accumulates\n" << engine.dump();
  EXPECT_GT(ended, 1000u);
  std::vector<Event> events(64);
  EXPECT_EQ(unread.poll(events), 16u) << "the inbox must hold as many as it has room for";
}

TEST(BackPressure, ADeadPeerFillsTheQueueAndRoomIsReportedOnceItsOperationsEnd) {
  constexpr uint32_t kOps = 64;
  Config config = back_pressure_config();
  config.ops_max = kOps;
  PressureSetup setup(config);
  const Subscription subscription = *setup.engine().subscribe(setup.seen.notify());
  setup.happens(Fault::cut(0, PressureSetup::kDead));
  uint32_t taken = 0;
  Errc refused = Errc::kOk;
  for (; taken < 2 * kOps; ++taken) {
    const auto op = setup.write(setup.dead(), kPage, setup.ended.notify());
    refused = op.error().code;
    if (!op) break;
  }
  EXPECT_EQ(taken, kOps / 8 * 7) << "one peer gets seven eighths of the slots";
  EXPECT_EQ(refused, Errc::kExhausted);
  EXPECT_GT(setup.good_work(), Nanos(0)) << "no other peer is kept waiting";
  const auto room = [&] { return setup.seen.count(EventKind::kRoom) == 1; };
  ASSERT_TRUE(setup.world.run_until(room, 25s)) << setup.engine().dump();
  EXPECT_TRUE(setup.write(setup.good(), kPage));
  ASSERT_TRUE(setup.world.run_until([&] { return setup.ended.count() == taken; }, 25s));
  for (const Event& event : setup.ended.events) EXPECT_NE(event.code, Errc::kOk);
  EXPECT_GT(setup.good_work(), Nanos(0));
  EXPECT_EQ(setup.seen.count(EventKind::kRoom), 1u);
}

TEST(BackPressure, ABreakFindsWorkThatTheRailHasNotTaken) {
  PressureSetup setup;
  Counter counter = *setup.hosts[1].engine.make_counter();
  ASSERT_TRUE(setup.write(setup.good(), 200 << 10, {}, counter.key()));
  ASSERT_TRUE(counter.wait(1, 5s));
  setup.happens(Fault::refuse_posts(0));
  ASSERT_TRUE(setup.write(setup.good(), 200 << 10, {}, counter.key()));
  setup.world.run_for(1ms);
  setup.happens(Fault::break_sender(0, 1, Fault::kAllRails));
  setup.world.run_for(1ms);
  setup.happens(Fault::take_posts(0));
  EXPECT_TRUE(counter.wait(1, 5s)) << setup.engine().dump();
  EXPECT_TRUE(holds(setup.hosts[1].bytes(0, 200 << 10), 3));
  setup.world.run_for(1s);
  EXPECT_EQ(counter.count(), 0u);
}

}  // namespace
}  // namespace fabric::test::pressure_test
