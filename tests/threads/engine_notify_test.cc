#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "threads/engine_harness.h"

// Counters, watchers, messages and inboxes: what is reported, to which recipient, and what happens
// when the recipient is destroyed.

namespace fabric::test::engine_notify_test {
namespace {

/// A counter with an expectation whose callback arms the next one.
struct Chain {
  Counter counter;
  std::atomic<uint64_t> seen{0};
  std::atomic<bool> ended{false};
  explicit Chain(Counter made) : counter(std::move(made)) {}
  void ask() {
    if (!counter.expect(1, Notify::call<&Chain::report>(this), Timeout::forever())) ended = true;
  }
  void report(const Event& event) {
    if (event.code != Errc::kOk) {
      ended = true;
      return;
    }
    seen.fetch_add(1);
    ask();
  }
};

TEST(EngineNotify, CountersAreWaitedForByThreadsCallbacksAndPollingAtOnce) {
  Cluster cluster(2);
  const PeerId peer = cluster.connect(0, 1);
  const PeerGroup group = *cluster[0].make_group({&peer, 1});
  Counter blocked = *cluster[1].make_counter(), polled = *cluster[1].make_counter();
  Chain chain(*cluster[1].make_counter());
  chain.ask();
  constexpr uint32_t kThreads = 4, kSignals = 250;
  ScopedThreads threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.add([&] {
      for (uint32_t i = 0; i < kSignals; ++i) {
        for (const CounterKey key : {blocked.key(), polled.key(), chain.counter.key()}) {
          while (!cluster[0].submit(Signal{.group = group, .keys = {&key, 1}})) {
            std::this_thread::yield();
          }
        }
      }
    });
  }
  threads.add([&] {
    for (uint32_t i = 0; i < kThreads * kSignals / 2; ++i) ASSERT_TRUE(blocked.wait(2, 20s));
  });
  std::atomic<uint32_t> taken{0};
  for (uint32_t t = 0; t < 2; ++t) {
    threads.add([&] {
      EXPECT_TRUE(eventually([&] {
        while (polled.try_take(1)) taken.fetch_add(1);
        return taken.load() == kThreads * kSignals;
      }));
    });
  }
  threads.join();
  EXPECT_TRUE(eventually([&] { return chain.seen.load() == kThreads * kSignals; }));
  EXPECT_EQ(blocked.count(), 0u);
  chain.counter.release();
  EXPECT_TRUE(eventually([&] { return chain.ended.load(); }));
}

TEST(EngineNotify, TwoThreadsThatWaitInTurnsLoseNoCount) {
  Cluster cluster(2);
  const PeerId peer = cluster.connect(0, 1);
  const PeerGroup group = *cluster[0].make_group({&peer, 1});
  Counter counter = *cluster[1].make_counter();
  const CounterKey key = counter.key();
  constexpr uint32_t kSignals = 600;
  std::atomic<uint32_t> met{0};
  ScopedThreads threads;
  for (uint32_t t = 0; t < 2; ++t) {
    threads.add([&] {
      while (met.load() < kSignals) {
        const auto waited = counter.wait(1, 5ms);
        if (waited) met.fetch_add(1);
        const Errc code = waited.error().code;
        ASSERT_TRUE(waited || code == Errc::kBusy || code == Errc::kTimeout) << to_string(code);
      }
    });
  }
  for (uint32_t i = 0; i < kSignals; ++i) {
    ASSERT_TRUE(cluster[0].submit(Signal{.group = group, .keys = {&key, 1}}));
    if (i % 16 == 0) std::this_thread::sleep_for(100us);
  }
  threads.join();
  EXPECT_EQ(met.load(), kSignals);
  EXPECT_EQ(counter.count(), 0u);
}

TEST(EngineNotify, CountersAreMadeAndReleasedUnderTrafficAndTheirWaits) {
  Cluster cluster(2);
  const PeerId peer = cluster.connect(0, 1);
  const PeerGroup group = *cluster[0].make_group({&peer, 1});
  std::atomic<uint32_t> current{0};
  std::atomic<bool> stop{false};
  ScopedThreads sender;
  sender.add([&] {
    while (!stop.load()) {
      const CounterKey key = CounterKey::from_wire(current.load());
      if (key) (void)cluster[0].submit(Signal{.group = group, .keys = {&key, 1}});
      std::this_thread::sleep_for(5us);
    }
  });
  for (uint32_t i = 0; i < 60; ++i) {
    Counter counter = *cluster[1].make_counter();
    current.store(counter.key().wire());
    ReportAudit audit(1);
    ScopedThreads waiters;
    waiters.add([&] {
      // Ends by the release: so many never come.
      const auto waited = counter.wait(1'000'000, 20s);
      const Errc code = waited.error().code;
      EXPECT_TRUE(code == Errc::kReleased || code == Errc::kBusy) << to_string(code);
    });
    const uint64_t tag = audit.open();
    if (!counter.expect(2'000'000, audit.call(tag))) audit.refused(tag);
    std::this_thread::sleep_for(500us);
    counter.release();
    waiters.join();
    ASSERT_TRUE(eventually([&] { return audit.complete(); }));
    audit.expect_exactly_once();
  }
  stop.store(true);
  sender.join();
  EXPECT_GT(cluster[1].stats().stale_imms, 0u);
}

/// Takes what a watcher reports and checks that each step begins where the last one ended.
struct WatchedValues {
  std::atomic<uint64_t> last{0}, events{0};
  void report(const Event& event) {
    EXPECT_EQ(event.kind, EventKind::kWatch);
    EXPECT_EQ(event.previous, last.load());
    EXPECT_GT(event.value, event.previous);
    last.store(event.value);
    events.fetch_add(1);
  }
};

TEST(EngineNotify, TheLastValueOfAWatchedWordIsNeverLost) {
  Cluster cluster(1);
  for (const bool polled : {false, true}) {
    WatchedValues called, read;
    Inbox inbox = *cluster[0].make_inbox(1);
    Watcher by_call =
        *cluster[0].make_watcher(Notify::call<&WatchedValues::report>(&called), {.polled = polled});
    Watcher by_inbox = *cluster[0].make_watcher(Notify::inbox(inbox), {.polled = polled});
    by_call.arm();
    by_inbox.arm();
    constexpr uint64_t kBursts = 40, kValues = 50;
    ScopedThreads threads;
    threads.add([&] {
      Event event;
      for (uint64_t burst = 1; burst <= kBursts; ++burst) {
        while (read.last.load() < burst * kValues) {
          ASSERT_TRUE(inbox.wait(20s)) << "a value was lost after " << read.last.load();
          while (inbox.poll({&event, 1}) == 1) read.report(event);
        }
      }
    });
    for (uint64_t burst = 1; burst <= kBursts; ++burst) {
      for (uint64_t v = (burst - 1) * kValues + 1; v <= burst * kValues; ++v) {
        by_call.store(v);
        by_inbox.store(v);
      }
      ASSERT_TRUE(eventually([&] {
        return called.last.load() == burst * kValues && read.last.load() == burst * kValues;
      }));
    }
    threads.join();
    EXPECT_LE(called.events.load(), kBursts * kValues);
  }
}

TEST(EngineNotify, DisarmingQueuesTheLastValueAlsoAfterOneThatIsBeingReported) {
  Cluster cluster(1);
  struct Slow {
    std::atomic<bool> inside{false}, go_on{false};
    std::atomic<uint64_t> last{0};
    void report(const Event& event) {
      inside = true;
      EXPECT_TRUE(eventually([&] { return go_on.load(); }));
      last = event.value;
    }
  } slow;
  Watcher watcher = *cluster[0].make_watcher(Notify::call<&Slow::report>(&slow), {.polled = false});
  watcher.arm();
  watcher.store(1);
  ASSERT_TRUE(eventually([&] { return slow.inside.load(); }));
  watcher.store(2);
  watcher.disarm();
  slow.go_on = true;
  EXPECT_TRUE(eventually([&] { return slow.last.load() == 2; }));
}

// Threads block one after the other and are ended in a row: what is armed next is never refused
// because one of them has not run yet, and each gets its own end.
TEST(EngineNotify, DisarmingThreadsInARowLeavesTheCounterFree) {
  Cluster cluster(1);
  constexpr uint32_t kThreads = 4, kTurns = 100;
  Counter counter = *cluster[0].make_counter();
  std::atomic<uint32_t> turn{0}, returned{0};
  ScopedThreads threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.add([&, t] {
      for (uint32_t mine = t + 1; mine <= kTurns * kThreads; mine += kThreads) {
        while (turn.load() < mine) std::this_thread::yield();
        Errc code;
        do {  // the test looks whether the thread has armed by arming itself
          code = counter.wait(mine, kPatience).error().code;
        } while (code == Errc::kBusy);
        EXPECT_EQ(code, Errc::kCancelled);
        returned.fetch_add(1);
      }
    });
  }
  // kExhausted: earlier ones are not reported yet.
  const auto arm = [&](uint64_t n) {
    Errc code;
    do {
      code = counter.expect(n, {}, kPatience).error().code;
    } while (code == Errc::kExhausted);
    return code;
  };
  for (uint32_t i = 1; i <= kTurns * kThreads; ++i) {
    turn.store(i);
    while (arm(i) != Errc::kBusy) counter.disarm();
    counter.disarm();
    if (i % kThreads != 0) continue;
    EXPECT_EQ(arm(i), Errc::kOk) << "turn " << i;
    counter.disarm();
    ASSERT_TRUE(eventually([&] { return returned.load() == i; }));
  }
}

