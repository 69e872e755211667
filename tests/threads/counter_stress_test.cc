#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <pthread.h>
#include <csignal>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "core/counter_table.h"

// Real threads on the counter word. The payload is plain memory that only the count guards, so the
// thread sanitizer sees every count that came too early or without its bytes.

namespace fabric::core::counter_stress_test {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kRunFor = 500ms;
constexpr uint32_t kRoundsMin = 100;  // on a busy machine rather longer than without a point
constexpr auto kHang = 20s;  // nothing here takes longer, even under a sanitizer on a busy machine

/// Whether to play another round.
class Rounds {
 public:
  bool more(uint32_t played) const {
    const auto spent = Clock::now() - start_;
    return !testing::Test::HasFailure() &&
           (spent < kRunFor || (played < kRoundsMin && spent < kHang));
  }

 private:
  const Clock::time_point start_ = Clock::now();
};

int64_t now_ns() {
  return std::chrono::duration_cast<Nanos>(Clock::now().time_since_epoch()).count();
}

/// Stops registered threads at random instructions for a while, by a signal whose handler sleeps. A
/// window of two instructions, which a test would otherwise meet once in a million rounds, is then
/// open long enough for the others to walk through.
class Jolts {
 public:
  /// The thread that makes one gets jolts until it ends.
  class Victim {
   public:
    explicit Victim(Jolts& jolts) : jolts_(jolts) {
      const std::lock_guard lock(jolts_.mutex_);
      jolts_.victims_.push_back(pthread_self());
    }
    ~Victim() {
      const std::lock_guard lock(jolts_.mutex_);
      std::erase(jolts_.victims_, pthread_self());
    }
    Victim(const Victim&) = delete;
    Victim& operator=(const Victim&) = delete;

   private:
    Jolts& jolts_;
  };

  Jolts() {
    struct sigaction action {};
    action.sa_handler = [](int) {
      const int saved = errno;
      pause_for(50us);
      errno = saved;
    };
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, &before_);
    thread_ = std::thread([this] { run(); });
  }
  ~Jolts() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
    sigaction(SIGUSR1, &before_, nullptr);
  }

 private:
  static void pause_for(Nanos time) {
    const timespec ts{0, static_cast<long>(time.count())};
    nanosleep(&ts, nullptr);
  }
  void run() {
    Rng rng(21);
    while (!stop_.load(std::memory_order_relaxed)) {
      {
        const std::lock_guard lock(mutex_);
        if (!victims_.empty()) pthread_kill(victims_[rng.below(victims_.size())], SIGUSR1);
      }
      pause_for(20us);
    }
  }

  struct sigaction before_ {};
  std::mutex mutex_;
  std::vector<pthread_t> victims_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

constexpr uint32_t kWritesMax = 4;
using Payload = std::array<std::array<uint32_t, kRailsMax>, kWritesMax>;  // [write][shard]

struct Arrival {
  uint32_t imm;
  uint32_t write;
  uint32_t part;
  uint32_t round;
};

