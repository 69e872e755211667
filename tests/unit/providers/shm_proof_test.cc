#include "providers/shm/proof.h"

#include <poll.h>

#include <cstddef>
#include <ctime>

#include "unit/providers/shm_harness.h"

namespace fabric::shm::shm_proof_test {
namespace {

/// Shared with the child: the command it runs, and the last one it completed.
struct ChildState {
  WriterSlotsFd slots_fd{0};
  std::atomic<bool> inside{false};
  std::atomic<uint32_t> command{0}, done{0};
};

/// A writer inside a section that runs commands: 0 spins, 1 sleeps briefly in the kernel.
void run_commands(ChildState& state) {
  for (;;) {
    const uint32_t command = state.command.load();
    if (command == 1) {
      // Certainly leaves the CPU.
      const timespec while_asleep{0, 1'000'000};
      ppoll(nullptr, 0, &while_asleep, nullptr);
    }
    state.done.store(command);
  }
}

/// Makes the section number odd, as inside a section; `before` runs first.
void go_inside(ChildState& state, const std::function<void(WriterSlot&)>& before = {}) {
  WriterSlot& slot = announce_slot(state.slots_fd);
  if (before) before(slot);
  slot.section_seq.store(slot.section_seq.load() | 1);
  state.inside.store(true);
}

TEST(ShmProof, OfAnIdleWriterIsImmediate) {
  Shared<ChildState> state;
  Child child([&] {
    announce_slot(state->slots_fd);
    pause();
  });
  const auto writer = slots_of(child, state->slots_fd);
  ASSERT_NE(writer, nullptr);
  ASSERT_TRUE(heavy_barrier());
  Proof proof(*writer);
  EXPECT_TRUE(proof.proved(*writer, false));
  EXPECT_EQ(proof.by(), Proof::By::kIdle);
}

TEST(ShmProof, IsCompleteWhenTheSectionEnds) {
  Shared<ChildState> state;
  Child child([&] {
    go_inside(*state);
    while (state->command.load() == 0) {
    }
    WriterSlot& slot = *(**WriterSlots::of_process()).mine();
    slot.section_seq.fetch_add(1);
    slot.section_seq.fetch_add(1);  // inside the next section
    pause();
  });
  const auto writer = slots_of(child, state->slots_fd);
  ASSERT_TRUE(writer && child.await([&] { return state->inside.load(); }));
  Proof proof(*writer);
  EXPECT_FALSE(proof.proved(*writer, false));
  state->command.store(1);
  EXPECT_TRUE(child.await([&] { return proof.proved(*writer, false); }));
  EXPECT_EQ(proof.by(), Proof::By::kCompleted);
}

TEST(ShmProof, IsCompleteWhenTheWriterIsDead) {
  Shared<ChildState> state;
  Child child([&] {
    go_inside(*state);
    for (;;) pause();
  });
  const auto writer = slots_of(child, state->slots_fd);
  ASSERT_TRUE(writer && child.await([&] { return state->inside.load(); }));
  Proof proof(*writer);
  EXPECT_FALSE(proof.proved(*writer, false));
  child.kill();
  EXPECT_TRUE(proof.proved(*writer, false));
  EXPECT_EQ(proof.by(), Proof::By::kDead);
}

TEST(ShmProof, IsCompleteWhenTheThreadIsOffCpu) {
  if (!fence_support().procfs) GTEST_SKIP() << "no procfs of this pid namespace";
  if (guard_kind() != GuardKind::kRestartable) GTEST_SKIP() << "no restartable sequences";
  Shared<ChildState> state;
  Child child([&] {
    go_inside(*state);
    spin_forever();
  });
  const auto writer = slots_of(child, state->slots_fd);
  ASSERT_TRUE(writer && child.await([&] { return state->inside.load(); }));
  child.stop();
  Proof proof(*writer);
  EXPECT_FALSE(proof.proved(*writer, false));
  EXPECT_TRUE(proof.proved(*writer, true));
  EXPECT_EQ(proof.by(), Proof::By::kOffCpu);
}

TEST(ShmProof, IsCompleteWhenTheThreadWasOffCpuBetweenTwoChecks) {
  if (!fence_support().procfs) GTEST_SKIP() << "no procfs of this pid namespace";
  if (guard_kind() != GuardKind::kRestartable) GTEST_SKIP() << "no restartable sequences";
  Shared<ChildState> state;
  Child child([&] {
    go_inside(*state);
    run_commands(*state);
  });
  const auto writer = slots_of(child, state->slots_fd);
  ASSERT_TRUE(writer && child.await([&] { return state->inside.load(); }));
  Proof proof(*writer);
  // Running or runnable looks the same, and the first count of switches has nothing to compare
  // with.
  EXPECT_FALSE(proof.proved(*writer, true));
  state->command.store(1);
  ASSERT_TRUE(child.await([&] { return state->done.load() == 1; }));
  state->command.store(0);
  ASSERT_TRUE(child.await([&] { return state->done.load() == 0; }));
  EXPECT_TRUE(proof.proved(*writer, true));
  EXPECT_EQ(proof.by(), Proof::By::kSwitched);
}

// A plain section resumes where it was preempted, so only its end or the thread's death is a proof.
TEST(ShmProof, DoesNotAcceptAStoppedPlainWriter) {
  Shared<ChildState> state;
  Child child([&] {
    go_inside(*state, [](WriterSlot&) {
      if (!use_guard_kind(GuardKind::kPlain)) _exit(3);
    });
    spin_forever();
  });
  const auto writer = slots_of(child, state->slots_fd);
  ASSERT_TRUE(writer && child.await([&] { return state->inside.load(); }));
  Proof proof(*writer);
  EXPECT_FALSE(proof.proved(*writer, true));
  child.stop();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(proof.proved(*writer, true));
  child.kill();
  EXPECT_TRUE(proof.proved(*writer, true));
  EXPECT_EQ(proof.by(), Proof::By::kDead);
}

TEST(ShmProof, DoesNotUseProcfsForAProcessThatItCannotSee) {
  Shared<ChildState> state;
  Child child([&] {
    go_inside(*state);
    for (;;) pause();
  });
  const auto writer = slots_of(child, state->slots_fd, /*pid_known=*/false);
  ASSERT_TRUE(writer && child.await([&] { return state->inside.load(); }));
  child.stop();
  Proof proof(*writer);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(proof.proved(*writer, true));
  child.kill();
  EXPECT_TRUE(proof.proved(*writer, true));
}

// A process in a pid namespace below has two numbers for each thread. Its slot may have the one
// that another of its threads has for us; here the slots are forged so that it does.
TEST(ShmProof, DoesNotTrustATidOfAnotherPidNamespace) {
  UniqueFd fd(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), sizeof(WriterSlotTable)), 0);
  auto* const page = static_cast<WriterSlotTable*>(
      mmap(nullptr, sizeof(WriterSlotTable), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(page, MAP_FAILED);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);

  Shared<std::atomic<int>> below;
  Child child([&] {
    const bool allowed = unshare(CLONE_NEWPID) == 0;
    Shared<std::atomic<bool>> bound;
    const pid_t inner = allowed ? fork() : -1;
    if (inner == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      bound->store(true);
      for (;;) pause();
    }
    // From here on it is killed with its parent.
    while (inner > 0 && !bound->load()) sched_yield();
    below->store(inner);
    for (;;) pause();
  });
  ASSERT_TRUE(child.await([&] { return below->load() != 0; }));
  if (below->load() < 0) GTEST_SKIP() << "this user may not make a pid namespace";

  page->used = 1;
  page->slot[0].section_seq = 1;
  page->slot[0].restartable = 1;
  page->slot[0].tid = static_cast<uint32_t>(below->load());
  const auto writer = *PeerWriterSlots::map(UniqueFd(dup(fd.get())), below->load());
  Proof proof(*writer);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(proof.proved(*writer, true));
  // The same, of a thread that has one number.
  page->slot[0].tid = static_cast<uint32_t>(child.pid());
  const auto visible = *PeerWriterSlots::map(std::move(fd), child.pid());
  Proof ours(*visible);
  EXPECT_TRUE(child.await([&] { return ours.proved(*visible, true); }));
  munmap(page, sizeof(WriterSlotTable));
}

TEST(ShmProof, KnowsTheKernelItRunsOn) {
  register_membarrier();
  EXPECT_TRUE(heavy_barrier());
  // What this machine supports; without it the other tests are skipped.
  RecordProperty("membarrier", fence_support().membarrier);
  RecordProperty("procfs", fence_support().procfs);
}

}  // namespace
}  // namespace fabric::shm::shm_proof_test
