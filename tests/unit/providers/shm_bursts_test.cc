#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "fuzz/shm_fixture.h"
#include "providers/shm/copy.h"
#include "support/log_guard.h"

// Small writes to the same region share one section. Apart from timing this must not be observable.

namespace fabric::fuzz::shm_bursts_test {
namespace {

using namespace fabric::shm;
using Kind = RailEvent::Kind;

/// A sender and a target with two regions on one path.
class ShmBursts : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 256u << 10;
  static constexpr uint32_t kUncounted = UINT32_MAX;

  ShmBursts() {
    std::vector<std::byte> hello, answer;
    for (uint32_t region = 0; region < 2; ++region) {
      std::vector<std::byte> rkey;
      own_[region] = *to_.rail().register_memory({target(region), kBytes}, rkey);
      rkey_[region] = *from_.rail().import_rkey(rkey);
    }
    out_ = *from_.rail().open_path(to_.network().address(), 0, hello);
    in_ = *to_.rail().accept_path(hello, answer);
    EXPECT_TRUE(from_.rail().start_path(out_, answer));
    Rng rng(test::test_seed());
    for (std::byte& byte : source_) byte = static_cast<std::byte>(rng.next());
    // The first writes wait until the ring and the pages are there.
    for (uint32_t region = 0; region < 2; ++region) {
      post({write(region, 0, 8)});
      turns(4);
    }
    EXPECT_EQ(from_.count(Kind::kCompletion, out_), 2u);
    from_.events.clear();
    to_.events.clear();
  }
  ~ShmBursts() override {
    from_.rail().close_path(out_, false);
    to_.rail().close_path(in_, true);
    turns(4);
  }

  std::byte* target(uint32_t region) const {
    return static_cast<std::byte*>(pages_[region].address());
  }
  WriteOp write(uint32_t region, uint64_t at, uint64_t bytes, uint32_t imm = kUncounted) {
    return {.source = reinterpret_cast<uint64_t>(source_.data() + (at * 7) % 4096),
            .target = at,
            .size_bytes = bytes,
            .rkey = rkey_[region],
            .cookie = cookies_++,
            .path = out_,
            .imm = imm,
            .has_imm = imm != kUncounted};
  }
  void post(const std::vector<WriteOp>& ops) {
    for (size_t done = 0; done < ops.size(); turns(1)) {
      done += from_.rail().post(std::span(ops).subspan(done));
    }
  }
  void turns(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      from_.turn();
      to_.turn();
    }
  }
  std::vector<uint32_t> immediates() const {
    std::vector<uint32_t> found;
    for (const RailEvent& event : to_.events) {
      if (event.kind == Kind::kImm) found.push_back(event.imm);
    }
    return found;
  }
  /// The completion of `op`; checks that there is exactly one.
  const RailEvent& completion_of(const WriteOp& op) const {
    static const RailEvent kNone{.kind = Kind::kRailDown};
    const auto same = [&](const RailEvent& event) {
      return event.kind == Kind::kCompletion && event.cookie == op.cookie;
    };
    EXPECT_EQ(std::ranges::count_if(from_.events, same), 1) << "cookie " << op.cookie;
    const auto found = std::ranges::find_if(from_.events, same);
    return found == from_.events.end() ? kNone : *found;
  }

  StepDriver driver_;
  ShmNode from_{driver_}, to_{driver_};
  std::array<SharedPages, 2> pages_{*SharedPages::allocate(kBytes, false),
                                    *SharedPages::allocate(kBytes, false)};
  std::array<uint64_t, 2> own_{}, rkey_{};
  std::vector<std::byte> source_ = std::vector<std::byte>(64u << 10);
  uint32_t out_ = 0, in_ = 0, cookies_ = 1;
};