TEST(EngineNotify, MessagesGoBothWaysAndEachArrivesOnce) {
  Cluster cluster(2);
  const std::array<PeerId, 2> peers{cluster.connect(0, 1), cluster.connect(1, 0)};
  constexpr uint32_t kThreads = 3, kMessages = 120;
  struct Post {
    std::vector<std::atomic<uint32_t>> seen = std::vector<std::atomic<uint32_t>>(1024);
    void report(const Event& event) {
      uint32_t number = 0;
      ASSERT_GE(event.bytes().size(), sizeof number);
      std::memcpy(&number, event.data, sizeof number);
      for (const std::byte b : event.bytes().subspan(sizeof number)) {
        ASSERT_EQ(b, static_cast<std::byte>(number));
      }
      seen[number].fetch_add(1);
    }
  };
  std::array<Post, 2> posts;
  Subscription by_call = *cluster[0].listen(3, Notify::call<&Post::report>(&posts[0]));
  Inbox inbox = *cluster[1].make_inbox(8);
  Subscription by_inbox = *cluster[1].listen(3, Notify::inbox(inbox));
  ReportAudit audit(2 * kThreads * kMessages);
  ScopedThreads threads;
  for (uint32_t side = 0; side < 2; ++side) {
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.add([&, side, t] {
        for (uint32_t i = 0; i < kMessages; ++i) {
          const uint32_t number = t * kMessages + i;
          std::vector<std::byte> bytes(sizeof number + number % 300,
                                       static_cast<std::byte>(number));
          std::memcpy(bytes.data(), &number, sizeof number);
          ASSERT_TRUE(cluster[side].submit(Send{.peer = peers[side],
                                                .channel = 3,
                                                .bytes = bytes,
                                                .notify = audit.call(audit.open())}));
        }
      });
    }
  }
  std::array<Event, 4> events;
  for (uint32_t got = 0; got < kThreads * kMessages;) {
    ASSERT_TRUE(inbox.wait(20s));
    const uint32_t n = inbox.poll(events);
    for (uint32_t i = 0; i < n; ++i) posts[1].report(events[i]);
    got += n;
  }
  threads.join();
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
  EXPECT_EQ(audit.ok(), audit.opened());
  for (const Post& post : posts) {
    // A send has completed when its message is queued; the callback may still be about to run.
    for (uint32_t i = 0; i < kThreads * kMessages; ++i) {
      EXPECT_TRUE(eventually([&] { return post.seen[i].load() != 0; }));
      EXPECT_EQ(post.seen[i].load(), 1u);
    }
  }
}

