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
// shut out at any instruction. Every byte and every count is checked by its receiver
// (crowd_member.h), and every loss by the referee, who knows who has died.
//
// FABRICLIB_TEST_ROUNDS=N plays N times as many deeds.

namespace fabric::crowd {
namespace {

enum class Deed : uint8_t { kKill, kStop, kFence };

struct Play {
  uint32_t members = 2;
  uint32_t of_each = 20;  ///< kills, stops and fences
  uint64_t plot_bytes = 4 << 20;
};

uint32_t scaled(uint32_t deeds) {
  const std::string text =
      std::getenv("FABRICLIB_TEST_ROUNDS") ? std::getenv("FABRICLIB_TEST_ROUNDS") : "1";
  uint32_t times = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), times);
  EXPECT_TRUE(parsed.ec == std::errc{} && times > 0) << "FABRICLIB_TEST_ROUNDS is '" << text << "'";
  // The builds with a sanitizer are several times slower, and look at other things.
  return test::kAddressSanitizer ? (deeds * times + 3) / 4 : deeds * times;
}

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// Others on this machine may come and go.
void expect_no_more_than(const std::set<std::string>& before) {
  std::set<std::string> now = shared_files();
  for (int look = 0; look < 50 && !std::ranges::includes(before, now); ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    now = shared_files();
  }
  EXPECT_TRUE(std::ranges::includes(before, now)) << "something is left in /dev/shm";
}

class Crowd {
 public:
  explicit Crowd(const Play& play)
      : play_(play),
        rng_(test::test_seed() * 100 + play.members),
        referee_({.seed = test::test_seed(), .plot_bytes = play.plot_bytes}) {}

  void run() {
    const auto files = shared_files();
    const Footprint alone = first_visit();
    for (uint32_t slot = 1; slot < play_.members && !referee_.failed(); ++slot) {
      referee_.start(slot);
    }
    if (!referee_.await_rounds(1)) return;
    std::vector<Deed> deeds;
    for (const Deed deed : {Deed::kKill, Deed::kStop, Deed::kFence}) {
      deeds.insert(deeds.end(), scaled(play_.of_each), deed);
    }
    for (size_t i = deeds.size(); i > 1; --i) std::swap(deeds[i - 1], deeds[rng_.below(i)]);
    for (size_t i = 0; i < deeds.size() && !referee_.failed(); ++i) {
      act(deeds[i]);
      // Most of them with everybody at work, some on top of each other.
      if (rng_.chance(0.7)) referee_.await_rounds(1);
    }
    if (referee_.failed()) return;
    last_visit(alone);
    if (referee_.failed()) return;
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(errno, ECHILD);
    expect_no_more_than(files);
    referee_.print_times();
  }