/// Two workers that deliver shards of writes in random order: the bytes first, then the count.
class ArrivalThreads {
 public:
  ArrivalThreads(CounterTable& table, Payload& payload, Jolts& jolts)
      : table_(table), payload_(payload), jolts_(jolts) {
    for (uint32_t i = 0; i < 2; ++i) threads_[i] = std::thread([this, i] { run(i); });
  }
  ~ArrivalThreads() {
    stop_.store(true, std::memory_order_relaxed);
    for (std::thread& thread : threads_) thread.join();
  }
  void send(uint32_t queue, const Arrival& arrival) {
    in_flight_.fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(queues_[queue].mutex);
    queues_[queue].queued.push_back(arrival);
  }
  /// The only thing besides the counts that orders a worker before the caller.
  void drain() {
    while (in_flight_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  }
  uint64_t stale() const { return stale_.load(std::memory_order_relaxed); }

 private:
  struct ArrivalQueue {
    std::mutex mutex;
    std::vector<Arrival> queued;
  };
  void run(uint32_t index) {
    const Jolts::Victim victim(jolts_);
    Rng rng(index + 5);
    std::vector<Arrival> polled;
    std::vector<uint32_t> imms;
    while (!stop_.load(std::memory_order_relaxed)) {
      polled.clear();
      imms.clear();
      {
        const std::lock_guard lock(queues_[index].mutex);
        std::vector<Arrival>& queued = queues_[index].queued;
        for (uint64_t n = rng.between(1, 4); n > 0 && !queued.empty(); --n) {
          std::swap(queued[rng.below(queued.size())], queued.back());
          polled.push_back(queued.back());
          queued.pop_back();
        }
      }
      if (polled.empty()) {
        std::this_thread::yield();
        continue;
      }
      for (const Arrival& s : polled) {
        payload_[s.write][s.part] = s.round;
        imms.push_back(s.imm);
      }
      stale_.fetch_add(table_.arrive(imms), std::memory_order_relaxed);
      in_flight_.fetch_sub(static_cast<uint32_t>(polled.size()), std::memory_order_release);
    }
  }

  CounterTable& table_;
  Payload& payload_;
  Jolts& jolts_;
  std::array<ArrivalQueue, 2> queues_;
  std::atomic<uint32_t> in_flight_{0};
  std::atomic<uint64_t> stale_{0};
  std::atomic<bool> stop_{false};
  std::array<std::thread, 2> threads_;
};

/// Cancels the expectation that was announced last, the one before it, or neither.
class Canceller {
 public:
  Canceller(CounterTable& table, Jolts& jolts)
      : thread_([this, &table, &jolts] { run(table, jolts); }) {}
  ~Canceller() { join(); }
  void announce(const CounterTable::Expectation& e) {
    latest_.store(uint64_t{e.key.wire()} << 32 | e.seq, std::memory_order_release);
  }
  void join() {
    stop_.store(true, std::memory_order_relaxed);
    if (thread_.joinable()) thread_.join();
  }
  /// After join(): how many cancels took effect, and the sum of their sequence numbers.
  uint64_t hits = 0, seqs = 0;

 private:
  void run(CounterTable& table, Jolts& jolts) {
    const Jolts::Victim victim(jolts);
    Rng rng(9);
    uint64_t previous = 0;
    while (!stop_.load(std::memory_order_relaxed)) {
      const uint64_t latest = latest_.load(std::memory_order_acquire);
      const uint64_t target = rng.chance(0.3) ? previous : latest;
      if (target != 0 && rng.chance(0.5)) {
        const auto seq = static_cast<uint32_t>(target);
        const auto key = CounterKey::from_wire(static_cast<uint32_t>(target >> 32));
        if (table.cancel({key, seq}, Errc::kCancelled)) {
          ++hits;
          seqs += seq;
        }
      }
      previous = latest;
      if (rng.chance(0.2)) std::this_thread::yield();
    }
  }
  std::atomic<uint64_t> latest_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// One receiver: waits round after round, by callback or asleep, and reads the payload.
class Receiver {
 public:
  /// One slot, so that every new counter key is the next generation of the one before it.
  Receiver()
      : table_({.live_max = 1, .seed = 3, .fired = fired, .context = this, .key_bits = 18}) {}

  void run() {
    Jolts jolts;
    ArrivalThreads arrivals(table_, payload_, jolts);
    Canceller canceller(table_, jolts);
    key_ = acquire();
    const Rounds rounds;
    for (round_ = 1; rounds.more(round_); ++round_) {
      issue(arrivals);
      if (rng_.chance(0.15)) {
        give_up(arrivals, canceller);
      } else {
        take(canceller);
        check_payload();
        if (rng_.chance(0.1)) renew();
      }
    }
    arrivals.drain();
    canceller.join();
    EXPECT_EQ(canceller.hits, cancels_) << "each successful cancel must end one expectation";
    EXPECT_EQ(canceller.seqs, cancelled_seqs_) << "a cancel ended another expectation";
    EXPECT_EQ(calls_.load(), callbacks_) << "each expectation must be reported once";
    EXPECT_GE(round_, kRoundsMin);
    EXPECT_GT(arrivals.stale(), 0u) << "no late traffic: the test shows nothing";
    std::printf("rounds %u cancels %lu sleeps %lu callbacks %lu stale %lu\n", round_,
                static_cast<unsigned long>(cancels_), static_cast<unsigned long>(sleeps_),
                static_cast<unsigned long>(callbacks_),
                static_cast<unsigned long>(arrivals.stale()));
  }