TEST(EngineNotify, ListenersAndSubscribersComeAndGo) {
  Cluster cluster(2);
  const PeerId peer = cluster.connect(0, 1);
  ReportAudit audit(20000);
  std::atomic<bool> stop{false};
  ScopedThreads threads;
  threads.add([&] {
    const std::array<std::byte, 8> bytes{};
    for (uint32_t i = 0; i < 5000 && !stop.load(); ++i) {
      const uint64_t tag = audit.open();
      if (!cluster[0].submit(
              Send{.peer = peer, .channel = 9, .bytes = bytes, .notify = audit.call(tag)})) {
        audit.refused(tag);
      }
      if (i % 8 == 0) std::this_thread::sleep_for(50us);
    }
  });
  threads.add([&] {
    while (!stop.load()) {
      // Fails without a notification of its own: it is reported to the subscribers.
      auto op = cluster[1].submit(Timer{.after = 1s});
      if (op) (void)cluster[1].cancel(*op);
      std::this_thread::sleep_for(50us);
    }
  });
  struct Alive {
    std::atomic<bool> alive{true};
    std::atomic<uint64_t> events{0};
    void report(const Event&) {
      EXPECT_TRUE(alive.load()) << "reported after the subscription had ended";
      events.fetch_add(1);
    }
  };
  uint64_t events = 0;
  for (uint32_t i = 0; i < 60; ++i) {
    Alive listener_calls, subscriber_calls;
    {
      Subscription listener = *cluster[1].listen(9, Notify::call<&Alive::report>(&listener_calls));
      Subscription subscriber =
          *cluster[1].subscribe(Notify::call<&Alive::report>(&subscriber_calls));
      std::this_thread::sleep_for(500us);
    }
    listener_calls.alive = subscriber_calls.alive = false;
    events += listener_calls.events.load() + subscriber_calls.events.load();
  }
  stop.store(true);
  threads.join();
  EXPECT_GT(events, 0u);
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
}