 private:
  /// What a member needs for good once it has had a peer.
  Footprint first_visit() {
    referee_.start(0);
    if (referee_.failed()) return {};
    referee_.start(1);
    if (!referee_.await_rounds(20)) return {};
    referee_.kill(1);
    if (!referee_.await_losses()) return {};
    referee_.linger(100'000);  // what a dead one had is given back with the next looks
    return referee_.footprint(0);
  }

  void last_visit(const Footprint& alone) {
    if (!referee_.await_rounds(1)) return;
    referee_.quiet();
    if (!referee_.await_settled()) return;
    for (uint32_t slot = 1; slot < play_.members; ++slot) {
      if (rng_.chance(0.5)) {
        referee_.kill(slot);
      } else {
        referee_.close(slot);
        if (!referee_.await_end(slot)) return;
      }
    }
    if (!referee_.await_losses()) return;
    if (!referee_.await_footprint(0, alone)) return;
    referee_.close(0);
    referee_.await_end(0);
  }

  uint32_t any(uint32_t but) {
    uint32_t slot = but;
    while (slot == but) slot = static_cast<uint32_t>(rng_.below(play_.members));
    return slot;
  }

  void act(Deed deed) {
    // The eldest lives through all of it, and must be as small as before at the end.
    const auto victim = static_cast<uint32_t>(rng_.between(1, play_.members - 1));
    referee_.linger(rng_.below(4'000));
    switch (deed) {
      case Deed::kKill:
        return kill(victim);
      case Deed::kStop:
        return stop(rng_.chance(0.5) ? victim : any(victim));
      case Deed::kFence:
        return rng_.chance(0.5) ? fence(any(victim), victim) : fence(victim, any(victim));
    }
  }

  void kill(uint32_t victim) {
    const uint64_t how = rng_.below(6);
    if (how == 0) referee_.stop(victim);                // dies without another instruction
    if (how == 1) referee_.fence(any(victim), victim);  // while it is being shut out
    if (how == 2) referee_.fence(victim, any(victim));  // while it shuts out
    if (how == 3) referee_.aim(victim, any(victim));    // in the middle of a write
    if (how == 4) referee_.aim(any(victim), victim);    // while somebody writes to it
    if (how < 3) referee_.linger(rng_.below(1'000));
    referee_.kill(victim);
    const bool at_once = rng_.chance(0.5);
    if (at_once) referee_.start(victim);
    referee_.await_losses();
    referee_.await_fences();
    if (!at_once && !referee_.failed()) referee_.start(victim);
  }

  void stop(uint32_t victim) {
    // An application that makes its own turns computes now and then: only evidence speaks of it.
    const bool until_news = rng_.chance(0.15) && referee_.threaded(victim);
    // Only a session that is up can stall.
    if (until_news && !referee_.await_rounds(1)) return;
    referee_.stop(victim);
    referee_.linger(rng_.below(20'000));
    if (until_news) referee_.await_stall(victim);
    referee_.go_on(victim);
  }

  void fence(uint32_t by, uint32_t whom) {
    const bool stopped = rng_.chance(0.3);
    if (stopped) referee_.stop_writing(whom, by);
    if (rng_.chance(0.6)) {
      referee_.fence(by, whom);
    } else {
      referee_.revoke(by, whom);
    }
    // The proof does not need the one who is shut out.
    referee_.await_fences();
    if (stopped) referee_.go_on(whom);
  }

  const Play play_;
  Rng rng_;
  Referee referee_;
};

void play(const Play& play) {
  Crowd crowd(play);
  crowd.run();
}

TEST(ShmCrowd, TwoKeepTheirPromisesWhenTheyAreKilledStoppedAndFenced) {
  play({.members = 2, .of_each = 20});
}

TEST(ShmCrowd, ThreeKeepTheirPromisesWhenTheyAreKilledStoppedAndFenced) {
  play({.members = 3, .of_each = 20});
}

TEST(ShmCrowd, EightKeepTheirPromisesWhenTheyAreKilledStoppedAndFenced) {
  play({.members = 8, .of_each = 20, .plot_bytes = 1 << 20});
}

// The checks themselves: one wrong bit anywhere is found, and so is a byte beside a piece.
TEST(CrowdPlan, FindsOneWrongBitAnywhere) {
  std::vector<std::byte> bytes(1021);
  stamp(bytes, 42);
  ASSERT_EQ(first_difference(bytes, 42), bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{16};
    ASSERT_EQ(first_difference(bytes, 42), i);
    bytes[i] ^= std::byte{16};
  }
  EXPECT_EQ(first_difference(bytes, 43), 0u) << "another's";
}

TEST(CrowdPlan, PiecesAndGuardsDoNotTouchEachOther) {
  constexpr uint64_t kBytes = 1 << 20;
  const PlotId plot{.writer = {1, 2}, .owner = {3, 4}, .number = 5};
  std::vector<std::byte> target(kBytes), source(kBytes);
  for (uint32_t number = 0; number < 300; ++number) {
    const Round round = draw_round(plot, number, kBytes);
    ASSERT_FALSE(round.pieces.empty());
    set_guards(target, round);
    for (uint32_t i = 0; i < round.pieces.size(); ++i) {
      const Piece& piece = round.pieces[i];
      stamp(std::span(source).subspan(piece.source, piece.bytes), name_of(plot, number, i));
    }
    for (const Piece& piece : round.pieces) {
      std::ranges::copy(std::span(source).subspan(piece.source, piece.bytes),
                        target.begin() + static_cast<ptrdiff_t>(piece.target));
    }
    for (uint32_t i = 0; i < round.pieces.size(); ++i) {
      const Piece& piece = round.pieces[i];
      const auto bytes = std::span(target).subspan(piece.target, piece.bytes);
      ASSERT_EQ(first_difference(bytes, name_of(plot, number, i)), piece.bytes);
    }
    ASSERT_TRUE(guards_hold(target, round));
    target[round.pieces[0].target + round.pieces[0].bytes] ^= std::byte{1};
    ASSERT_FALSE(guards_hold(target, round));
  }
}

}  // namespace
}  // namespace fabric::crowd
