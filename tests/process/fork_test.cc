#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "support/sanitizers.h"
#include "threads/engine_harness.h"

// Children of a process with engines (P21): every call is refused, destructors touch nothing, and
// the parent does not notice.

namespace fabric::test::fork_test {
namespace {

/// What a child finds. It has one thread, and another thread of its parent may have held any lock,
/// so it writes by the system call only.
class Findings {
 public:
  void expect(bool holds, const char* what) {
    if (holds) return;
    failed_ = true;
    const char* const parts[] = {"in the child: ", what, "\n"};
    for (const char* part : parts) {
      [[maybe_unused]] const auto n = ::write(STDERR_FILENO, part, std::strlen(part));
    }
  }
  void closed(Errc code, const char* what) { expect(code == Errc::kClosed, what); }
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

/// Runs `body` in a child. 0: it found nothing; a child that hangs is killed by SIGALRM.
int in_child(const std::function<void(Findings&)>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    Findings findings;
    body(findings);
    ::_exit(findings.failed() ? 1 : 0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// One of everything that a user can hold.
struct Everything {
  explicit Everything(Cluster& cluster)
      : engine(cluster[0]),
        target(cluster[1], 4096),
        peer(cluster.connect(0, 1)),
        remote(target.seen_by(engine, peer)),
        region(*engine.register_memory({bytes.data(), bytes.size()})),
        own(*engine.allocate({.size_bytes = 4096})),
        inbox(*engine.make_inbox(16)),
        batch(*engine.make_batch()),
        flag(*engine.make_flag()),
        counter(*engine.make_counter()),
        named(*engine.named_counter(11)),
        member(*engine.make_counter()),
        counters(*engine.make_counter_group()),
        group(*engine.make_group({&peer, 1})),
        watcher(*engine.make_watcher(Notify::inbox(inbox), {.polled = false})),
        subscription(*engine.subscribe(Notify::inbox(inbox))),
        listener(*engine.listen(4, Notify::inbox(inbox))) {
    EXPECT_TRUE(counters.add(member, peer));
    watcher.arm();
  }

  Write write() {
    return {.source = region.at(0), .target = remote.at(0), .size_bytes = 64, .batch = batch};
  }

  std::vector<std::byte> bytes = std::vector<std::byte>(4096);
  Engine& engine;
  Area target;
  PeerId peer;
  RemoteRegion remote;
  MemoryRegion region, own;
  Inbox inbox;
  Batch batch;
  Flag flag;
  Counter counter, named, member;
  CounterGroup counters;
  PeerGroup group;
  Watcher watcher;
  Subscription subscription, listener;
};

void expect_requests_refused(Everything& all, Findings& child) {
  Engine& engine = all.engine;
  const std::array<uint32_t, 1> page{0};
  const Pages pages{.indices = page, .stride_bytes = 64};
  const ScatterTarget target{all.remote.at(0), 0, 64, {}};
  const CounterKey key = all.counter.key();
  const uint64_t name = 8;
  CounterKey out;
  const Write write = all.write();
  child.closed(engine.submit(write).error().code, "submit(Write)");
  child.closed(engine.submit(std::span(&write, 1)).error().code, "submit(span)");
  child.closed(engine
                   .submit(PagedWrite{.source = all.region.id(),
                                      .source_pages = pages,
                                      .target = all.remote,
                                      .target_pages = pages,
                                      .page_bytes = 64})
                   .error()
                   .code,
               "submit(PagedWrite)");
  child.closed(
      engine.submit(Scatter{.source = all.region.id(), .targets = {&target, 1}}).error().code,
      "submit(Scatter)");
  child.closed(engine.submit(Signal{.group = all.group, .keys = {&key, 1}}).error().code,
               "submit(Signal)");
  child.closed(engine.submit(Send{.peer = all.peer}).error().code, "submit(Send)");
  child.closed(engine.submit(Timer{}).error().code, "submit(Timer)");
  child.closed(
      engine.submit(Resolve{.peer = all.peer, .names = {&name, 1}, .out = {&out, 1}}).error().code,
      "submit(Resolve)");
  child.closed(engine.submit(Fence{.peer = all.peer}).error().code, "submit(Fence)");
  child.closed(engine.submit(Drop{.peer = all.peer}).error().code, "submit(Drop)");
  child.closed(engine.submit(Deregister{.region = all.region.id()}).error().code,
               "submit(Deregister)");
  child.closed(engine.cancel(OpId(0, 1)).error().code, "cancel(op)");
  child.closed(engine.cancel(all.batch.id()).error().code, "cancel(batch)");
  child.closed(engine.wait(all.batch).error().code, "wait");
  child.closed(engine.resolve(all.peer, {&name, 1}, {&out, 1}).error().code, "resolve");
}

void expect_set_up_refused(Everything& all, Findings& child) {
  Engine& engine = all.engine;
  std::array<std::byte, 64> bytes{};
  child.expect(engine.address().empty(), "address");
  child.expect(engine.peers().empty(), "peers");
  child.closed(engine.connect(bytes).error().code, "connect");
  child.closed(engine.disconnect(all.peer).error().code, "disconnect");
  child.closed(engine.peer_info(all.peer).error().code, "peer_info");
  child.closed(engine.make_group({&all.peer, 1}).error().code, "make_group");
  child.closed(engine.offer(all.region, CounterKey{}).error().code, "offer");
  child.closed(engine.register_memory({bytes.data(), bytes.size()}).error().code, "register");
  child.closed(engine.allocate({.size_bytes = 4096}).error().code, "allocate");
  child.closed(engine.import_region(all.peer, bytes).error().code, "import_region");
  child.closed(engine.make_inbox(1).error().code, "make_inbox");
  child.closed(engine.make_batch().error().code, "make_batch");
  child.closed(engine.make_counter().error().code, "make_counter");
  child.closed(engine.named_counter(1).error().code, "named_counter");
  child.closed(engine.make_counter_group().error().code, "make_counter_group");
  child.closed(engine.make_watcher(Notify::inbox(all.inbox)).error().code, "make_watcher");
  child.closed(engine.make_flag().error().code, "make_flag");
  child.closed(engine.listen(1, Notify::inbox(all.inbox)).error().code, "listen");
  child.closed(engine.subscribe(Notify::inbox(all.inbox)).error().code, "subscribe");
  child.expect(engine.progress() == 0, "progress");
  child.expect(engine.stats().turns == 0, "stats");
  child.expect(engine.rail_stats().empty() && engine.peer_stats().empty(), "rail and peer stats");
  child.expect(!engine.dump().empty() && !engine.dump_json().empty(), "dump");
  child.closed(engine.close().error().code, "close");
}

void expect_handles_refused(Everything& all, Findings& child) {
  std::array<Event, 4> events;
  child.closed(all.region.desc().error().code, "desc");
  child.closed(all.region.grant(all.peer).error().code, "grant");
  child.expect(all.inbox.poll(events) == 0, "poll");
  child.closed(all.inbox.wait().error().code, "Inbox::wait");
  child.closed(all.inbox.fd().error().code, "fd");
  child.closed(all.batch.seal({}).error().code, "seal");
  child.closed(all.batch.reset().error().code, "reset");
  child.expect(all.batch.failures({}) == 0, "failures");
  child.expect(all.counter.count() == 0, "count");
  child.expect(!all.counter.try_take(1), "try_take");
  child.closed(all.counter.expect(1, {}).error().code, "expect");
  child.closed(all.counter.wait(1).error().code, "Counter::wait");
  child.closed(all.counter.bind(all.peer).error().code, "bind");
  child.closed(all.counter.close().error().code, "Counter::close");
  all.counter.release();
  child.closed(all.counters.add(all.counter, all.peer).error().code, "add");
  child.closed(all.counters.expect(1, {}).error().code, "CounterGroup::expect");
  child.closed(all.counters.wait(1).error().code, "CounterGroup::wait");
  child.closed(all.counters.mask(all.peer).error().code, "mask");
  child.expect(all.counters.missing().empty() && all.counters.count() == 0, "missing");
  all.watcher.store(3);
  all.watcher.disarm();
  all.watcher.arm();
  all.flag.store(2);
}

/// Everything, and then nothing of it.
void use_and_drop(std::unique_ptr<Cluster>& cluster, std::unique_ptr<Everything>& all,
                  Findings& child) {
  expect_requests_refused(*all, child);
  expect_set_up_refused(*all, child);
  expect_handles_refused(*all, child);
  all.reset();
  cluster.reset();
}

TEST(Fork, AChildIsRefusedEverythingAndItsParentGoesOn) {
  if (!kForksWithThreads) GTEST_SKIP() << "the sanitizer's own locks stay held in a child";
  auto cluster = std::make_unique<Cluster>(2);
  auto all = std::make_unique<Everything>(*cluster);
  for (uint32_t round = 0; round < 3; ++round) {
    EXPECT_EQ(in_child([&](Findings& child) { use_and_drop(cluster, all, child); }), 0);
    ASSERT_TRUE(all->engine.submit(all->write()));
    ASSERT_TRUE(all->engine.wait(all->batch, 20s));
    EXPECT_EQ(all->flag.load(), 0u);
  }
  EXPECT_EQ(all->batch.delivered(), 3u);
  all->watcher.store(7);
  EXPECT_TRUE(all->inbox.wait(20s));
  all.reset();
  EXPECT_TRUE((*cluster)[0].close());
}

TEST(Fork, ChildrenOfABusyParentDoNotHang) {
  if (!kForksWithThreads) GTEST_SKIP() << "the sanitizer's own locks stay held in a child";
  auto cluster = std::make_unique<Cluster>(2);
  auto all = std::make_unique<Everything>(*cluster);
  ReportAudit audit(400'000);
  std::atomic<bool> stop{false};
  ScopedThreads threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.add([&] {
      while (!stop.load() && audit.opened() < 390'000) {
        const uint64_t tag = audit.open();
        Write write = all->write();
        write.notify = audit.call(tag);
        if (!all->engine.submit(write)) audit.refused(tag);
        (void)all->engine.make_counter();  // takes the locks
        std::this_thread::sleep_for(20us);
      }
    });
  }
  for (uint32_t round = 0; round < 8; ++round) {
    EXPECT_EQ(in_child([&](Findings& child) { use_and_drop(cluster, all, child); }), 0);
  }
  stop.store(true);
  threads.join();
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
  EXPECT_GT(audit.ok(), 0u);
}

TEST(Fork, AnInlineEngineIsRefusedToo) {
  auto runtime = std::make_shared<InlineRuntime>();
  Config config = engine_config();
  auto engine = std::make_unique<Engine>(*Engine::open(config, runtime));
  Batch batch = *engine->make_batch();
  EXPECT_EQ(in_child([&](Findings& child) {
              child.closed(engine->submit(Timer{}).error().code, "submit");
              child.closed(engine->wait(batch).error().code, "wait");
              child.expect(engine->progress() == 0, "progress");
              engine.reset();
              runtime.reset();
            }),
            0);
  ASSERT_TRUE(engine->submit(Timer{.after = 1us, .batch = batch}));
  EXPECT_TRUE(engine->wait(batch, 20s));
}

TEST(Fork, AChildMayHaveAnEngineOfItsOwn) {
  if (!kForksWithThreads) GTEST_SKIP() << "the sanitizer's own locks stay held in a child";
  Cluster cluster(1);
  const auto own_engine = [](Findings& child) {
    Cluster mine(2);
    Area source(mine[0], 64), target(mine[1], 64);
    source.bytes[5] = std::byte{9};
    const PeerId peer = mine.connect(0, 1);
    Batch batch = *mine[0].make_batch();
    const auto op = mine[0].submit(Write{.source = source.region().at(0),
                                         .target = target.seen_by(mine[0], peer).at(0),
                                         .size_bytes = 64,
                                         .batch = batch});
    child.expect(op.has_value() && mine[0].wait(batch, 20s).has_value(), "a write of its own");
    child.expect(target.bytes[5] == std::byte{9}, "its bytes");
  };
  EXPECT_EQ(in_child(own_engine), 0);
}

// In a process of its own: the engine is never closed.
TEST(Process, AnEngineThatIsDestroyedInItsCallbackStaysOpenAndSaysSo) {
  expect_log("an engine was destroyed in a callback");
  const auto destroy_inside = [](Findings& child) {
    Cluster cluster(1);
    struct Last {
      std::unique_ptr<Engine> engine;
      std::atomic<bool> done{false};
      void report(const Event&) {
        engine.reset();
        done.store(true);
      }
    } last;
    last.engine = std::make_unique<Engine>(std::move(cluster[0]));
    Batch batch = *last.engine->make_batch();
    child.expect(
        last.engine->submit(Timer{.notify = Notify::call<&Last::report>(&last)}).has_value(),
        "submit");
    child.expect(eventually([&] { return last.done.load(); }), "the callback ran");
    child.expect(logged("an engine was destroyed in a callback") == 1, "it was logged");
    child.expect(batch.reset().has_value(), "its handles still work");
  };
  EXPECT_EQ(in_child(destroy_inside), 0);
}

}  // namespace
}  // namespace fabric::test::fork_test