/// Who was accepted, and who was reported to whom: by operation, because a subscriber gets its own
/// tag.
struct Redirected {
  std::mutex mutex;
  std::vector<OpId> accepted, reported;
  void accept(OpId op) {
    const std::lock_guard lock(mutex);
    accepted.push_back(op);
  }
  void report(const Event& event) {
    const std::lock_guard lock(mutex);
    if (event.kind == EventKind::kDone) reported.push_back(event.op);
  }
  bool complete() {
    const std::lock_guard lock(mutex);
    return reported.size() >= accepted.size();
  }
};

TEST(EngineNotify, WhatAnInboxWasToGetGoesToTheSubscribersWhenItIsClosed) {
  Cluster cluster(2);
  Area source(cluster[0], 4096), target(cluster[1], 4096);
  const PeerId peer = cluster.connect(0, 1);
  const RemoteRegion remote = target.seen_by(cluster[0], peer);
  Redirected completions;
  Subscription subscription =
      *cluster[0].subscribe(Notify::call<&Redirected::report>(&completions));
  std::atomic<uint64_t> read{0};
  ScopedThreads threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.add([&] {
      for (uint32_t round = 0; round < 40; ++round) {
        auto inbox = std::make_unique<Inbox>(*cluster[0].make_inbox(24));
        const Notify notify = Notify::inbox(*inbox);
        ScopedThreads helper;
        helper.add([&] {  // may come when the inbox is closed
          for (uint32_t i = 0; i < 24; ++i) {
            const auto op = cluster[0].submit(Timer{.after = Nanos(i * 1000), .notify = notify});
            if (op) completions.accept(*op);
          }
        });
        for (uint32_t i = 0; i < 16; ++i) {
          const auto op = cluster[0].submit(Write{.source = source.region().at(0),
                                                  .target = remote.at(0),
                                                  .size_bytes = 64,
                                                  .notify = notify});
          if (op) completions.accept(*op);
        }
        std::array<Event, 4> events;
        const uint32_t n = inbox->poll(events);
        for (uint32_t i = 0; i < n; ++i) completions.report(events[i]);
        read.fetch_add(n);
        inbox.reset();
        helper.join();
      }
    });
  }
  threads.join();
  EXPECT_TRUE(eventually([&] { return completions.complete(); }));
  std::sort(completions.accepted.begin(), completions.accepted.end());
  std::sort(completions.reported.begin(), completions.reported.end());
  EXPECT_EQ(completions.accepted, completions.reported);
  EXPECT_LT(read.load(), completions.reported.size());
}

