#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "process/stress_cluster.h"
#include "support/log_guard.h"
#include "support/sanitizers.h"

// Real processes that write to each other all the time, while some of them are killed, stopped and
// fenced at any instruction. Every byte and every count is checked by its receiver
// (stress_member.h), and every reported loss by StressCluster, which knows which members died.
//
// FABRICLIB_TEST_ROUNDS=N injects N times as many faults.

namespace fabric::stress::shm_stress_cluster_test {
namespace {

enum class StressFault : uint8_t { kKill, kStop, kFence };

struct StressOptions {
  uint32_t members = 2;
  uint32_t of_each = 20;  ///< kills, stops and fences
  uint64_t buffer_bytes = 4 << 20;
};

uint32_t scaled(uint32_t faults) {
  const std::string text =
      std::getenv("FABRICLIB_TEST_ROUNDS") ? std::getenv("FABRICLIB_TEST_ROUNDS") : "1";
  uint32_t times = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), times);
  EXPECT_TRUE(parsed.ec == std::errc{} && times > 0) << "FABRICLIB_TEST_ROUNDS is '" << text << "'";
  // Sanitizer builds are several times slower, and check other things.
  return test::kAddressSanitizer ? (faults * times + 3) / 4 : faults * times;
}

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// Waits, because other programs on this machine may create files too.
void expect_no_more_than(const std::set<std::string>& before) {
  std::set<std::string> now = shared_files();
  for (int look = 0; look < 50 && !std::ranges::includes(before, now); ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    now = shared_files();
  }
  EXPECT_TRUE(std::ranges::includes(before, now)) << "files are left in /dev/shm";
}

class StressRun {
 public:
  explicit StressRun(const StressOptions& options)
      : options_(options),
        rng_(test::test_seed() * 100 + options.members),
        cluster_({.seed = test::test_seed(), .buffer_bytes = options.buffer_bytes}) {}

  void run() {
    const auto files = shared_files();
    const Footprint alone = baseline_footprint();
    for (uint32_t slot = 1; slot < options_.members && !cluster_.failed(); ++slot) {
      cluster_.start(slot);
    }
    if (!cluster_.await_rounds(1)) return;
    std::vector<StressFault> faults;
    for (const StressFault fault : {StressFault::kKill, StressFault::kStop, StressFault::kFence}) {
      faults.insert(faults.end(), scaled(options_.of_each), fault);
    }
    for (size_t i = faults.size(); i > 1; --i) std::swap(faults[i - 1], faults[rng_.below(i)]);
    for (size_t i = 0; i < faults.size() && !cluster_.failed(); ++i) {
      inject(faults[i]);
      // Most faults hit a cluster in which all members write; some follow each other directly.
      if (rng_.chance(0.7)) cluster_.await_rounds(1);
    }
    if (cluster_.failed()) return;
    shut_down(alone);
    if (cluster_.failed()) return;
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child process is left";
    EXPECT_EQ(errno, ECHILD);
    expect_no_more_than(files);
    cluster_.print_times();
  }