 private:
  static void fired(void* self, uint32_t cookie, Errc code) {
    auto* receiver = static_cast<Receiver*>(self);
    receiver->calls_.fetch_add(1, std::memory_order_relaxed);
    receiver->ended_.store(uint64_t{cookie} << 8 | static_cast<uint8_t>(code),
                           std::memory_order_release);  // pairs with wait_called()
  }

  CounterKey acquire() { return *table_.acquire(now_ns(), 0); }

  void issue(ArrivalThreads& arrivals) {
    writes_ = static_cast<uint32_t>(rng_.between(1, kWritesMax));
    for (uint32_t w = 0; w < writes_; ++w) {
      cuts_[w] = static_cast<uint32_t>(rng_.between(1, kRailsMax));
      for (uint32_t part = 0; part < cuts_[w]; ++part) {
        arrivals.send(static_cast<uint32_t>(rng_.below(2)),
                      {make_imm(key_, cuts_[w]), w, part, round_});
      }
    }
  }

  /// One attempt at an expectation for all writes of the round: how it ended, or nothing when it is
  /// armed and there is something to wait() for.
  std::optional<Errc> expect_once(Canceller& canceller) {
    const bool asleep = rng_.chance(0.5);
    waiter_.emplace();
    const auto armed =
        asleep ? table_.expect(key_, writes_, *waiter_) : table_.expect(key_, writes_, ++cookies_);
    if (!armed) return armed.error().code;
    if (armed->met) return Errc::kOk;
    canceller.announce(armed->expectation);
    if (!asleep) ++callbacks_;
    armed_ = armed->expectation;
    waits_asleep_ = asleep;
    return std::nullopt;
  }

  Errc wait() {
    const Errc code = waits_asleep_ ? wait_asleep() : wait_called();
    if (code == Errc::kCancelled) {
      ++cancels_;
      cancelled_seqs_ += armed_.seq;
    }
    return code;
  }
  Errc wait_called() {
    const auto until = Clock::now() + kHang;
    uint64_t ended;
    while (((ended = ended_.load(std::memory_order_acquire)) >> 8) != cookies_) {
      if (Clock::now() > until) {
        ADD_FAILURE() << "never reported, round " << round_;
        break;
      }
      std::this_thread::yield();
    }
    return static_cast<Errc>(ended & 0xff);
  }
  Errc wait_asleep() {
    EventCount& waiters = table_.event_count(key_);
    const auto until = Clock::now() + kHang;
    for (;;) {
      if (const auto end = waiter_->end(); end.done) return end.code;
      const auto ticket = waiters.prepare();
      if (const auto end = waiter_->end(); end.done) return end.code;
      ++sleeps_;
      waiters.sleep(ticket, Nanos(kHang).count());
      if (Clock::now() > until) {
        ADD_FAILURE() << "the wake-up was lost, round " << round_;
        return Errc::kTimeout;
      }
    }
  }

  void take(Canceller& canceller) {
    const auto until = Clock::now() + kHang;
    for (;;) {
      const std::optional<Errc> at_once = expect_once(canceller);
      const Errc code = at_once ? *at_once : wait();
      if (code == Errc::kOk) return;
      if ((code != Errc::kCancelled && code != Errc::kBusy) || Clock::now() > until) {
        ADD_FAILURE() << "ended with " << static_cast<int>(code) << ", round " << round_;
        return;
      }
    }
  }

  void check_payload() {
    for (uint32_t w = 0; w < writes_; ++w) {
      for (uint32_t part = 0; part < cuts_[w]; ++part) {
        ASSERT_EQ(payload_[w][part], round_) << "counted before it landed";
      }
    }
    ASSERT_EQ(table_.count(key_), 0u) << "counts left over in round " << round_;
  }

