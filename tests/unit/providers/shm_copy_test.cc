#include "providers/shm/copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#if defined(__x86_64__) && __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif

#include "base/rng.h"
#include "support/log_guard.h"
#include "unit/providers/shm_harness.h"

namespace fabric::shm::shm_copy_test {
namespace {

constexpr uint64_t kPage = 4096;
constexpr std::byte kPoison{0xEE};

/// Pages that run a function on the first store to a chosen page, like an interruption at that
/// point.
class TrappedPages {
 public:
  explicit TrappedPages(uint64_t pages) : bytes_(pages * kPage) {
    at_ = static_cast<std::byte*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(at_, static_cast<int>(kPoison), bytes_);
    struct sigaction action {};
    action.sa_sigaction = &TrappedPages::on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
  }
  TrappedPages(const TrappedPages&) = delete;
  TrappedPages& operator=(const TrappedPages&) = delete;
  ~TrappedPages() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(at_, bytes_);
    trapped = nullptr;
  }

  void set(uint64_t page, std::function<void()> then) {
    then_ = std::move(then);
    page_ = at_ + page * kPage;
    trapped = this;
    mprotect(page_, kPage, PROT_READ);
  }
  std::byte* at(uint64_t offset) const { return at_ + offset; }
  bool sprung() const { return trapped == nullptr; }

 private:
  static void on_fault(int, siginfo_t* info, void*) {
    TrappedPages* const trap = std::exchange(trapped, nullptr);
    const auto* const where = static_cast<std::byte*>(info->si_addr);
    if (trap == nullptr || where < trap->page_ || where >= trap->page_ + kPage) _exit(9);
    mprotect(trap->page_, kPage, PROT_READ | PROT_WRITE);
    trap->then_();
  }

  static inline TrappedPages* trapped = nullptr;

  uint64_t bytes_;
  std::byte* at_;
  std::byte* page_ = nullptr;
  std::function<void()> then_;
  struct sigaction before_ {};
};

class ShmCopy : public testing::TestWithParam<GuardKind> {
 protected:
  void SetUp() override {
    kind_.emplace(GetParam());
    if (!kind_->used()) GTEST_SKIP() << "this machine has no restartable sequences";
    slot_ = (**WriterSlots::of_process()).mine();
    ASSERT_NE(slot_, nullptr);
  }
  void TearDown() override {
    use_copy_method(CopyMethod::kBest);
    kind_.reset();
  }

  Stored copy(std::byte* target, const std::byte* source, uint64_t bytes, bool fence = false) {
    return guarded_copy(*slot_, target, source, bytes, guard(), {&word_, 77}, fence);
  }
  Guard guard() const { return {&path_, 5, &rkey_, 6}; }
  bool restartable() const { return GetParam() == GuardKind::kRestartable; }

  std::optional<UseGuardKind> kind_;
  WriterSlot* slot_ = nullptr;
  std::atomic<uint64_t> path_{5}, rkey_{6}, word_{0};
};

std::vector<std::byte> random_bytes(uint64_t n) {
  Rng rng(test::test_seed());
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next());
  return bytes;
}

constexpr std::array kMoves{CopyMethod::kBest, CopyMethod::kVector, CopyMethod::kRepMovsb,
                            CopyMethod::kNonTemporal};

TEST_P(ShmCopy, MovesExactlyTheBytesOfEverySizeAndAlignment) {
  const auto source = random_bytes(5000);
  std::vector<std::byte> target(5200);
  std::vector<uint64_t> sizes{1000, 4095, 4096, 4097, 4800};
  for (uint64_t n = 0; n <= 520; ++n) sizes.push_back(n);
  for (const CopyMethod move : kMoves) {
    use_copy_method(move);
    for (const uint64_t n : sizes) {
      for (const uint64_t shift : {0u, 1u, 7u, 32u, 63u}) {
        std::fill(target.begin(), target.end(), kPoison);
        word_ = 0;
        std::byte* const to = target.data() + 64 + shift;
        const std::byte* const from = source.data() + (shift * 5) % 64;
        ASSERT_EQ(copy(to, from, n, shift == 0), Stored::kDone);
        ASSERT_EQ(word_.load(), 77u);
        ASSERT_EQ(std::memcmp(to, from, n), 0) << n << " bytes, shifted by " << shift;
        ASSERT_EQ(std::count(target.data(), to, kPoison), to - target.data());
        const std::byte* const end = target.data() + target.size();
        ASSERT_EQ(std::count(to + n, const_cast<std::byte*>(end), kPoison), end - (to + n))
            << n << " bytes, shifted by " << shift;
      }
    }
  }
}

