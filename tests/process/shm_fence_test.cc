#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "support/log_guard.h"
#include "unit/providers/shm_harness.h"

// The fence against real writers: processes that copy without a pause and are stopped, continued
// and killed at any instruction, while the owner revokes its memory and reuses it.

namespace fabric::shm::shm_fence_test {
namespace {

constexpr std::byte kPoison{0xEE};
constexpr uint64_t kTargetBytes = 1u << 20;
constexpr uint64_t kPoisonWord = 0xEEEE'EEEE'EEEE'EEEE;

/// What the owner and the writers share.
struct FenceArena {
  WriterSlotsFd slots_fd{0};
  std::atomic<uint64_t> path{3};
  std::atomic<uint64_t> rkey{0};  ///< odd: open
  std::atomic<uint64_t> word{0};
  std::atomic<uint64_t> copies{0};
  std::atomic<uint64_t> closed{0};  ///< the last even rkey that the writer has seen
  std::atomic<uint32_t> turn{0};    ///< whose it is to copy
  alignas(4096) std::array<std::byte, kTargetBytes> target{};
};

struct Storm {
  GuardKind kind = GuardKind::kRestartable;
  uint32_t threads = 1;
  bool fence = false;  ///< as if the owner had no membarrier
};

/// One thread of an engine whose loop moves on to the next after some copies.
void write_in_turn(FenceArena& arena, const Storm& storm, uint32_t me) {
  const std::vector<std::byte> source(kTargetBytes, std::byte{0x11});
  Rng rng(test::test_seed() + me);
  WriterSlot& slot = announce_slot(arena.slots_fd);
  for (uint64_t copies = 0;;) {
    for (uint32_t turn = arena.turn.load(); turn != me; turn = arena.turn.load()) {
      arena.turn.wait(turn);
    }
    const uint64_t rkey = arena.rkey.load();
    if (rkey % 2 == 0) {
      arena.closed.store(rkey);
      sched_yield();
      continue;
    }
    // Mostly long ones, so that it is seldom between two.
    const uint64_t bytes = rng.chance(0.1) ? rng.below(4096) : rng.between(64u << 10, kTargetBytes);
    const uint64_t offset = rng.below(kTargetBytes - bytes + 1);
    guarded_copy(slot, arena.target.data() + offset, source.data(), bytes,
                 {&arena.path, 3, &arena.rkey, rkey}, {&arena.word, ++copies}, storm.fence);
    arena.copies.fetch_add(1);
    if (storm.threads == 1 || copies % 64 != 0) continue;
    arena.turn.store((me + 1) % storm.threads);
    arena.turn.notify_all();
  }
}

void write_for_ever(FenceArena& arena, const Storm& storm) {
  register_membarrier();
  if (!use_guard_kind(storm.kind)) _exit(3);
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < storm.threads; ++i) {
    others.emplace_back([&, i] { write_in_turn(arena, storm, i); });
  }
  write_in_turn(arena, storm, 0);
}

/// The owner of the arena.
class Owner {
 public:
  Owner(FenceArena& arena, const Storm& storm) : arena_(arena), storm_(storm) {}

  void open(Child& child) {
    const uint64_t copies = arena_.copies.load();
    arena_.rkey.fetch_add(1);
    ASSERT_TRUE(child.await([&] { return arena_.copies.load() > copies; }));
  }
  void revoke() {
    arena_.rkey.fetch_add(1);
    if (storm_.fence) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    } else {
      ASSERT_TRUE(heavy_barrier());
    }
  }
  /// The memory has another use from here on.
  void reuse() {
    arena_.target.fill(kPoison);
    arena_.word.store(kPoisonWord);
  }
  void expect_untouched() {
    EXPECT_EQ(std::count(arena_.target.begin(), arena_.target.end(), kPoison),
              static_cast<int64_t>(kTargetBytes))
        << "late bytes";
    EXPECT_EQ(arena_.word.load(), kPoisonWord) << "a late commit";
  }
  void expect_refused(Child& child) {
    ASSERT_TRUE(child.await([&] { return arena_.closed.load() == arena_.rkey.load(); }));
    expect_untouched();
  }