 private:
  /// The footprint of a member without peers, after it has had one.
  Footprint baseline_footprint() {
    cluster_.start(0);
    if (cluster_.failed()) return {};
    cluster_.start(1);
    if (!cluster_.await_rounds(20)) return {};
    cluster_.kill(1);
    if (!cluster_.await_losses()) return {};
    cluster_.run_for(100'000);  // resources of the dead peer are released by the next scans
    return cluster_.footprint(0);
  }

  void shut_down(const Footprint& alone) {
    if (!cluster_.await_rounds(1)) return;
    cluster_.drain();
    if (!cluster_.await_reconciled()) return;
    for (uint32_t slot = 1; slot < options_.members; ++slot) {
      if (rng_.chance(0.5)) {
        cluster_.kill(slot);
      } else {
        cluster_.close(slot);
        if (!cluster_.await_exit(slot)) return;
      }
    }
    if (!cluster_.await_losses()) return;
    if (!cluster_.await_footprint(0, alone)) return;
    cluster_.close(0);
    cluster_.await_exit(0);
  }

  uint32_t any(uint32_t but) {
    uint32_t slot = but;
    while (slot == but) slot = static_cast<uint32_t>(rng_.below(options_.members));
    return slot;
  }

  void inject(StressFault fault) {
    // Member 0 is never killed: its footprint is compared at the end.
    const auto victim = static_cast<uint32_t>(rng_.between(1, options_.members - 1));
    cluster_.run_for(rng_.below(4'000));
    switch (fault) {
      case StressFault::kKill:
        return kill(victim);
      case StressFault::kStop:
        return stop(rng_.chance(0.5) ? victim : any(victim));
      case StressFault::kFence:
        return rng_.chance(0.5) ? fence(any(victim), victim) : fence(victim, any(victim));
    }
  }

  void kill(uint32_t victim) {
    const uint64_t how = rng_.below(6);
    if (how == 0) cluster_.stop(victim);                // dies without another instruction
    if (how == 1) cluster_.fence(any(victim), victim);  // while it is being fenced
    if (how == 2) cluster_.fence(victim, any(victim));  // while it fences
    if (how == 3) cluster_.await_long_write(victim, any(victim));  // in the middle of a write
    if (how == 4) cluster_.await_long_write(any(victim), victim);  // while a peer writes to it
    if (how < 3) cluster_.run_for(rng_.below(1'000));
    cluster_.kill(victim);
    const bool at_once = rng_.chance(0.5);
    if (at_once) cluster_.start(victim);
    cluster_.await_losses();
    cluster_.await_fences();
    if (!at_once && !cluster_.failed()) cluster_.start(victim);
  }

  void stop(uint32_t victim) {
    // A stall is only reported for the threads runtime: inline engines may pause between turns.
    const bool until_stall = rng_.chance(0.15) && cluster_.threaded(victim);
    // Only a session that is up can stall.
    if (until_stall && !cluster_.await_rounds(1)) return;
    cluster_.stop(victim);
    cluster_.run_for(rng_.below(20'000));
    if (until_stall) cluster_.await_stall(victim);
    cluster_.resume(victim);
  }

  void fence(uint32_t by, uint32_t whom) {
    const bool stopped = rng_.chance(0.3);
    if (stopped) cluster_.stop_mid_write(whom, by);
    if (rng_.chance(0.6)) {
      cluster_.fence(by, whom);
    } else {
      cluster_.revoke(by, whom);
    }
    // The proof does not need cooperation of the fenced member.
    cluster_.await_fences();
    if (stopped) cluster_.resume(whom);
  }

  const StressOptions options_;
  Rng rng_;
  StressCluster cluster_;
};

void run_stress(const StressOptions& options) {
  StressRun run(options);
  run.run();
}

TEST(ShmStressCluster, TwoMembersKeepAllPromisesWhenKilledStoppedAndFenced) {
  run_stress({.members = 2, .of_each = 20});
}

TEST(ShmStressCluster, ThreeMembersKeepAllPromisesWhenKilledStoppedAndFenced) {
  run_stress({.members = 3, .of_each = 20});
}

TEST(ShmStressCluster, EightMembersKeepAllPromisesWhenKilledStoppedAndFenced) {
  run_stress({.members = 8, .of_each = 20, .buffer_bytes = 1 << 20});
}

// Tests of the checks: one wrong bit anywhere is found, and so is a byte outside of a write.
TEST(StressPlan, FindsOneWrongBitAnywhere) {
  std::vector<std::byte> bytes(1021);
  stamp(bytes, 42);
  ASSERT_EQ(first_difference(bytes, 42), bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{16};
    ASSERT_EQ(first_difference(bytes, 42), i);
    bytes[i] ^= std::byte{16};
  }
  EXPECT_EQ(first_difference(bytes, 43), 0u) << "a different stamp must differ at the first byte";
}

TEST(StressPlan, WritesAndGuardsDoNotOverlap) {
  constexpr uint64_t kBytes = 1 << 20;
  const BufferId buffer{.writer = {1, 2}, .owner = {3, 4}, .number = 5};
  std::vector<std::byte> target(kBytes), source(kBytes);
  for (uint32_t number = 0; number < 300; ++number) {
    const TrafficRound round = draw_round(buffer, number, kBytes);
    ASSERT_FALSE(round.writes.empty());
    set_guards(target, round);
    for (uint32_t i = 0; i < round.writes.size(); ++i) {
      const RoundWrite& write = round.writes[i];
      stamp(std::span(source).subspan(write.source, write.bytes), name_of(buffer, number, i));
    }
    for (const RoundWrite& write : round.writes) {
      std::ranges::copy(std::span(source).subspan(write.source, write.bytes),
                        target.begin() + static_cast<ptrdiff_t>(write.target));
    }
    for (uint32_t i = 0; i < round.writes.size(); ++i) {
      const RoundWrite& write = round.writes[i];
      const auto bytes = std::span(target).subspan(write.target, write.bytes);
      ASSERT_EQ(first_difference(bytes, name_of(buffer, number, i)), write.bytes);
    }
    ASSERT_TRUE(guards_hold(target, round));
    target[round.writes[0].target + round.writes[0].bytes] ^= std::byte{1};
    ASSERT_FALSE(guards_hold(target, round));
  }
}

}  // namespace
}  // namespace fabric::stress::shm_stress_cluster_test