TEST_P(ShmCopy, OfManyChunksAnnouncesEachInTheSlotAndCommitsOnce) {
  const uint64_t n = 5 * kChunkBytes + 77;  // long enough to leave the caches alone
  const auto source = random_bytes(n);
  std::vector<std::byte> target(n + 1, kPoison);
  for (const CopyMethod move : kMoves) {
    use_copy_method(move);
    std::fill(target.begin(), target.end(), kPoison);
    const uint32_t before = slot_->section_seq.load();
    ASSERT_EQ(copy(target.data(), source.data(), n), Stored::kDone);
    EXPECT_EQ(slot_->section_seq.load(), before + 2 * 6);
    EXPECT_EQ(std::memcmp(target.data(), source.data(), n), 0);
    EXPECT_EQ(target.back(), kPoison);
  }
}

TEST_P(ShmCopy, StoresNothingWhenEitherEpochHasChanged) {
  const auto source = random_bytes(8192);
  for (const CopyMethod move : kMoves) {
    use_copy_method(move);
    for (const uint64_t n : {0u, 8u, 100u, 1000u, 8192u}) {
      for (std::atomic<uint64_t>* revoked : {&path_, &rkey_}) {
        std::vector<std::byte> target(n, kPoison);
        const uint64_t held = revoked->exchange(99);
        const uint32_t before = slot_->section_seq.load();
        EXPECT_EQ(copy(target.data(), source.data(), n), Stored::kStale);
        EXPECT_EQ(std::count(target.begin(), target.end(), kPoison), static_cast<int64_t>(n));
        EXPECT_EQ(word_.load(), 0u);
        EXPECT_EQ(slot_->section_seq.load(), before + 2) << "the slot still shows a section";
        revoked->store(held);
      }
    }
  }
}

TEST_P(ShmCopy, NeedsNeitherAGuardNorACommit) {
  const auto source = random_bytes(3000);
  for (const uint64_t n : {8u, 3000u}) {
    std::vector<std::byte> target(n);
    EXPECT_EQ(guarded_copy(*slot_, target.data(), source.data(), n, {}, {}, false), Stored::kDone);
    EXPECT_EQ(std::memcmp(target.data(), source.data(), n), 0);
  }
}

// The central promise. If a section is interrupted after its check of the guard and the owner
// revokes the epoch, the section stores nothing more; a plain one does, and its section number
// stays odd.
TEST_P(ShmCopy, ThatIsInterruptedChecksTheGuardAgain) {
  const auto source = random_bytes(3 * kPage);
  for (const CopyMethod move : kMoves) {
    use_copy_method(move);
    for (const uint64_t n : {2u, 6u, 12u, 24u, 48u, 100u, 600u, 4000u, 6000u}) {
      for (std::atomic<uint64_t>* revoked : {&path_, &rkey_}) {
        TrappedPages pages(4);
        std::byte* const to = pages.at(2 * kPage - n / 2);
        uint32_t section_seq = 0;
        pages.set(2, [&] {
          section_seq = slot_->section_seq.load();
          revoked->store(99);
          std::memset(to, static_cast<int>(kPoison), n);  // the owner uses the memory again
        });
        word_ = 0;
        const Stored stored = copy(to, source.data(), n);
        EXPECT_TRUE(pages.sprung());
        EXPECT_EQ(section_seq % 2, 1u);
        EXPECT_EQ(slot_->section_seq.load(), section_seq + 1);
        EXPECT_EQ(stored, restartable() ? Stored::kStale : Stored::kDone);
        EXPECT_EQ(word_.load(), restartable() ? 0u : 77u);
        if (restartable()) {
          EXPECT_EQ(std::count(to, to + n, kPoison), static_cast<int64_t>(n))
              << "late bytes of " << n << ", move " << static_cast<int>(move);
        }
        path_ = 5;
        rkey_ = 6;
      }
    }
  }
}

