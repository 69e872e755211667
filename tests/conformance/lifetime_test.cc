#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "conformance/conformance.h"
#include "support/sanitizers.h"

// P20 to P22: engines that sleep, processes that fork, requests and handles that outlive what they
// were made from.

namespace fabric::test::lifetime_test {
namespace {

Nanos cpu_time_of_this_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto ns = [](const timeval& t) { return t.tv_sec * 1'000'000'000 + t.tv_usec * 1000; };
  return Nanos(ns(usage.ru_utime) + ns(usage.ru_stime));
}

/// One of everything that an engine hands out.
struct Handles {
  explicit Handles(Engine& engine, PeerId peer, std::vector<std::byte>& bytes)
      : region(*engine.register_memory({.address = bytes.data(), .size_bytes = bytes.size()})),
        pages(*engine.allocate({.size_bytes = 10'000})),
        inbox(*engine.make_inbox(4)),
        batch(*engine.make_batch()),
        flag(*engine.make_flag()),
        counter(*engine.make_counter()),
        named(*engine.named_counter(99)),
        counters(*engine.make_counter_group()),
        watcher(*engine.make_watcher(Notify::inbox(inbox))),
        listener(*engine.listen(44, Notify::inbox(inbox))),
        subscription(*engine.subscribe(Notify::inbox(inbox))),
        group(*engine.make_group({&peer, 1})),
        page_list(*engine.make_page_list(kPages)),
        write_list(*engine.make_write_list(kWrites)) {
    EXPECT_TRUE(counters.add(named, peer));
    watcher.arm();
  }

  /// Calls everything on the handles. What they answer, by code; kOk where one had no answer.
  std::vector<Errc> touch(PeerId peer) {
    Event events[4];
    watcher.arm();
    watcher.store(5);
    watcher.disarm();
    flag.store(flag.load() + 1);
    counter.release();
    const bool quiet = inbox.poll(events) <= 4 && !counter.try_take(1) && batch.pending() == 0 &&
                       group.size() == 1 && region.size_bytes() > 0 && counter.count() == 0 &&
                       page_list.size() == 2 && write_list.size() == 1;
    return {quiet ? Errc::kClosed : Errc::kOk,   region.desc().error().code,
            region.grant(peer).error().code,     inbox.fd().error().code,
            batch.seal({}).error().code,         batch.reset().error().code,
            counter.expect(1, {}).error().code,  counter.wait(1, 1ms).error().code,
            counter.bind(peer).error().code,     counter.close(1ms).error().code,
            counters.expect(1, {}).error().code, counters.wait(1, 1ms).error().code,
            counters.mask(peer).error().code};
  }

  MemoryRegion region, pages;
  Inbox inbox;
  Batch batch;
  Flag flag;
  Counter counter, named;
  CounterGroup counters;
  Watcher watcher;
  Subscription listener, subscription;
  PeerGroup group;
  static constexpr std::array<uint32_t, 2> kPages{3, 1};
  static constexpr std::array<ListedWrite, 1> kWrites{{{0, 0, 1}}};
  PageList page_list;
  WriteList write_list;
};

/// Everything that an engine can be asked for. What it answers, by code.
std::vector<Errc> ask_for_everything(Engine& engine, PeerId peer, RegionId region,
                                     RemoteRegion target) {
  std::byte byte{};
  CounterKey key = CounterKey::from_wire(1);
  const uint64_t name = 1;
  const uint32_t page = 0;
  const ScatterTarget one{target.at(0), 0, 1, {}};
  const Pages pages{.indices = {&page, 1}, .stride_bytes = 1};
  const Write write{.source = {region, 0}, .target = target.at(0), .size_bytes = 1};
  const PageRange range{0, 1};
  const ListedWrite listed{0, 0, 1};
  const bool empty = engine.address().empty() && engine.peers().empty();
  return {
      empty ? Errc::kClosed : Errc::kOk,
      engine.connect(std::span<const std::byte>(&byte, 1)).error().code,
      engine.disconnect(peer).error().code,
      engine.peer_info(peer).error().code,
      engine.make_group({&peer, 1}).error().code,
      engine.register_memory({.address = &byte, .size_bytes = 1}).error().code,
      engine.allocate({.size_bytes = 1}).error().code,
      engine.import_region(peer, {&byte, 1}).error().code,
      engine.make_inbox(1).error().code,
      engine.make_batch().error().code,
      engine.make_counter().error().code,
      engine.named_counter(1).error().code,
      engine.make_counter_group().error().code,
      engine.make_flag().error().code,
      engine.resolve(peer, {&name, 1}, {&key, 1}, 1ms).error().code,
      engine.submit(write).error().code,
      engine.submit(std::span(&write, 1)).error().code,
      engine
          .submit(PagedWrite{.source = region,
                             .source_pages = pages,
                             .target = target,
                             .target_pages = pages,
                             .page_bytes = 1})
          .error()
          .code,
      engine.make_page_list({&page, 1}).error().code,
      engine.make_page_list({&range, 1}).error().code,
      engine.make_write_list({&listed, 1}).error().code,
      engine
          .submit(ListedWrites{
              .list = WriteListId(0, 1), .count = 1, .source = {region, 0}, .target = target.at(0)})
          .error()
          .code,
      engine.submit(Scatter{.source = region, .targets = {&one, 1}}).error().code,
      engine.submit(Signal{.group = GroupId(0, 1), .keys = {&key, 1}}).error().code,
      engine.submit(Send{.peer = peer}).error().code,
      engine.submit(Timer{}).error().code,
      engine.submit(Resolve{.peer = peer, .names = {&name, 1}, .out = {&key, 1}}).error().code,
      engine.submit(Fence{.peer = peer}).error().code,
      engine.submit(Drop{.peer = peer}).error().code,
      engine.submit(Deregister{.region = region}).error().code,
      engine.cancel(OpId(0, 1)).error().code,
      engine.cancel(BatchId(0, 1)).error().code,
      engine.wait(BatchId(0, 1), 1ms).error().code,
      engine.close(1ms).error().code,
  };
}

}  // namespace

// ---- P20 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P20AnEngineThatHasNothingToDoSleeps) {
  REQUIRE_CAP(realtime_threads);
  reopen(usual_config(), {.realtime_threads = true});
  auto counter = *eb().make_counter();
  ASSERT_TRUE(ea().submit(write(0, 100'000, counter.key())));
  ASSERT_TRUE(counter.wait(1, kLong));
  EXPECT_TRUE(arrived(0, 100'000));
  run_for(20ms);
  const auto before = ea().stats();
  run_for(300ms);
  const auto after = ea().stats();
  EXPECT_GT(after.sleeps, before.sleeps);
  // A worker that polls takes millions in that time; one that sleeps is woken now and then.
  EXPECT_LT(after.turns - before.turns, 3000u);
  // And it wakes up.
  ASSERT_TRUE(ea().submit(write(0, 100, counter.key())));
  EXPECT_TRUE(counter.wait(1, kLong));
}

TEST_P(Conformance, P20AThreadThatWaitsSleeps) {
  REQUIRE_CAP(realtime_threads);
  reopen(usual_config(), {.realtime_threads = true});
  auto counter = *eb().make_counter();
  auto inbox = *eb().make_inbox(1);
  const Nanos start = cpu_time_of_this_thread();
  EXPECT_EQ(counter.wait(1, 200ms).error().code, Errc::kTimeout);
  EXPECT_EQ(inbox.wait(200ms).error().code, Errc::kTimeout);
  EXPECT_LT(cpu_time_of_this_thread() - start, 200ms) << "of 400";
}

// ---- P21 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P21AForkedChildIsRefusedEverywhereAndTouchesNothing) {
  REQUIRE_CAP(realtime_threads);
  if (!kForksWithThreads) GTEST_SKIP() << "the sanitizer's own locks stay held in a child";
  reopen(usual_config(), {.realtime_threads = true});
  std::vector<std::byte> bytes(10'000);
  auto handles = std::make_unique<Handles>(ea(), ab().peer, bytes);
  auto extra = std::make_unique<Engine>(*env().open(0, config()));
  auto counter = *eb().make_counter();
  ASSERT_TRUE(ea().submit(write(0, 100'000, counter.key())));  // something is under way
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);  // a child that hangs is killed, and that is a failure
    const auto wrong = [](const std::vector<Errc>& codes) {
      const auto it =
          std::find_if(codes.begin(), codes.end(), [](Errc code) { return code != Errc::kClosed; });
      return it == codes.end() ? 0 : static_cast<int>(it - codes.begin()) + 1;
    };
    if (const int at =
            wrong(ask_for_everything(ea(), ab().peer, a().out.region.id(), ab().region))) {
      _exit(at);
    }
    if (const int at = wrong(handles->touch(ab().peer))) _exit(100 + at);
    handles.reset();
    extra.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0)
      << "the call that did not fail with kClosed (above 100: of a handle)";
  // The parent goes on as if nothing had happened.
  EXPECT_TRUE(counter.wait(1, kLong));
  EXPECT_TRUE(arrived(0, 100'000));
  ASSERT_TRUE(ea().submit(write(0, 200'000, counter.key())));
  EXPECT_TRUE(counter.wait(1, kLong));
  EXPECT_TRUE(arrived(0, 200'000));
  EXPECT_TRUE(extra->close());
}

// ---- P22 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P22RequestsAreCopiedWhenTheyAreSubmitted) {
  EventRecorder& messages = recorder();
  const auto listener = *eb().listen(1, messages.notify());
  auto counter = *eb().make_counter();
  auto wrong = *eb().make_counter();
  const auto group = *ea().make_group({&ab().peer, 1});
  auto batch = *ea().make_batch();
  const uint64_t name = 4242;
  auto named = *eb().named_counter(name);
  CounterKey resolved;
  {
    std::vector<uint32_t> from{0, 1, 2, 3}, to{3, 2, 1, 0};
    std::vector<ScatterTarget> targets{{ab().region.at(10'000), 10'000, 500, counter.key()},
                                       {ab().region.at(20'000), 20'000, 500, counter.key()}};
    std::vector<CounterKey> keys{counter.key()};
    std::vector<std::byte> message(100, std::byte{0x5a});
    std::vector<uint64_t> names{name};
    std::vector<Write> writes{write(30'000, 500, counter.key()), write(40'000, 500, counter.key())};
    ASSERT_TRUE(ea().submit(PagedWrite{.source = a().out.region.id(),
                                       .source_pages = {.indices = from, .stride_bytes = 1000},
                                       .target = ab().region,
                                       .target_pages = {.indices = to, .stride_bytes = 1000},
                                       .page_bytes = 1000,
                                       .imm = counter.key(),
                                       .batch = batch}));
    ASSERT_TRUE(
        ea().submit(Scatter{.source = a().out.region.id(), .targets = targets, .batch = batch}));
    ASSERT_TRUE(ea().submit(Signal{.group = group, .keys = keys, .batch = batch}));
    ASSERT_TRUE(
        ea().submit(Send{.peer = ab().peer, .channel = 1, .bytes = message, .batch = batch}));
    ASSERT_TRUE(ea().submit(
        Resolve{.peer = ab().peer, .names = names, .out = {&resolved, 1}, .batch = batch}));
    for (Write& one : writes) one.batch = batch;
    ASSERT_EQ(*ea().submit(writes), 2u);
    // All of it is scribbled over before anything was sent, and then freed.
    std::fill(from.begin(), from.end(), 900);
    std::fill(to.begin(), to.end(), 901);
    for (ScatterTarget& target : targets) target = {ab().region.at(0), 0, 1, wrong.key()};
    keys[0] = wrong.key();
    std::fill(message.begin(), message.end(), std::byte{0});
    names[0] = 0;
    for (Write& one : writes) one = write(0, 1, wrong.key());
  }
  ASSERT_TRUE(ea().wait(batch, kLong));
  wait_idle();
  EXPECT_EQ(counter.count(), 4u + 2 + 1 + 2);
  EXPECT_EQ(wrong.count(), 0u);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(
        std::memcmp(a().out.bytes.data() + i * 1000, b().in.bytes.data() + (3 - i) * 1000, 1000), 0)
        << i;
  }
  for (const uint64_t offset : {10'000, 20'000, 30'000, 40'000}) {
    EXPECT_TRUE(arrived(offset, 500)) << offset;
    EXPECT_TRUE(untouched(offset + 500, 500)) << offset;
  }
  EXPECT_TRUE(untouched(900'000, 10'000));
  ASSERT_EQ(messages.count(), 1u);
  EXPECT_EQ(messages.messages[0], std::vector<std::byte>(100, std::byte{0x5a}));
  EXPECT_EQ(resolved, named.key());
}

TEST_P(Conformance, P22HandlesOutliveTheirEngineInertly) {
  std::vector<std::byte> bytes(10'000);
  for (const bool closed_first : {true, false}) {
    SCOPED_TRACE(closed_first);
    auto engine = std::make_optional(*env().open(0, config()));
    const PeerId peer = *engine->connect(engine->address());
    Handles handles(*engine, peer, bytes);
    ASSERT_TRUE(handles.flag.load() == 0 && handles.counter.key());
    const auto all_closed = [](const std::vector<Errc>& codes) {
      return codes == std::vector<Errc>(codes.size(), Errc::kClosed);
    };
    if (closed_first) {
      ASSERT_TRUE(engine->close());
      EXPECT_TRUE(all_closed(handles.touch(peer))) << testing::PrintToString(handles.touch(peer));
      const auto codes = ask_for_everything(*engine, peer, handles.region.id(), RemoteRegion(0, 1));
      EXPECT_TRUE(all_closed(codes)) << testing::PrintToString(codes);
      EXPECT_EQ(engine->stats().ops_in_flight, 0u);
      EXPECT_FALSE(engine->dump_json().empty());
    }
    engine.reset();
    EXPECT_TRUE(all_closed(handles.touch(peer)));
    EXPECT_EQ(handles.pages.bytes().size(), 10'000u);
    handles.pages.bytes()[9999] = std::byte{1};  // the bytes stay until their handle goes
    Event events[4];
    while (handles.inbox.poll(events) > 0) continue;
    EXPECT_EQ(handles.inbox.wait(1ms).error().code, Errc::kClosed);
  }
}

TEST_P(Conformance, P22AMovedFromHandleIsEmptyAndHarmless) {
  auto counter = *ea().make_counter();
  auto batch = *ea().make_batch();
  auto inbox = *ea().make_inbox(2);
  const Notify notify = Notify::inbox(inbox);
  auto counter2 = std::move(counter);
  auto batch2 = std::move(batch);
  auto inbox2 = std::move(inbox);
  ASSERT_TRUE(ea().submit(Timer{.batch = batch2, .notify = notify}))
      << "a moved handle stays valid";
  ASSERT_TRUE(inbox2.wait(kLong));
  Event event;
  EXPECT_EQ(inbox2.poll({&event, 1}), 1u);
  // NOLINTBEGIN(bugprone-use-after-move): that is the point.
  EXPECT_EQ(inbox.poll({&event, 1}), 0u);
  EXPECT_EQ(counter.count() + batch.pending(), 0u);
  EXPECT_FALSE(counter.key());
  EXPECT_EQ(counter.expect(1, {}).error().code, Errc::kReleased);
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_TRUE(counter2.key());
  Engine moved = std::move(a().engine);
  EXPECT_EQ(a().engine.submit(Timer{}).error().code, Errc::kClosed);
  EXPECT_TRUE(moved.submit(Timer{}));
  a().engine = std::move(moved);
  EXPECT_EQ(submit_and_wait(ea(), write(0, 100)).code, Errc::kOk);
}

}  // namespace fabric::test::lifetime_test