  /// Ends the generation with traffic still in flight. None of it may count in the next one.
  void give_up(ArrivalThreads& arrivals, Canceller& canceller) {
    const bool armed = !expect_once(canceller).has_value();
    ASSERT_TRUE(table_.release(key_, now_ns()));
    if (armed) {
      const Errc end = wait();
      ASSERT_TRUE(end == Errc::kReleased || end == Errc::kOk || end == Errc::kCancelled);
    }
    take_next_key();
    arrivals.drain();  // counter keys protect counts, not bytes: the payload is used again
    check_empty();
  }
  void renew() {
    uint64_t untaken = 99;
    ASSERT_TRUE(table_.release(key_, now_ns(), &untaken));
    ASSERT_EQ(untaken, 0u);
    take_next_key();
  }
  void take_next_key() {
    // Refused only while some thread still holds the record of the last generation.
    const auto until = Clock::now() + kHang;
    auto next = table_.acquire(now_ns(), 0);
    while (!next && Clock::now() < until) next = table_.acquire(now_ns(), 0);
    ASSERT_TRUE(next.has_value());
    key_ = *next;
  }
  /// Seven eighths of a write show whatever fraction was left behind, on either side of zero.
  void check_empty() {
    const uint32_t eighth = make_imm(key_, 8);
    for (uint32_t i = 0; i < 7; ++i) table_.arrive({&eighth, 1});
    ASSERT_EQ(table_.count(key_), 0u) << "counts left over in round " << round_;
    table_.arrive({&eighth, 1});
    ASSERT_TRUE(table_.try_take(key_, 1)) << "counts missing in round " << round_;
    ASSERT_FALSE(table_.try_take(key_, 1));
  }

  CounterTable table_;
  Payload payload_{};
  Rng rng_{1};
  CounterKey key_{};
  uint32_t round_ = 0;
  uint32_t writes_ = 0;
  std::array<uint32_t, kWritesMax> cuts_{};
  CounterTable::Expectation armed_{};
  std::optional<CounterTable::Waiter> waiter_{};
  bool waits_asleep_ = false;
  uint32_t cookies_ = 0;
  uint64_t callbacks_ = 0, cancels_ = 0, cancelled_seqs_ = 0, sleeps_ = 0;
  std::atomic<uint64_t> ended_{0};
  std::atomic<uint64_t> calls_{0};
};

TEST(CounterStress, NoWakeUpIsLostNoCountIsEarlyAndNothingIsLeftBehind) { Receiver().run(); }

// An expectation is cancelled over and over while its counts arrive: the pin at work. Every count
// that was sent is taken by exactly one expectation.
TEST(CounterStress, CancelsNeverCreateOrLoseCounts) {
  CounterTable table({.live_max = 1});
  const CounterKey key = *table.acquire(0, 0);
  Jolts jolts;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> sent{0};
  std::atomic<uint32_t> armed_as{0};
  std::thread sender([&] {
    const uint32_t imm = make_imm(key, 1);
    while (!stop.load(std::memory_order_relaxed)) {
      table.arrive({&imm, 1});
      sent.fetch_add(1, std::memory_order_relaxed);
    }
  });
  std::thread canceller([&] {
    const Jolts::Victim victim(jolts);
    while (!stop.load(std::memory_order_relaxed)) {
      table.cancel({key, armed_as.load(std::memory_order_relaxed)}, Errc::kCancelled);
    }
  });
  uint64_t taken = 0;
  const Rounds rounds;
  for (uint32_t i = 0; rounds.more(i); ++i) {
    const uint64_t n = i % 7 * 50 + 1;  // adjacent ones differ, so that a wrong n shows
    CounterTable::Waiter waiter;
    const auto armed = table.expect(key, n, waiter);
    if (!armed) {
      EXPECT_EQ(armed.error().code, Errc::kBusy)
          << "the canceller was preempted while it held the pin";
      continue;
    }
    armed_as.store(armed->expectation.seq, std::memory_order_relaxed);
    const auto hang = Clock::now() + kHang;
    while (!armed->met && !waiter.end().done) {
      if (Clock::now() > hang) {
        ADD_FAILURE() << "never completed";
        break;
      }
      std::this_thread::yield();
    }
    if (armed->met || waiter.end().code == Errc::kOk) taken += n;
  }
  stop.store(true, std::memory_order_relaxed);
  sender.join();
  canceller.join();
  EXPECT_EQ(taken + table.count(key), sent.load());
}

// The last arrival and the release of the counter key meet: one of them ends the expectation, not
// both.
TEST(CounterStress, ReleaseAndArrivalEndAnExpectationOnce) {
  std::atomic<uint32_t> calls{0};
  CounterTable table(
      {.live_max = 1,
       .fired = [](void* context, uint32_t,
                   Errc) { static_cast<std::atomic<uint32_t>*>(context)->fetch_add(1); },
       .context = &calls});
  std::atomic<uint32_t> current{0};
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const uint32_t imm = current.load(std::memory_order_relaxed);
      table.arrive({&imm, 1});
    }
  });
  const Rounds rounds;
  uint32_t armed = 0;
  while (rounds.more(armed)) {
    const auto key = table.acquire(now_ns(), 0);
    if (!key) continue;
    current.store(make_imm(*key, 2), std::memory_order_relaxed);
    const auto expectation = table.expect(*key, 1, 1);
    EXPECT_TRUE(expectation.has_value());
    armed += expectation.has_value() && !expectation->met;
    uint64_t untaken = 99;
    EXPECT_TRUE(table.release(*key, now_ns(), &untaken));
    const auto hang = Clock::now() + kHang;
    while (calls.load() != armed && Clock::now() < hang) std::this_thread::yield();
    EXPECT_EQ(calls.load(), armed);
  }
  stop.store(true, std::memory_order_relaxed);
  sender.join();
  EXPECT_EQ(calls.load(), armed);
}

