#include "base/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/sanitizers.h"

namespace fabric::shared_pages_test {
namespace {

const uint64_t kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));

std::byte* bytes_of(const SharedPages& pages) { return static_cast<std::byte*>(pages.address()); }

uint64_t resident_pages(void* address, uint64_t bytes) {
  std::vector<unsigned char> in((bytes + kPage - 1) / kPage);
  if (::mincore(address, bytes, in.data()) != 0) return 0;
  return static_cast<uint64_t>(std::ranges::count_if(in, [](auto p) { return (p & 1) != 0; }));
}

bool mapped(void* address) {
  unsigned char in = 0;
  return ::mincore(address, kPage, &in) == 0;
}

/// 0 when `body` returns true in a child; SIGALRM kills a child that hangs.
int in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    ::_exit(body() ? 0 : 1);
  }
  int status = -1;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return status;
}

TEST(SharedPages, AreZeroedAndHadAtOnce) {
  for (const bool huge : {false, true}) {
    for (const uint64_t bytes : {uint64_t{1}, kPage, 3 * kPage + 1, (uint64_t{4} << 20) + 5}) {
      const auto pages = SharedPages::allocate(bytes, huge);
      ASSERT_TRUE(pages) << to_string(pages.error().code) << pages.error().native;
      EXPECT_GE(pages->size_bytes(), bytes);
      EXPECT_EQ(pages->size_bytes() % kPage, 0u);
      EXPECT_EQ(resident_pages(pages->address(), pages->size_bytes()), pages->size_bytes() / kPage);
      const std::byte* begin = bytes_of(*pages);
      EXPECT_TRUE(std::all_of(begin, begin + bytes, [](auto b) { return b == std::byte{0}; }));
    }
  }
}

TEST(SharedPages, AreSeenThroughTheirFile) {
  const auto pages = SharedPages::allocate(4 * kPage, true);
  ASSERT_TRUE(pages);
  const auto place = SharedPages::find(bytes_of(*pages) + kPage, 2 * kPage);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->offset, kPage);
  EXPECT_EQ(place->block_bytes, pages->size_bytes());
  void* peer = ::mmap(nullptr, place->block_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      place->file->get(), 0);
  ASSERT_NE(peer, MAP_FAILED);
  static_cast<std::byte*>(peer)[place->offset] = std::byte{7};
  EXPECT_EQ(bytes_of(*pages)[kPage], std::byte{7});
  ::munmap(peer, place->block_bytes);
}

