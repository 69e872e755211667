#include "providers/shm/writer_slots.h"

#include <cerrno>

#include "unit/providers/shm_harness.h"

namespace fabric::shm {
namespace {

UniqueFd memory(uint64_t bytes, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

Errc refused(UniqueFd fd) { return PeerCards::map(std::move(fd), 0).error().code; }

TEST(ShmCards, OfAThreadIsTheSameEveryTimeAndPeersSeeIt) {
  Cards& cards = **Cards::of_process();
  Card* const mine = cards.mine();
  ASSERT_NE(mine, nullptr);
  EXPECT_EQ(cards.mine(), mine);
  EXPECT_EQ(*Cards::of_process(), &cards);

  const auto seen = *PeerCards::map(UniqueFd(dup(cards.fd())), getpid());
  EXPECT_GE(seen->used(), 1u);
  EXPECT_FALSE(seen->died());
  mine->intent.fetch_add(2);
  bool found = false;
  for (uint32_t i = 0; i < seen->used(); ++i) {
    const Card& card = seen->card(i);
    if (card.tid.load() != static_cast<uint32_t>(gettid())) continue;
    found = card.intent.load() == mine->intent.load();
  }
  EXPECT_TRUE(found);
}

TEST(ShmCards, CannotBeWrittenOrResizedByPeers) {
  const int fd = (**Cards::of_process()).fd();
  EXPECT_EQ(mmap(nullptr, sizeof(CardPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_LT(pwrite(fd, "x", 1, 0), 0);
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_NE(ftruncate(fd, 2 * sizeof(CardPage)), 0);
  void* const readable = mmap(nullptr, sizeof(CardPage), PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_NE(mprotect(readable, sizeof(CardPage), PROT_READ | PROT_WRITE), 0);
  munmap(readable, sizeof(CardPage));
}

TEST(ShmCards, AreNotMappedFromAnythingElse) {
  EXPECT_EQ(refused(UniqueFd()), Errc::kBadFormat);
  EXPECT_EQ(refused(memory(sizeof(CardPage), 0)), Errc::kBadFormat);  // it could shrink
  EXPECT_EQ(refused(memory(sizeof(CardPage) - 1, F_SEAL_SHRINK)), Errc::kBadFormat);
  EXPECT_EQ(refused(memory(sizeof(CardPage) + 4096, F_SEAL_SHRINK)), Errc::kBadFormat);
  EXPECT_EQ(refused(UniqueFd(open("/proc/self/exe", O_RDONLY))), Errc::kBadFormat);
  EXPECT_EQ(refused(UniqueFd(open("/dev/zero", O_RDWR))), Errc::kBadFormat);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const UniqueFd other(pipe_ends[1]);
  EXPECT_EQ(refused(UniqueFd(pipe_ends[0])), Errc::kBadFormat);
}

TEST(ShmCards, OfAPeerThatLiesAboutTheirNumberAreReadInBounds) {
  UniqueFd fd = memory(sizeof(CardPage), F_SEAL_SHRINK);
  const uint32_t lie = 0xffff'ffff;
  ASSERT_EQ(pwrite(fd.get(), &lie, sizeof(lie), offsetof(CardPage, used)), 4);
  const auto cards = *PeerCards::map(std::move(fd), 0);
  EXPECT_EQ(cards->used(), CardPage::kCards);
  EXPECT_FALSE(cards->died());
}

TEST(ShmCards, SayThatTheirProcessWasKilledOrReturned) {
  for (const bool killed : {true, false}) {
    Shared<CardsFd> fd;
    Shared<std::atomic<bool>> go;
    Child child([&] {
      show_card(*fd);
      while (!go->load()) sched_yield();
      exit(0);  // as main() returns: with the destructors of its thread
    });
    const auto cards = cards_of(child, *fd);
    ASSERT_NE(cards, nullptr);
    EXPECT_FALSE(cards->died());
    killed ? child.signal(SIGKILL) : go->store(true);
    EXPECT_TRUE(child.await([&] { return cards->died(); })) << (killed ? "killed" : "returned");
  }
}

TEST(ShmCards, SayThatTheirProcessBecameAnotherProgram) {
  Shared<CardsFd> fd;
  Child child([&] {
    show_card(*fd);
    // Goes on for ever: only the exec can be what the cards tell.
    execl("/bin/sh", "sh", "-c", "while :; do :; done", nullptr);
  });
  const auto cards = cards_of(child, *fd);
  if (cards != nullptr) {
    EXPECT_TRUE(child.await([&] { return cards->died(); }));
    EXPECT_EQ(waitpid(child.pid(), nullptr, WNOHANG), 0);
  }
}

TEST(ShmCards, OfAChildAreItsOwn) {
  Cards* const parents = *Cards::of_process();
  Card* const mine = parents->mine();
  const uint32_t intent = mine->intent.load();
  Shared<CardsFd> fd;
  Child child([&] {
    if (parents->mine() != nullptr) _exit(3);  // not mapped here
    Card& own = show_card(*fd);
    if (*Cards::of_process() == parents) _exit(4);
    own.intent.store(40);
    if (own.tid.load() != static_cast<uint32_t>(gettid())) _exit(5);
    pause();
  });
  const auto seen = cards_of(child, *fd);
  ASSERT_NE(seen, nullptr);
  EXPECT_TRUE(child.await([&] { return seen->card(0).intent.load() == 40; }));
  child.kill();
  EXPECT_TRUE(seen->died());
  EXPECT_EQ(mine->intent.load(), intent);
  EXPECT_EQ(parents->mine(), mine);
  const auto own = *PeerCards::map(UniqueFd(dup(parents->fd())), getpid());
  EXPECT_FALSE(own->died()) << "the child took the parent's card with it";
}

TEST(ShmCards, OfAPeerSurviveAForkAndTheChildLeavesThemAlone) {
  const auto seen = *PeerCards::map(UniqueFd(dup((**Cards::of_process()).fd())), getpid());
  Child child([&] {
    // What the child has at the address by now is not its to unmap.
    void* const at = const_cast<Card*>(&seen->card(0));
    void* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) & ~uintptr_t{4095});
    void* const own = mmap(page, 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (own != page) _exit(3);
    delete seen.get();
    *static_cast<volatile char*>(own) = 1;
  });
  EXPECT_TRUE(child.join());
  EXPECT_FALSE(seen->died());
}

}  // namespace
}  // namespace fabric::shm
