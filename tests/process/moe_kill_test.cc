#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <fabric/fabric.h>

#include "base/rng.h"
#include "harness/pattern.h"
#include "process/note.h"
#include "support/log_guard.h"
#include "unit/providers/shm_harness.h"

// The loop of a mixture of experts in real processes over shared memory, as its author would write
// it, while one of them is killed at any instruction. The others drop it and go on, and no rank
// ever reads a block of another step.
//
// FABRICLIB_TEST_ROUNDS=N kills N times as many; 25 are 50 kills.

namespace fabric::test::moe_kill_test {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kRanks = 4, kBanks = 2, kSteps = 300, kKills = 2;
constexpr uint64_t kBlock = 24 << 10;

uint32_t rounds() {
  const char* text = std::getenv("FABRICLIB_TEST_ROUNDS");
  if (text == nullptr) return 1;
  uint32_t times = 0;
  const auto parsed = std::from_chars(text, text + std::strlen(text), times);
  EXPECT_TRUE(parsed.ec == std::errc{} && times > 0) << "FABRICLIB_TEST_ROUNDS is '" << text << "'";
  return std::max(times, 1u);
}

uint64_t content(uint32_t step, uint32_t from, uint32_t to) {
  return 10'000 * uint64_t{step} + 100 * from + to + 1;
}

/// What the processes share besides the engines: the channel of the application.
struct Exchange {
  struct OfRank {
    Note address{}, descriptor{};
    std::array<std::array<CounterKey, kRanks>, kBanks> keys{};  ///< by bank and sender
    std::atomic<uint32_t> ready{0};
    std::atomic<uint32_t> step{0};
    std::atomic<uint64_t> stale{0};    ///< blocks of another step that it read
    std::atomic<uint32_t> dropped{0};  ///< a bit for each rank
    std::array<char, 128> failure{};
  };
  std::array<OfRank, kRanks> ranks{};
  std::atomic<uint32_t> dead{0};  ///< a bit for each rank
};

class Rank {
 public:
  Rank(Exchange& exchange, uint32_t me) : exchange_(exchange), own_(exchange.ranks[me]), me_(me) {}

  void run() {
    if (!connect()) return;
    for (uint32_t step = 0; step < kSteps; ++step) {
      own_.step.store(step, std::memory_order_relaxed);
      if (!send(step) || !receive(step)) return;
    }
    own_.step.store(kSteps, std::memory_order_release);
    if (drops_ && !engine_->wait(*drops_, 20s)) return fail("a drop without proof", Error{});
    // Leaves last: the others may still wait for its last block.
    await([&](const Exchange::OfRank& other) { return other.step.load() == kSteps; });
  }

 private:
  void fail(const char* what, const Error& error) {
    std::snprintf(own_.failure.data(), own_.failure.size(), "%s: %s: %s", what,
                  to_string(error.code), error.what);
  }
  /// Waits for every rank that is not dead.
  bool await(const auto& condition) {
    const auto limit = std::chrono::steady_clock::now() + 40s;
    for (uint32_t rank = 0; rank < kRanks;) {
      if ((exchange_.dead.load() >> rank & 1) != 0 || condition(exchange_.ranks[rank])) {
        ++rank;
      } else if (std::chrono::steady_clock::now() > limit) {
        fail("another rank is late", Error{});
        return false;
      } else {
        sched_yield();
      }
    }
    return true;
  }