TEST(SharedPages, CanNeitherShrinkNorGrowNorBeUnsealed) {
  const auto pages = SharedPages::allocate(2 * kPage, false);
  ASSERT_TRUE(pages);
  const int file = SharedPages::find(pages->address(), 1)->file->get();
  EXPECT_EQ(::ftruncate(file, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(file, static_cast<off_t>(8 * kPage)), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1)
      << "a seal that keeps peers from mapping the pages";
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fcntl(file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SharedPages, AreFoundOnlyAsAWhole) {
  const auto pages = SharedPages::allocate(2 * kPage, false);
  const auto other = SharedPages::allocate(2 * kPage, false);
  ASSERT_TRUE(pages && other);
  std::byte* begin = bytes_of(*pages);
  const uint64_t size = pages->size_bytes();
  EXPECT_TRUE(SharedPages::find(begin, size));
  EXPECT_TRUE(SharedPages::find(begin + size - 1, 1));
  EXPECT_FALSE(SharedPages::find(begin, size + 1));
  EXPECT_FALSE(SharedPages::find(begin + 1, size));
  EXPECT_FALSE(SharedPages::find(begin + 1, UINT64_MAX)) << "the end would wrap around";
  const auto before = SharedPages::find(begin - 1, 1);  // may be the other one
  EXPECT_TRUE(!before || before->block != SharedPages::find(begin, 1)->block);
  EXPECT_FALSE(SharedPages::find(begin - 1, 2));
  EXPECT_FALSE(SharedPages::find(begin + size - 1, 2));
  EXPECT_FALSE(SharedPages::find(nullptr, 0));
  const std::vector<std::byte> heap(64);
  EXPECT_FALSE(SharedPages::find(heap.data(), heap.size()));
  EXPECT_FALSE(SharedPages::find(&size, sizeof(size))) << "the stack is above all blocks";
}

TEST(SharedPages, EndWithTheirOwnerButALocationKeepsTheirFile) {
  std::optional<SharedPages::Location> place;
  void* address = nullptr;
  {
    auto made = SharedPages::allocate(kPage, false);
    ASSERT_TRUE(made);
    SharedPages pages = *std::move(made);
    address = pages.address();
    bytes_of(pages)[3] = std::byte{9};
    place = SharedPages::find(address, kPage);
  }
  EXPECT_FALSE(mapped(address));
  EXPECT_FALSE(SharedPages::find(address, 1));
  ASSERT_TRUE(place);
  std::byte read{};
  EXPECT_EQ(::pread(place->file->get(), &read, 1, 3), 1);
  EXPECT_EQ(read, std::byte{9});
  const auto next = SharedPages::allocate(kPage, false);
  ASSERT_TRUE(next);
  EXPECT_NE(SharedPages::find(next->address(), 1)->block, place->block);
}

TEST(SharedPages, ThatAreLeakedStay) {
  void* address = nullptr;
  {
    auto pages = SharedPages::allocate(kPage, false);
    ASSERT_TRUE(pages);
    address = pages->address();
    pages->leak();
  }
  EXPECT_TRUE(mapped(address));
  EXPECT_TRUE(SharedPages::find(address, kPage)) << "the address is not reused";
}

TEST(SharedPages, AssignedOverAreUnmapped) {
  auto a = SharedPages::allocate(kPage, false);
  auto b = SharedPages::allocate(kPage, false);
  ASSERT_TRUE(a && b);
  void* const first = a->address();
  void* const second = b->address();
  *a = *std::move(b);
  EXPECT_FALSE(SharedPages::find(first, 1));
  EXPECT_TRUE(SharedPages::find(second, 1));
  EXPECT_EQ(a->address(), second);
}

TEST(SharedPages, MoreThanThereIsAreRefusedAndNoProcessIsKilledForThem) {
  for (const uint64_t bytes : {uint64_t{1} << 46, uint64_t{1} << 62, UINT64_MAX}) {
    const auto pages = SharedPages::allocate(bytes, true);
    ASSERT_FALSE(pages);
    EXPECT_EQ(pages.error().code, Errc::kExhausted) << bytes;
  }
  EXPECT_EQ(SharedPages::allocate(0, true).error().code, Errc::kInvalidArgument);
}

TEST(SharedPages, WithoutADescriptorAreUnsupportedAndSayWhy) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto pages = SharedPages::allocate(kPage, false);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(pages);
  EXPECT_EQ(pages.error().code, Errc::kUnsupported);
  EXPECT_EQ(pages.error().native, EMFILE);
}

TEST(SharedPages, AreNotThereInAChild) {
  auto pages = SharedPages::allocate(kPage, false);
  ASSERT_TRUE(pages);
  bytes_of(*pages)[0] = std::byte{1};
  const int found = in_child([&] {
    void* const address = pages->address();
    if (mapped(address) || SharedPages::find(address, 1)) return false;
    // What the child puts there is its own, whatever becomes of the object that it inherited.
    void* const own = ::mmap(address, kPage, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (own != address) return false;
    { const SharedPages dying = *std::move(pages); }
    if (!mapped(own)) return false;
    const auto fresh = SharedPages::allocate(kPage, false);
    return fresh && SharedPages::find(fresh->address(), 1) && !SharedPages::find(own, 1);
  });
  EXPECT_EQ(found, 0);
  EXPECT_TRUE(SharedPages::find(pages->address(), kPage));
  EXPECT_EQ(bytes_of(*pages)[0], std::byte{1});
}

TEST(SharedPages, OfAChildDoNotWaitForALockOfItsParent) {
  if (test::kAddressSanitizer) GTEST_SKIP() << "a child may wait for the sanitizer's locks";
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    const auto pages = SharedPages::allocate(kPage, false);
    while (!stop.load()) (void)SharedPages::find(pages->address(), 1);
  });
  for (uint32_t round = 0; round < 20; ++round) {
    EXPECT_EQ(in_child([] {
                const auto own = SharedPages::allocate(kPage, false);
                return own && SharedPages::find(own->address(), 1);
              }),
              0);
  }
  stop.store(true);
  busy.join();
}

}  // namespace
}  // namespace fabric::shared_pages_test