 private:
  FenceArena& arena_;
  const Storm storm_;
};

/// Some microseconds, so that the next step comes at any point of a copy.
void spin_briefly(Rng& rng) {
  for (uint64_t i = rng.below(40'000); i > 0; --i)
    std::atomic_signal_fence(std::memory_order_seq_cst);
}

struct ProofCounts {
  uint32_t by[5] = {};
  uint32_t blocked = 0;  ///< rounds in which a stopped writer could not be proved
};

bool any_thread_inside(const PeerWriterSlots& writer) {
  for (uint32_t i = 0; i < writer.used(); ++i) {
    if (writer.slot(i).section_seq.load() % 2 == 1) return true;
  }
  return false;
}

/// One fence against a writer that is stopped before it, after it, or not at all.
void stop_round(Owner& owner, Child& child, const PeerWriterSlots& writer, const Storm& storm,
                Rng& rng, ProofCounts& proof_counts) {
  owner.open(child);
  spin_briefly(rng);
  const uint64_t when = rng.below(4);
  // On a busy machine the thread whose turn it is may come late: mostly the storm waits for it.
  if (rng.chance(0.8)) {
    ASSERT_TRUE(child.await([&] { return any_thread_inside(writer); }));
  }
  if (when <= 1) child.stop();
  owner.revoke();
  Proof proof(writer);
  if (when == 2) child.stop();
  if (when <= 2) {
    const bool proved = proof.proved(writer, true);
    if (storm.kind == GuardKind::kRestartable) {
      EXPECT_TRUE(proved) << "a thread that is stopped is off its CPU";
    } else if (!proved) {
      // It would go on where it was. Only that it goes on helps.
      ++proof_counts.blocked;
      EXPECT_FALSE(proof.proved(writer, true));
      child.signal(SIGCONT);
    }
  }
  ASSERT_TRUE(child.await([&] { return proof.proved(writer, true); }));
  ++proof_counts.by[static_cast<uint32_t>(proof.by())];
  owner.reuse();
  if (when <= 2) child.signal(SIGCONT);
  owner.expect_refused(child);
}

void storm_of_stops(const Storm& storm, uint32_t rounds) {
  if (storm.kind == GuardKind::kRestartable && guard_kind() != GuardKind::kRestartable) {
    GTEST_SKIP() << "this machine has no restartable sequences";
  }
  if (storm.kind == GuardKind::kRestartable && !fence_support().procfs) {
    GTEST_SKIP() << "no procfs of this pid namespace";
  }
  register_membarrier();
  Shared<FenceArena> arena;
  Child child([&] { write_for_ever(*arena, storm); });
  const auto writer = slots_of(child, arena->slots_fd);
  ASSERT_NE(writer, nullptr);
  Owner owner(*arena, storm);
  Rng rng(test::test_seed());
  ProofCounts proof_counts;
  for (uint32_t i = 0; i < rounds && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "round " << i);
    stop_round(owner, child, *writer, storm, rng, proof_counts);
  }
  // A storm that always finds the writer between two copies shows nothing.
  const uint32_t idle = proof_counts.by[static_cast<uint32_t>(Proof::By::kIdle)];
  EXPECT_LT(idle, rounds - rounds / 10);
  if (storm.kind == GuardKind::kPlain) {
    EXPECT_GT(proof_counts.blocked, 0u);
    EXPECT_EQ(proof_counts.by[static_cast<uint32_t>(Proof::By::kCompleted)] + idle, rounds);
  } else {
    EXPECT_GT(proof_counts.by[static_cast<uint32_t>(Proof::By::kOffCpu)], 0u);
  }
  EXPECT_EQ(writer->used(), storm.threads);
}

TEST(ShmFence, StoppedWritersStoreNothingLate) { storm_of_stops({}, 200); }

TEST(ShmFence, StoppedPlainWritersAreWaitedForAndStoreNothingLate) {
  storm_of_stops({.kind = GuardKind::kPlain}, 200);
}

TEST(ShmFence, WritersWhoseLoopMovesBetweenThreadsStoreNothingLate) {
  storm_of_stops({.threads = 3}, 80);
}

TEST(ShmFence, WritersThatPayForTheirOwnFenceStoreNothingLate) {
  storm_of_stops({.fence = true}, 80);
}

// Killed before or after the epoch changes; the memory is reused as soon as there is proof, while
// the kernel may still be tearing down the process.
TEST(ShmFence, KilledWritersStoreNothingLate) {
  register_membarrier();
  for (const GuardKind kind : {GuardKind::kRestartable, GuardKind::kPlain}) {
    if (kind == GuardKind::kRestartable && guard_kind() != kind) continue;
    Rng rng(test::test_seed());
    uint32_t by_death = 0;
    for (uint32_t i = 0; i < 40 && !HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << name_of(kind) << ", round " << i);
      const Storm storm{.kind = kind};
      Shared<FenceArena> arena;
      Child child([&] { write_for_ever(*arena, storm); });
      const auto writer = slots_of(child, arena->slots_fd);
      ASSERT_NE(writer, nullptr);
      Owner owner(*arena, storm);
      owner.open(child);
      spin_briefly(rng);
      const bool first = rng.chance(0.5);
      if (first) child.signal(SIGKILL);
      owner.revoke();
      Proof proof(*writer);
      if (!first) child.signal(SIGKILL);
      ASSERT_TRUE(child.await([&] { return proof.proved(*writer, false); }));
      by_death += proof.by() == Proof::By::kDead;
      owner.reuse();
      child.kill();
      EXPECT_TRUE(writer->process_died());
      owner.expect_untouched();
    }
    EXPECT_GT(by_death, 0u);
  }
}

