#include "providers/shm/writer_slots.h"

#include <cerrno>

#include "unit/providers/shm_harness.h"

namespace fabric::shm::shm_writer_slots_test {
namespace {

UniqueFd memory(uint64_t bytes, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

Errc refused(UniqueFd fd) { return PeerWriterSlots::map(std::move(fd), 0).error().code; }

TEST(ShmWriterSlots, OfAThreadIsTheSameEveryTimeAndPeersSeeIt) {
  WriterSlots& slots = **WriterSlots::of_process();
  WriterSlot* const mine = slots.mine();
  ASSERT_NE(mine, nullptr);
  EXPECT_EQ(slots.mine(), mine);
  EXPECT_EQ(*WriterSlots::of_process(), &slots);

  const auto seen = *PeerWriterSlots::map(UniqueFd(dup(slots.fd())), getpid());
  EXPECT_GE(seen->used(), 1u);
  EXPECT_FALSE(seen->process_died());
  mine->section_seq.fetch_add(2);
  bool found = false;
  for (uint32_t i = 0; i < seen->used(); ++i) {
    const WriterSlot& slot = seen->slot(i);
    if (slot.tid.load() != static_cast<uint32_t>(gettid())) continue;
    found = slot.section_seq.load() == mine->section_seq.load();
  }
  EXPECT_TRUE(found);
}

TEST(ShmWriterSlots, CannotBeWrittenOrResizedByPeers) {
  const int fd = (**WriterSlots::of_process()).fd();
  EXPECT_EQ(mmap(nullptr, sizeof(WriterSlotTable), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
            MAP_FAILED);
  EXPECT_LT(pwrite(fd, "x", 1, 0), 0);
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_NE(ftruncate(fd, 2 * sizeof(WriterSlotTable)), 0);
  void* const readable = mmap(nullptr, sizeof(WriterSlotTable), PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_NE(mprotect(readable, sizeof(WriterSlotTable), PROT_READ | PROT_WRITE), 0);
  munmap(readable, sizeof(WriterSlotTable));
}

TEST(ShmWriterSlots, AreNotMappedFromAnythingElse) {
  EXPECT_EQ(refused(UniqueFd()), Errc::kBadFormat);
  EXPECT_EQ(refused(memory(sizeof(WriterSlotTable), 0)), Errc::kBadFormat);  // it could shrink
  EXPECT_EQ(refused(memory(sizeof(WriterSlotTable) - 1, F_SEAL_SHRINK)), Errc::kBadFormat);
  EXPECT_EQ(refused(memory(sizeof(WriterSlotTable) + 4096, F_SEAL_SHRINK)), Errc::kBadFormat);
  EXPECT_EQ(refused(UniqueFd(open("/proc/self/exe", O_RDONLY))), Errc::kBadFormat);
  EXPECT_EQ(refused(UniqueFd(open("/dev/zero", O_RDWR))), Errc::kBadFormat);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const UniqueFd other(pipe_ends[1]);
  EXPECT_EQ(refused(UniqueFd(pipe_ends[0])), Errc::kBadFormat);
}

TEST(ShmWriterSlots, OfAPeerWithAWrongCountAreReadInBounds) {
  UniqueFd fd = memory(sizeof(WriterSlotTable), F_SEAL_SHRINK);
  const uint32_t lie = 0xffff'ffff;
  ASSERT_EQ(pwrite(fd.get(), &lie, sizeof(lie), offsetof(WriterSlotTable, used)), 4);
  const auto slots = *PeerWriterSlots::map(std::move(fd), 0);
  EXPECT_EQ(slots->used(), WriterSlotTable::kSlots);
  EXPECT_FALSE(slots->process_died());
}

TEST(ShmWriterSlots, ShowThatTheirProcessWasKilledOrReturned) {
  for (const bool killed : {true, false}) {
    Shared<WriterSlotsFd> fd;
    Shared<std::atomic<bool>> go;
    Child child([&] {
      announce_slot(*fd);
      while (!go->load()) sched_yield();
      exit(0);  // as main() returns: with the destructors of its thread
    });
    const auto slots = slots_of(child, *fd);
    ASSERT_NE(slots, nullptr);
    EXPECT_FALSE(slots->process_died());
    killed ? child.signal(SIGKILL) : go->store(true);
    EXPECT_TRUE(child.await([&] { return slots->process_died(); }))
        << (killed ? "killed" : "returned");
  }
}

TEST(ShmWriterSlots, ShowThatTheirProcessCalledExec) {
  Shared<WriterSlotsFd> fd;
  Child child([&] {
    announce_slot(*fd);
    // Never exits: the mark can only come from the exec.
    execl("/bin/sh", "sh", "-c", "while :; do :; done", nullptr);
  });
  const auto slots = slots_of(child, *fd);
  if (slots != nullptr) {
    EXPECT_TRUE(child.await([&] { return slots->process_died(); }));
    EXPECT_EQ(waitpid(child.pid(), nullptr, WNOHANG), 0);
  }
}

TEST(ShmWriterSlots, OfAChildAreItsOwn) {
  WriterSlots* const parents = *WriterSlots::of_process();
  WriterSlot* const mine = parents->mine();
  const uint32_t section_seq = mine->section_seq.load();
  Shared<WriterSlotsFd> fd;
  Child child([&] {
    if (parents->mine() != nullptr) _exit(3);  // not mapped here
    WriterSlot& own = announce_slot(*fd);
    if (*WriterSlots::of_process() == parents) _exit(4);
    own.section_seq.store(40);
    if (own.tid.load() != static_cast<uint32_t>(gettid())) _exit(5);
    pause();
  });
  const auto seen = slots_of(child, *fd);
  ASSERT_NE(seen, nullptr);
  EXPECT_TRUE(child.await([&] { return seen->slot(0).section_seq.load() == 40; }));
  child.kill();
  EXPECT_TRUE(seen->process_died());
  EXPECT_EQ(mine->section_seq.load(), section_seq);
  EXPECT_EQ(parents->mine(), mine);
  const auto own = *PeerWriterSlots::map(UniqueFd(dup(parents->fd())), getpid());
  EXPECT_FALSE(own->process_died()) << "the child took the parent's slot with it";
}

TEST(ShmWriterSlots, OfAPeerSurviveAForkAndTheChildLeavesThemAlone) {
  const auto seen =
      *PeerWriterSlots::map(UniqueFd(dup((**WriterSlots::of_process()).fd())), getpid());
  Child child([&] {
    // What the child has at the address by now is not its to unmap.
    void* const at = const_cast<WriterSlot*>(&seen->slot(0));
    void* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) & ~uintptr_t{4095});
    void* const own = mmap(page, 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (own != page) _exit(3);
    delete seen.get();
    *static_cast<volatile char*>(own) = 1;
  });
  EXPECT_TRUE(child.join());
  EXPECT_FALSE(seen->process_died());
}

}  // namespace
}  // namespace fabric::shm::shm_writer_slots_test