/// Two threads deliver to one member, in halves of common writes and in whole ones, while it is
/// linked, unlinked and linked to another.
class LinkedMember {
 public:
  LinkedMember() : table_({.live_max = 4}) {
    for (uint32_t i = 0; i < 2; ++i) threads_[i] = std::thread([this, i] { deliver(i); });
  }
  ~LinkedMember() {
    round_.store(kOver, std::memory_order_release);
    for (std::thread& thread : threads_) thread.join();
  }

  void play(Rng& rng, uint32_t round) {
    member_ = *table_.acquire(now_ns(), 0);
    const CounterKey first = *table_.acquire(now_ns(), 0);
    const CounterKey second = *table_.acquire(now_ns(), 0);
    round_.store(round, std::memory_order_release);
    const auto dawdle = [&rng] {
      const auto until = Clock::now() + Nanos(rng.below(4000));
      while (Clock::now() < until) {
      }
    };
    dawdle();
    ASSERT_EQ(table_.link(member_, first, kSteps), Errc::kOk);
    const auto part = table_.share_of(member_, kSteps);
    const uint32_t owed = table_.take_shares({&part, 1});
    dawdle();
    const bool owes = table_.unlink(member_, true);
    const uint64_t at_unlink = table_.count(first);
    ASSERT_EQ(at_unlink, owed != 0 && !owes ? 1u : 0u) << "paid twice, or not at all";
    dawdle();
    ASSERT_EQ(table_.link(member_, second, kCounts), Errc::kOk);
    const auto all = table_.share_of(member_, kCounts);
    if (table_.take_shares({&all, 1}) != 0) {
      CounterTable::Waiter waiter;
      const auto armed = table_.expect(second, 1, waiter);
      ASSERT_TRUE(armed);
      const auto hang = Clock::now() + kHang;
      while (!armed->met && !waiter.end().done && Clock::now() < hang) {
        std::this_thread::yield();
      }
      ASSERT_TRUE(armed->met || waiter.end().done)
          << "the share was never paid: " << table_.count(member_) << " of " << kCounts;
    }
    // The threads have said nothing yet: the count alone orders their writes before this.
    for (const auto& half : payload_) {
      for (const uint32_t written : half) ASSERT_EQ(written, round) << "counted before it landed";
    }
    while (at_rest_.load(std::memory_order_acquire) != 2 * round) std::this_thread::yield();
    ASSERT_EQ(table_.count(member_), 0u) << "the share was taken";
    ASSERT_EQ(table_.count(second), 0u) << "paid twice";
    ASSERT_EQ(table_.count(first), at_unlink) << "paid after the unlink had returned";
    for (const CounterKey key : {member_, first, second}) table_.release(key, now_ns());
  }