// A death shows in the slot before the kernel frees the memory of the process: when a pidfd shows
// the exit, the slot already did.
TEST(ShmFence, ASlotShowsADeathBeforeTheKernelFreesTheMemory) {
  constexpr uint64_t kMuch = 1u << 30;
  Shared<WriterSlotsFd> fd;
  Child child([&] {
    void* const much = mmap(nullptr, kMuch, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (much == MAP_FAILED) _exit(3);
    announce_slot(*fd);
    for (;;) pause();
  });
  const auto slots = slots_of(child, *fd);
  if (slots == nullptr) GTEST_SKIP() << "no gibibyte of memory";
  const UniqueFd ended(static_cast<int>(syscall(SYS_pidfd_open, child.pid(), 0)));
  ASSERT_TRUE(ended);
  child.signal(SIGKILL);
  for (bool died = false; !died;) {
    pollfd gone{ended.get(), POLLIN, 0};
    const bool readable = poll(&gone, 1, 0) == 1;
    died = slots->process_died();
    ASSERT_TRUE(died || !readable) << "the process exited, and its slot does not show it";
  }
}

// The threads of a dying process exit one after the other: the mark of one proves nothing about
// another that is still inside.
TEST(ShmFence, TheDeathOfOneThreadDoesNotProveAnother) {
  Shared<WriterSlotsFd> fd;
  Shared<std::atomic<uint32_t>> inside;
  Child child([&] {
    WriterSlot& slot = announce_slot(*fd);
    slot.section_seq.store(1);
    std::thread([&] {
      announce_slot(*fd).section_seq.store(1);
      inside->fetch_add(1);
      while (inside->load() < 2) sched_yield();
      syscall(SYS_exit, 0);  // exits the thread without the C library
    }).detach();
    for (;;) sched_yield();
  });
  const auto writer = slots_of(child, *fd);
  ASSERT_TRUE(writer && child.await([&] { return inside->load() == 1; }));
  Proof proof(*writer);
  inside->store(2);
  ASSERT_TRUE(child.await([&] { return writer->process_died(); }));
  EXPECT_FALSE(proof.proved(*writer, false));
  child.kill();
  EXPECT_TRUE(proof.proved(*writer, false));
  EXPECT_EQ(proof.by(), Proof::By::kDead);
}

TEST(ShmWriterSlotThreads, ThatExitReleaseTheirSlots) {
  WriterSlots& slots = **WriterSlots::of_process();
  ASSERT_NE(slots.mine(), nullptr);
  const auto seen = *PeerWriterSlots::map(UniqueFd(dup(slots.fd())), getpid());
  const uint32_t before = seen->used();
  for (uint32_t i = 0; i < 50; ++i) {
    std::array<WriterSlot*, 4> taken{};
    std::vector<std::thread> threads;
    std::atomic<uint32_t> there{0};
    for (WriterSlot*& slot : taken) {
      threads.emplace_back([&] {
        slot = slots.mine();
        slot->section_seq.store(1);  // as one that is cancelled in a section leaves it
        there.fetch_add(1);
        while (there.load() < taken.size()) sched_yield();
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::sort(taken.begin(), taken.end());
    EXPECT_NE(taken.front(), nullptr);
    EXPECT_EQ(std::adjacent_find(taken.begin(), taken.end()), taken.end())
        << "two threads share a slot";
    for (const WriterSlot* slot : taken) EXPECT_EQ(slot->section_seq.load() % 2, 0u);
  }
  EXPECT_LE(seen->used(), before + 4);
  EXPECT_FALSE(seen->process_died());
}

TEST(ShmWriterSlotThreads, GetNoSlotWhenAllAreTakenAndOneWhenOneIsReleased) {
  WriterSlots& slots = **WriterSlots::of_process();
  const WriterSlot* const mine = slots.mine();
  const auto seen = *PeerWriterSlots::map(UniqueFd(dup(slots.fd())), getpid());
  uint32_t among = 0;  // up to the one of this thread, and one more
  while (among < seen->used() && seen->slot(among).tid.load() != mine->tid.load()) ++among;
  among += 2;
  std::atomic<uint32_t> step{0};
  WriterSlot* taken = nullptr;
  std::thread holder([&] {
    taken = slots.take(among);
    step = 1;
    while (step.load() < 2) sched_yield();
  });
  std::thread late([&] {
    while (step.load() < 1) sched_yield();
    EXPECT_EQ(slots.take(among), nullptr);
    step = 2;
    while (step.load() < 3) sched_yield();
    EXPECT_EQ(slots.take(among), taken);
    EXPECT_EQ(slots.mine(), taken);
  });
  holder.join();
  EXPECT_NE(taken, nullptr);
  step = 3;
  late.join();
  EXPECT_FALSE(seen->process_died());
}

TEST(ShmWriterSlotThreads, MayCopyUntilTheirLastDestructorHasRun) {
  struct Last {
    ~Last() {
      WriterSlots& slots = **WriterSlots::of_process();
      copied = slots.mine() != nullptr;
    }
    bool& copied;
  };
  WriterSlots& slots = **WriterSlots::of_process();
  const auto seen = *PeerWriterSlots::map(UniqueFd(dup(slots.fd())), getpid());
  for (const bool before : {true, false}) {
    bool copied = false;
    std::thread([&] {
      if (before) slots.mine();
      thread_local Last last{copied};
      static_cast<void>(last);
      slots.mine();
    }).join();
    EXPECT_TRUE(copied);
  }
  EXPECT_FALSE(seen->process_died()) << "a thread exited without releasing its slot";
}

}  // namespace
}  // namespace fabric::shm::shm_fence_test