TEST_F(ShmBursts, WritesOfAllSizesLandCompleteAndCountInPostingOrder) {
  Rng rng(test::test_seed());
  constexpr std::array<uint64_t, 10> kSizes{1, 3, 8, 8, 8, 64, 129, 1024, 4096, 9000};
  // Several laps of the ring, so that bursts wrap around.
  uint32_t counted = 0;
  for (uint32_t round = 0; round < 120; ++round) {
    std::vector<WriteOp> ops;
    std::array<std::vector<std::byte>, 2> expected;
    for (uint32_t region = 0; region < 2; ++region) {
      expected[region].assign(target(region), target(region) + kBytes);
    }
    uint64_t at = 0;
    while (ops.size() < 100) {
      const uint64_t bytes = kSizes[rng.next() % kSizes.size()];
      if (at + bytes > kBytes) break;
      // Long bursts, and bursts of one.
      const uint32_t region = round % 2 == 0 ? 0 : static_cast<uint32_t>(rng.next() % 2);
      const bool counts = round % 3 != 0 || rng.next() % 4 == 0;
      ops.push_back(write(region, at, bytes, counts ? counted++ : kUncounted));
      std::memcpy(expected[region].data() + at, reinterpret_cast<const void*>(ops.back().source),
                  bytes);
      at += bytes + rng.next() % 9;
    }
    from_.events.clear();
    post(ops);
    turns(3);
    ASSERT_EQ(from_.events.size(), ops.size());
    for (size_t i = 0; i < ops.size(); ++i) {
      ASSERT_EQ(from_.events[i].cookie, ops[i].cookie);
      ASSERT_EQ(from_.events[i].code, Errc::kOk);
      ASSERT_EQ(from_.events[i].path, out_);
    }
    for (uint32_t region = 0; region < 2; ++region) {
      ASSERT_EQ(std::memcmp(target(region), expected[region].data(), kBytes), 0) << round;
    }
  }
  ASSERT_GT(counted, 2 * Ring::kImms);
  const auto found = immediates();
  ASSERT_EQ(found.size(), counted);
  for (uint32_t i = 0; i < counted; ++i) ASSERT_EQ(found[i], i);
}

TEST_F(ShmBursts, AWriteOutOfBoundsIsRefusedAloneAndTheOthersLand) {
  const std::vector<WriteOp> ops{write(0, 0, 8, 1),      write(0, kBytes - 7, 8, 2),
                                 write(0, 64, 8, 3),     write(0, UINT64_MAX - 3, 8, 4),
                                 write(0, kBytes, 8, 5), write(0, kBytes - 8, 8, 6)};
  post(ops);
  turns(2);
  EXPECT_EQ(immediates(), (std::vector<uint32_t>{1, 3, 6}));
  for (const WriteOp& op : ops) {
    const bool inside = op.imm == 1 || op.imm == 3 || op.imm == 6;
    EXPECT_EQ(completion_of(op).code, inside ? Errc::kOk : Errc::kRemoteAccess) << op.imm;
  }
}

// Its other immediates were already in the ring, after the position of the next one.
TEST_F(ShmBursts, ABurstToRevokedMemoryLeavesNoImmediates) {
  const std::vector<WriteOp> late{write(0, 0, 8, 1), write(0, 64, 8, 2), write(0, 128, 200, 3)};
  std::memset(target(0), 0xEE, 4096);
  to_.rail().deregister_memory(own_[0], 77);
  post(late);
  for (const WriteOp& op : late) {
    EXPECT_EQ(completion_of(op).code, Errc::kRemoteAccess);
    EXPECT_EQ(completion_of(op).remote, Remote::kNotDelivered);
  }
  EXPECT_TRUE(std::all_of(target(0), target(0) + 4096,
                          [](std::byte byte) { return byte == std::byte{0xEE}; }));
  post({write(1, 0, 8, 9)});
  turns(3);
  EXPECT_EQ(immediates(), std::vector<uint32_t>{9});
  EXPECT_NE(to_.fenced(77), nullptr);
}

TEST_F(ShmBursts, ABurstOnAPathThatItsTargetClosedIsNotDelivered) {
  post({write(0, 0, 8, 1), write(0, 64, 8, 2)});
  to_.rail().close_path(in_, true);
  const std::vector<WriteOp> late{write(0, 0, 8, 3), write(0, 64, 8, 4), write(1, 0, 8, 5)};
  post(late);
  turns(5);
  for (const WriteOp& op : late) {
    EXPECT_EQ(completion_of(op).code, Errc::kRailLost);
    EXPECT_EQ(completion_of(op).remote, Remote::kNotDelivered);
  }
  EXPECT_EQ(immediates(), (std::vector<uint32_t>{1, 2}));
  const auto down = std::ranges::find_if(
      to_.events, [](const RailEvent& event) { return event.kind == Kind::kPathDown; });
  ASSERT_NE(down, to_.events.end());
  EXPECT_EQ(down->value, 2u);
  EXPECT_EQ(from_.count(Kind::kPathDown, out_), 1u);
}