TEST_P(ShmCopy, ThatIsInterruptedBeforeItsCommitDoesNotCommitLate) {
  const auto source = random_bytes(kPage);
  for (const uint64_t n : {0u, 8u, 1000u, 4096u}) {
    std::vector<std::byte> target(n);
    TrappedPages pages(1);
    auto* const word = new (pages.at(128)) std::atomic<uint64_t>(0);
    pages.set(0, [&] { rkey_ = 99; });
    const Stored stored =
        guarded_copy(*slot_, target.data(), source.data(), n, guard(), {word, 77}, false);
    EXPECT_TRUE(pages.sprung());
    EXPECT_EQ(stored, restartable() ? Stored::kStale : Stored::kDone);
    EXPECT_EQ(word->load(), restartable() ? 0u : 77u);
    rkey_ = 6;
  }
}

TEST_P(ShmCopy, ThatIsInterruptedAndStillAllowedIsComplete) {
  const auto source = random_bytes(3 * kPage);
  for (const CopyMethod move : kMoves) {
    use_copy_method(move);
    for (const uint64_t n : {3u, 12u, 100u, 600u, 6000u}) {
      TrappedPages pages(4);
      std::byte* const to = pages.at(2 * kPage - n / 2);
      pages.set(2, [] {});
      EXPECT_EQ(copy(to, source.data(), n), Stored::kDone);
      EXPECT_TRUE(pages.sprung());
      EXPECT_EQ(std::memcmp(to, source.data(), n), 0);
      EXPECT_EQ(*(to + n), kPoison);
      EXPECT_EQ(*(to - 1), kPoison);
    }
  }
}

// The commit of a long copy means that all of it has landed: a refused chunk prevents it.
TEST_P(ShmCopy, ThatIsRefusedHalfWayDoesNotCommit) {
  const uint64_t n = 3 * kChunkBytes;
  const auto source = random_bytes(n);
  TrappedPages pages(n / kPage);
  pages.set(kChunkBytes / kPage + 3, [&] { rkey_ = 99; });  // in the second of three chunks
  EXPECT_EQ(copy(pages.at(0), source.data(), n), Stored::kStale);
  EXPECT_TRUE(pages.sprung());
  EXPECT_EQ(word_.load(), 0u);
  EXPECT_EQ(std::memcmp(pages.at(0), source.data(), kChunkBytes), 0);
  EXPECT_EQ(std::count(pages.at(2 * kChunkBytes), pages.at(n), kPoison),
            static_cast<int64_t>(kChunkBytes));
}

/// Writes of the given sizes from `source` to consecutive targets with a gap between them.
std::vector<WriteOp> writes_of(const std::vector<std::byte>& source,
                               const std::vector<uint64_t>& sizes) {
  std::vector<WriteOp> writes;
  uint64_t at = 3, from = 0;
  for (const uint64_t n : sizes) {
    from = (from + 101) % (source.size() - n);
    writes.push_back({.source = reinterpret_cast<uint64_t>(source.data() + from),
                      .target = at,
                      .size_bytes = n});
    at += n + 1 + n % 5;
  }
  return writes;
}