 private:
  static constexpr uint32_t kSteps = 16;
  static constexpr uint64_t kCounts = 3 * kSteps;  // a whole write of each thread, a common one
  static constexpr uint32_t kOver = UINT32_MAX;

  void deliver(uint32_t half) {
    const Jolts::Victim victim(jolts_);
    for (uint32_t played = 0;;) {
      const uint32_t round = round_.load(std::memory_order_acquire);
      if (round == kOver) return;
      if (round == played) {
        std::this_thread::yield();
        continue;
      }
      for (uint32_t step = 0; step < kSteps; ++step) {
        payload_[half][step] = round;
        const uint32_t imms[] = {make_imm(member_, 1), make_imm(member_, 2)};
        for (const uint32_t& imm : imms) table_.arrive({&imm, 1});
      }
      played = round;
      at_rest_.fetch_add(1, std::memory_order_release);
    }
  }

  CounterTable table_;
  Jolts jolts_;
  CounterKey member_{};
  std::array<std::array<uint32_t, kSteps>, 2> payload_{};
  std::atomic<uint32_t> round_{0};
  std::atomic<uint32_t> at_rest_{0};
  std::array<std::thread, 2> threads_;
};

TEST(CounterStress, LinkingAmidArrivalsPaysEveryShareExactlyOnce) {
  LinkedMember member;
  Rng rng(2);
  const Rounds rounds;
  uint32_t round = 1;
  for (; rounds.more(round); ++round) member.play(rng, round);
  EXPECT_GE(round, kRoundsMin);
}

// Two threads acquire and release counter keys while a third keeps sending under released ones. A
// count that shows up in a generation without writes was added without a check of the generation.
TEST(CounterStress, OldKeysNeverCountInALaterGeneration) {
  constexpr int64_t kRestNs = 200'000'000;  // longer than the sender can be away between two sends
  CounterTable table(
      {.live_max = 2, .key_bits = 22});  // 31 slots, so that generations follow closely
  std::atomic<uint32_t> recent{0};
  std::atomic<bool> stop{false};
  std::array<uint32_t, 32> owner{};  // plain: two owners of one slot are a race
  Jolts jolts;
  const auto churn = [&](uint32_t self) {
    const Jolts::Victim victim(jolts);
    while (!stop.load(std::memory_order_relaxed)) {
      const auto key = table.acquire(now_ns(), kRestNs);
      if (!key) continue;
      owner[key->wire() & 31] = self;
      const uint32_t old = recent.exchange(0, std::memory_order_relaxed);
      uint64_t untaken = 99;
      EXPECT_EQ(table.count(*key), 0u);
      EXPECT_EQ(owner[key->wire() & 31], self);
      EXPECT_TRUE(table.release(*key, now_ns(), &untaken));
      EXPECT_EQ(untaken, 0u);
      // Only the dead are given to the sender.
      if (old == 0) recent.store(key->wire(), std::memory_order_relaxed);
    }
  };
  std::thread a(churn, 1), b(churn, 2);
  const Jolts::Victim victim(jolts);
  const auto until = Clock::now() + kRunFor;
  uint64_t stale = 0, sent = 0;
  while (Clock::now() < until) {
    const uint32_t bits = recent.load(std::memory_order_relaxed);
    for (uint32_t i = 0; bits != 0 && i < 50; ++i, ++sent) {
      const uint32_t imm = make_imm(CounterKey::from_wire(bits), 1);
      stale += table.arrive({&imm, 1});
    }
  }
  stop.store(true, std::memory_order_relaxed);
  a.join();
  b.join();
  EXPECT_EQ(stale, sent);
  EXPECT_GT(sent, 0u);
}

}  // namespace
}  // namespace fabric::core::counter_stress_test