/// A source that runs a function when it is first read.
class TrappedSource {
 public:
  explicit TrappedSource(std::function<void()> then) : then_(std::move(then)) {
    at_ = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    trapped = this;
    struct sigaction action {};
    action.sa_handler = [](int) {
      TrappedSource* const trap = std::exchange(trapped, nullptr);
      if (trap == nullptr) _exit(9);
      mprotect(trap->at_, kBytes, PROT_READ);
      trap->then_();
    };
    sigaction(SIGSEGV, &action, &before_);
  }
  TrappedSource(const TrappedSource&) = delete;
  TrappedSource& operator=(const TrappedSource&) = delete;
  ~TrappedSource() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(at_, kBytes);
  }
  uint64_t address() const { return reinterpret_cast<uint64_t>(at_); }
  static bool sprung() { return trapped == nullptr; }

 private:
  static constexpr uint64_t kBytes = 4096;
  static inline TrappedSource* trapped = nullptr;

  void* at_;
  std::function<void()> then_;
  struct sigaction before_ {};
};

TEST_F(ShmBursts, NoImmediateIsSeenBeforeTheLastByteOfItsBurstHasLanded) {
  std::vector<WriteOp> ops{write(0, 0, 8, 1), write(0, 64, 8, 2), write(0, 128, 8, 3)};
  size_t seen_early = 0;
  const TrappedSource source([&] {
    to_.turn();
    seen_early = immediates().size();
  });
  ops[2].source = source.address();
  EXPECT_EQ(from_.rail().post(ops), 3u);
  EXPECT_TRUE(TrappedSource::sprung());
  EXPECT_EQ(seen_early, 0u);
  turns(1);
  EXPECT_EQ(immediates(), (std::vector<uint32_t>{1, 2, 3}));
}

// Consecutive cookies share a completion, and equal immediates share an event.
TEST_F(ShmBursts, CompletionsAndImmediatesOfABurstAreReportedAsOne) {
  std::vector<WriteOp> ops;
  for (uint32_t i = 0; i < 20; ++i) ops.push_back(write(0, i * 64, 8, i < 12 ? 5 : 6));
  cookies_ += 7;
  for (uint32_t i = 20; i < 30; ++i) ops.push_back(write(0, i * 64, 8, 6));
  from_.reported = to_.reported = 0;
  post(ops);
  turns(2);
  EXPECT_EQ(from_.reported, 2u);
  EXPECT_EQ(to_.reported, 2u);
  for (const WriteOp& op : ops) EXPECT_EQ(completion_of(op).code, Errc::kOk);
  const auto found = immediates();
  EXPECT_EQ(std::ranges::count(found, 5u), 12);
  EXPECT_EQ(std::ranges::count(found, 6u), 18);
}

// A full ring ends a burst; queued writes go first when there is room again.
TEST_F(ShmBursts, ATargetThatTakesNothingGetsItAllLater) {
  constexpr uint32_t kMany = Ring::kImms + 500;
  uint32_t posted = 0;
  for (uint32_t round = 0; round < 100 && posted < kMany; ++round) {
    std::vector<WriteOp> ops;
    for (uint32_t i = 0; i < 100; ++i) ops.push_back(write(i / 50, i * 64, 8, posted + i));
    posted += from_.rail().post(ops);
    from_.turn();
  }
  EXPECT_LT(from_.count(Kind::kCompletion, out_), posted) << "the ring is not bounded";
  turns(200);
  EXPECT_EQ(from_.count(Kind::kCompletion, out_), posted);
  const auto found = immediates();
  ASSERT_EQ(found.size(), posted);
  for (uint32_t i = 0; i < posted; ++i) ASSERT_EQ(found[i], i);
}

}  // namespace
}  // namespace fabric::fuzz::shm_bursts_test