TEST_P(ShmCopy, OfABurstMovesExactlyTheBytesOfEachWriteInOneSection) {
  const auto source = random_bytes(40'000);
  std::vector<uint64_t> sizes;
  for (uint64_t n = 1; n <= burst_write_bytes_max(); n += 1 + n / 30) sizes.push_back(n);
  sizes.push_back(burst_write_bytes_max());
  for (size_t skip = 0; skip < 16; ++skip) {
    use_copy_method(skip % 2 == 0 ? CopyMethod::kBest : CopyMethod::kVector);
    const auto writes =
        writes_of(source, {sizes.begin() + static_cast<int64_t>(skip), sizes.end()});
    std::vector<std::byte> target(writes.back().target + writes.back().size_bytes + 200, kPoison);
    auto expected = target;
    for (const WriteOp& write : writes) {
      std::memcpy(expected.data() + write.target, reinterpret_cast<const void*>(write.source),
                  write.size_bytes);
    }
    word_ = 0;
    const uint32_t before = slot_->section_seq.load();
    ASSERT_EQ(guarded_burst(*slot_, target.data(), writes, guard(), {&word_, 77}, skip % 4 == 0),
              Stored::kDone);
    EXPECT_EQ(word_.load(), 77u);
    EXPECT_EQ(slot_->section_seq.load(), before + 2);
    ASSERT_EQ(std::memcmp(target.data(), expected.data(), target.size()), 0) << "skipped " << skip;
  }
}

TEST_P(ShmCopy, OfABurstStoresNothingWhenEitherEpochHasChanged) {
  const auto source = random_bytes(4096);
  const auto writes = writes_of(source, {8, 1, 200, 40});
  for (std::atomic<uint64_t>* revoked : {&path_, &rkey_}) {
    std::vector<std::byte> target(1000, kPoison);
    const uint64_t held = revoked->exchange(99);
    EXPECT_EQ(guarded_burst(*slot_, target.data(), writes, guard(), {&word_, 77}, false),
              Stored::kStale);
    EXPECT_EQ(std::count(target.begin(), target.end(), kPoison), 1000);
    EXPECT_EQ(word_.load(), 0u);
    revoked->store(held);
  }
}

// A burst restarts with its first write, and only if the guard still holds.
TEST_P(ShmCopy, OfABurstThatIsInterruptedChecksTheGuardAgain) {
  const auto source = random_bytes(8192);
  for (const uint64_t n : {2u, 6u, 12u, 24u, 48u, 100u, 600u, 4000u, 6000u}) {
    for (const uint32_t round : {0u, 1u, 2u, 3u}) {
      const bool revoked = round % 2 != 0;
      use_copy_method(round < 2 ? CopyMethod::kBest : CopyMethod::kVector);
      TrappedPages pages(5);
      auto writes = writes_of(source, {8, n, 200});
      writes[1].target = 2 * kPage - n / 2;  // the trap is in the middle of it
      writes[2].target = 4 * kPage;
      pages.set(2, [&] {
        if (!revoked) return;
        rkey_ = 99;
        std::memset(pages.at(0), static_cast<int>(kPoison), 5 * kPage);  // used again
      });
      word_ = 0;
      const Stored stored =
          guarded_burst(*slot_, pages.at(0), writes, guard(), {&word_, 77}, false);
      EXPECT_TRUE(pages.sprung());
      const bool stops = revoked && restartable();
      EXPECT_EQ(stored, stops ? Stored::kStale : Stored::kDone);
      EXPECT_EQ(word_.load(), stops ? 0u : 77u);
      if (stops) {
        EXPECT_EQ(std::count(pages.at(0), pages.at(5 * kPage), kPoison), int64_t{5 * kPage}) << n;
      } else if (!revoked) {
        for (const WriteOp& write : writes) {
          const auto* const from = reinterpret_cast<const std::byte*>(write.source);
          EXPECT_EQ(std::memcmp(pages.at(write.target), from, write.size_bytes), 0) << n;
        }
      }
      rkey_ = 6;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EachKind, ShmCopy,
                         testing::Values(GuardKind::kRestartable, GuardKind::kPlain),
                         [](const auto& kind) { return name_of(kind.param); });

#if defined(__x86_64__) && __has_include(<sys/rseq.h>)
// The kernel reads the descriptor at the next preemption, and kills the process if it is unmapped.
TEST(ShmCopyRseq, LeavesNoDescriptorInstalled) {
  if (guard_kind() != GuardKind::kRestartable) GTEST_SKIP() << "no restartable sequences";
  WriterSlot& slot = *(**WriterSlots::of_process()).mine();
  std::vector<std::byte> source(5000), target(5000);
  for (const uint64_t n : {8u, 5000u}) {
    guarded_copy(slot, target.data(), source.data(), n, {}, {}, false);
    uint64_t left = 1;
    asm volatile("movq %%fs:8(%1), %0" : "=r"(left) : "r"(__rseq_offset));
    EXPECT_EQ(left, 0u);
  }
}
#endif

}  // namespace
}  // namespace fabric::shm::shm_copy_test