  bool connect() {
    Config config;
    config.networks = {{.provider = "shm"}};
    config.log_level = LogLevel::kError;
    auto engine = Engine::open(config);
    if (!engine) return fail("open", engine.error()), false;
    engine_.emplace(*std::move(engine));
    memory_.emplace(*engine_->allocate({.size_bytes = 2 * kBanks * kRanks * kBlock}));
    own_.descriptor.put(*memory_->desc());
    own_.address.put(engine_->address());
    if (!await([](const Exchange::OfRank& other) { return !other.address.get().empty(); }))
      return false;
    drops_.emplace(*engine_->make_batch());
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank == me_) continue;
      const auto peer = engine_->connect(exchange_.ranks[rank].address.get());
      if (!peer) return fail("connect", peer.error()), false;
      peers_[rank] = *peer;
      const auto region = engine_->import_region(*peer, exchange_.ranks[rank].descriptor.get());
      if (!region) return fail("import", region.error()), false;
      regions_[rank] = *region;
    }
    for (uint32_t bank = 0; bank < kBanks; ++bank) {
      sent_.push_back(*engine_->make_batch());
      groups_.push_back(*engine_->make_counter_group());
      for (uint32_t from = 0; from < kRanks; ++from) {
        counters_.push_back(*engine_->make_counter());
        own_.keys[bank][from] = counters_.back().key();
        if (from == me_) continue;
        if (auto ok = groups_[bank].add(counters_.back(), peers_[from]); !ok) {
          return fail("add", ok.error()), false;
        }
      }
    }
    own_.ready.store(1, std::memory_order_release);
    return await([](const Exchange::OfRank& other) { return other.ready.load() == 1; });
  }

  static uint64_t out(uint32_t bank, uint32_t to) { return (bank * kRanks + to) * kBlock; }
  static uint64_t in(uint32_t bank, uint32_t from) {
    return ((kBanks + bank) * kRanks + from) * kBlock;
  }
  std::span<std::byte> bytes(uint64_t offset) { return memory_->bytes().subspan(offset, kBlock); }
  bool dropped(uint32_t rank) const { return (own_.dropped.load() >> rank & 1) != 0; }

  bool send(uint32_t step) {
    const uint32_t bank = step % kBanks;
    // Writes to a rank that is gone fail; all have ended, so the sources are free.
    (void)engine_->wait(sent_[bank], 20s);
    if (auto ok = sent_[bank].reset(); !ok) return fail("a write has not ended", ok.error()), false;
    std::vector<ScatterTarget> targets;
    for (uint32_t to = 0; to < kRanks; ++to) {
      if (to == me_ || dropped(to)) continue;
      fill(bytes(out(bank, to)), content(step, me_, to));
      targets.push_back({.target = regions_[to].at(in(bank, me_)),
                         .source_offset = out(bank, to),
                         .size_bytes = kBlock,
                         .imm = exchange_.ranks[to].keys[bank][me_]});
    }
    const auto op = engine_->submit(
        Scatter{.source = memory_->id(), .targets = targets, .timeout = 20s, .batch = sent_[bank]});
    if (!op) return fail("scatter", op.error()), false;
    return true;
  }

  bool receive(uint32_t step) {
    const uint32_t bank = step % kBanks;
    CounterGroup& group = groups_[bank];
    for (auto met = group.wait(20s); !met; met = group.wait(20s)) {
      const Errc code = met.error().code;
      if (code != Errc::kTimeout && code != Errc::kPeerLost && code != Errc::kAborted) {
        return fail("wait", met.error()), false;
      }
      for (const PeerId peer : code == Errc::kTimeout ? group.missing() : group.lost()) drop(peer);
    }
    for (uint32_t from = 0; from < kRanks; ++from) {
      if (from == me_ || dropped(from)) continue;
      own_.stale += !holds(bytes(in(bank, from)), content(step, from, me_));
    }
    return true;
  }

  void drop(PeerId peer) {
    const auto rank = static_cast<uint32_t>(std::ranges::find(peers_, peer) - peers_.begin());
    own_.dropped.fetch_or(1u << rank);
    const auto op = engine_->submit(Drop{.peer = peer, .timeout = 20s, .batch = *drops_});
    if (!op) fail("drop", op.error());
  }

  Exchange& exchange_;
  Exchange::OfRank& own_;
  const uint32_t me_;
  std::optional<Engine> engine_{};
  std::optional<MemoryRegion> memory_{};
  std::array<PeerId, kRanks> peers_{};
  std::array<RemoteRegion, kRanks> regions_{};
  std::vector<Counter> counters_{};
  std::vector<CounterGroup> groups_{};
  std::vector<Batch> sent_{};
  std::optional<Batch> drops_{};
};

void run_and_kill(Rng& rng) {
  const shm::Shared<Exchange> exchange;
  std::vector<std::unique_ptr<shm::Child>> children;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    children.push_back(
        std::make_unique<shm::Child>([&exchange, rank] { Rank(*exchange, rank).run(); }));
  }
  const auto victim = static_cast<uint32_t>(rng.below(kRanks));
  const auto at = static_cast<uint32_t>(rng.below(kSteps * 3 / 4));
  ASSERT_TRUE(children[victim]->await([&] { return exchange->ranks[victim].step.load() >= at; }));
  const auto until = std::chrono::steady_clock::now() + Nanos(rng.below(300'000));
  while (std::chrono::steady_clock::now() < until) {
  }
  children[victim]->kill();
  exchange->dead.fetch_or(1u << victim);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    SCOPED_TRACE(testing::Message() << "rank " << rank << ", killed was " << victim);
    const Exchange::OfRank& one = exchange->ranks[rank];
    EXPECT_TRUE(children[rank]->join());
    EXPECT_STREQ(one.failure.data(), "");
    EXPECT_EQ(one.step.load(), kSteps);
    EXPECT_EQ(one.stale.load(), 0u) << "read blocks of another step";
    EXPECT_EQ(one.dropped.load(), 1u << victim) << "dropped others than the dead";
  }
}

TEST(MoeProcesses, TheLivingNeverReadAStaleBlockWhenOneIsKilled) {
  Rng rng(test_seed());
  const uint32_t kills = kKills * rounds();
  for (uint32_t i = 0; i < kills && !testing::Test::HasFailure(); ++i) run_and_kill(rng);
}

}  // namespace
}  // namespace fabric::test::moe_kill_test