/// One end of a descriptor that an external event loop sleeps on.
bool readable(int fd, int timeout_ms) {
  pollfd waiting{fd, POLLIN, 0};
  return ::poll(&waiting, 1, timeout_ms) == 1 && (waiting.revents & POLLIN) != 0;
}

TEST(EngineNotify, TheDescriptorOfAnInboxIsReadableExactlyWhileEventsWait) {
  Cluster cluster(1);
  Inbox inbox = *cluster[0].make_inbox(8);
  Event event;
  // Made while nothing waits.
  const int fd = *inbox.fd();
  EXPECT_EQ(*inbox.fd(), fd);
  EXPECT_FALSE(readable(fd, 0));
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(cluster[0].submit(Timer{.notify = Notify::inbox(inbox, i)}));
  }
  ASSERT_TRUE(readable(fd, 20'000));
  ASSERT_TRUE(eventually([&] { return cluster[0].stats().ops_in_flight == 0; }));
  EXPECT_EQ(inbox.poll({}), 0u);
  EXPECT_TRUE(readable(fd, 0)) << "no event was read";
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(readable(fd, 0)) << i;
    ASSERT_EQ(inbox.poll({&event, 1}), 1u);
  }
  EXPECT_EQ(inbox.poll({&event, 1}), 0u);
  EXPECT_FALSE(readable(fd, 0));

  // Made while something waits.
  Inbox second = *cluster[0].make_inbox(8);
  ASSERT_TRUE(cluster[0].submit(Timer{.notify = Notify::inbox(second)}));
  ASSERT_TRUE(second.wait(20s));
  EXPECT_TRUE(readable(*second.fd(), 0));
}

TEST(EngineNotify, ALoopThatSleepsOnEpollMissesNothingWhenTheDescriptorIsMadeUnderTraffic) {
  Cluster cluster(1);
  for (uint32_t round = 0; round < 30; ++round) {
    constexpr uint32_t kEvents = 40;
    Inbox inbox = *cluster[0].make_inbox(kEvents);
    ScopedThreads threads;
    threads.add([&] {
      for (uint32_t i = 0; i < kEvents; ++i) {
        ASSERT_TRUE(cluster[0].submit(Timer{.notify = Notify::inbox(inbox, i)}));
      }
    });
    const int loop = ::epoll_create1(EPOLL_CLOEXEC);
    ASSERT_GE(loop, 0);
    epoll_event wanted{.events = EPOLLIN, .data = {.u32 = 1}};
    ASSERT_EQ(::epoll_ctl(loop, EPOLL_CTL_ADD, *inbox.fd(), &wanted), 0);
    std::array<Event, 3> events;
    for (uint32_t got = 0; got < kEvents;) {
      epoll_event ready{};
      ASSERT_EQ(::epoll_wait(loop, &ready, 1, 20'000), 1) << "asleep with events waiting: " << got;
      got += inbox.poll(events);
    }
    ::close(loop);
    threads.join();
  }
}

}  // namespace
}  // namespace fabric::test::engine_notify_test
