#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <fabric/fabric.h>

#include "process/note.h"
#include "unit/providers/shm_harness.h"

// P13 for one grant against real writers over shared memory: one that is stopped or killed in the
// middle of a copy while its grant is revoked, and one that is not disturbed by it.

namespace fabric::test::grants_process_test::grants_test {
namespace {

using namespace std::chrono_literals;
using shm::Child;
using shm::GuardKind;

constexpr uint64_t kArea = 4u << 20;  // many chunks, so that most of its time is inside a copy
constexpr std::byte kCanary{0xEE};
// The areas of the owner's region, each with a grant of its own.
enum Area : uint32_t { kRevoked, kKept, kOthers };
constexpr uint32_t kAreas = 3;

std::byte byte_of(uint32_t area) { return static_cast<std::byte>(0x11 * (area + 1)); }

/// The channel of the application.
struct Exchange {
  Note owner{};
  std::array<Note, 2> writers{};  ///< the victim and the other one
  struct OfArea {
    Note grant{};
    CounterKey key{};
    std::atomic<uint64_t> written{0};  ///< writes that completed with ok
    std::atomic<uint32_t> refused{0};  ///< writes that ended as under a revoked grant
  };
  std::array<OfArea, kAreas> areas{};
  std::atomic<uint32_t> granted{0}, finish{0};
  std::array<std::atomic<uint32_t>, 2> finished{};
  std::array<char, 128> failure{};
};

Config shm_config() {
  Config config;
  config.networks = {{.provider = "shm"}};
  config.log_level = LogLevel::kError;
  config.peer_timeout = 20s;  // silence ends nothing here
  return config;
}

/// A process that overwrites its areas without a pause.
class Writer {
 public:
  Writer(Exchange& exchange, uint32_t me) : exchange_(exchange), me_(me) {}

  void run(std::span<const uint32_t> areas) {
    auto engine = Engine::open(shm_config());
    if (!engine) return fail("open", engine.error());
    engine_.emplace(*std::move(engine));
    memory_.emplace(*engine_->allocate({.size_bytes = areas.size() * kArea}));
    exchange_.writers[me_].put(engine_->address());
    while (exchange_.granted.load() == 0) sched_yield();
    const auto owner = engine_->connect(exchange_.owner.get());
    if (!owner) return fail("connect", owner.error());
    std::vector<Target> targets;
    for (const uint32_t area : areas) {
      const uint64_t from = targets.size() * kArea;
      std::memset(memory_->bytes().data() + from, std::to_integer<int>(byte_of(area)), kArea);
      const auto region = engine_->import_region(*owner, exchange_.areas[area].grant.get());
      if (!region) return fail("import", region.error());
      targets.push_back({area, from, *region, *engine_->make_batch()});
    }
    while (exchange_.finish.load() == 0) {
      for (Target& target : targets) start(target);
      for (Target& target : targets) {
        if (!finish(target)) return;
      }
    }
    exchange_.finished[me_].store(1);
    for (;;) pause();  // the engine stays until the test ends
  }

 private:
  struct Target {
    uint32_t area = 0;
    uint64_t from = 0;
    RemoteRegion region{};
    Batch batch;
    Errc refusal = Errc::kOk;
  };
  void fail(const char* what, const Error& error) {
    std::snprintf(exchange_.failure.data(), exchange_.failure.size(), "writer %u: %s: %s: %s", me_,
                  what, to_string(error.code), error.what);
  }
  void start(Target& target) {
    target.refusal = engine_
                         ->submit(Write{.source = memory_->at(target.from),
                                        .target = target.region.at(target.area * kArea),
                                        .size_bytes = kArea,
                                        .imm = exchange_.areas[target.area].key,
                                        .batch = target.batch})
                         .error()
                         .code;
  }
  bool finish(Target& target) {
    Errc code = target.refusal;
    if (code == Errc::kOk) {
      code = engine_->wait(target.batch, 20s).error().code;
      if (auto ok = target.batch.reset(); !ok) return fail("reset", ok.error()), false;
    }
    const bool refused = code == Errc::kNotFound || code == Errc::kRemoteAccess;
    if (code == Errc::kOk) {
      exchange_.areas[target.area].written.fetch_add(1);
    } else if (refused && target.area == kRevoked) {
      exchange_.areas[target.area].refused.fetch_add(1);
    } else {
      return fail("write", {.code = code, .what = "of an area that was not revoked"}), false;
    }
    return true;
  }

  Exchange& exchange_;
  const uint32_t me_;
  std::optional<Engine> engine_{};
  std::optional<MemoryRegion> memory_{};
};

/// The completion of a Revoke, and the proof that may come later.
struct RevokeEvents {
  std::atomic<uint32_t> completed{0}, proved{0};
  Errc code = Errc::kOk;
  Remote remote = Remote::kUnknown;
  void on_completion(const Event& event) {
    code = event.code;
    remote = event.remote;
    completed.fetch_add(1);
  }
  void on_event(const Event& event) { proved.fetch_add(event.kind == EventKind::kFenceProved); }
};

/// The owner of the memory, in the test's process; its writers are children.
class Owner {
 public:
  explicit Owner(GuardKind kind) {
    const auto writer = [this, kind](uint32_t me, std::vector<uint32_t> areas) {
      return std::make_unique<Child>([this, kind, me, areas] {
        if (!shm::use_guard_kind(kind)) _exit(3);
        Writer(*exchange, me).run(areas);
      });
    };
    // Before there is an engine in this process.
    victim = writer(0, {kRevoked, kKept});
    other = writer(1, {kOthers});
    engine.emplace(*Engine::open(shm_config()));
    memory.emplace(*engine->allocate({.size_bytes = kAreas * kArea}));
    seen.emplace(*engine->subscribe(Notify::call<&RevokeEvents::on_event>(&events)));
  }

  void grant() {
    std::array<PeerId, 2> peers{};
    for (uint32_t i = 0; i < 2; ++i) {
      Child& child = i == 0 ? *victim : *other;
      ASSERT_TRUE(child.await([&] { return !exchange->writers[i].get().empty(); })) << failure();
      peers[i] = *engine->connect(exchange->writers[i].get());
    }
    exchange->owner.put(engine->address());
    for (uint32_t area = 0; area < kAreas; ++area) {
      const Grant grant = *memory->grant(peers[area == kOthers ? 1 : 0]);
      grants.push_back(grant.id);
      counters.push_back(*engine->make_counter());
      exchange->areas[area].key = counters.back().key();
      exchange->areas[area].grant.put(grant.desc);
    }
    exchange->granted.store(1);
    for (uint32_t area = 0; area < kAreas; ++area) ASSERT_TRUE(grows(area, 2)) << failure();
  }

  std::span<std::byte> bytes(uint32_t area) { return memory->bytes().subspan(area * kArea, kArea); }
  void clear(uint32_t area) {
    std::memset(bytes(area).data(), std::to_integer<int>(kCanary), kArea);
  }
  bool all(uint32_t area, std::byte value) {
    const std::byte* const first = bytes(area).data();
    return *first == value && std::memcmp(first, first + 1, kArea - 1) == 0;
  }
  /// Some of the bytes are there and some are not.
  bool half_written() {
    uint32_t there = 0;
    constexpr uint32_t kSamples = 64;
    for (uint32_t i = 0; i < kSamples; ++i) {
      const volatile std::byte& one = bytes(kRevoked)[i * (kArea / kSamples)];
      there += one == byte_of(kRevoked);
    }
    return there != 0 && there != kSamples;
  }
  bool grows(uint32_t area, uint64_t by) {
    const uint64_t goal = counters[area].count() + by;
    const auto limit = std::chrono::steady_clock::now() + 20s;
    while (counters[area].count() < goal) {
      if (std::chrono::steady_clock::now() > limit || exchange->failure[0] != 0) return false;
      std::this_thread::sleep_for(100us);
    }
    return true;
  }
  /// In the middle of a copy to the area whose grant will be revoked.
  void interrupt(int signal) {
    for (uint32_t tries = 0; tries < 200; ++tries) {
      clear(kRevoked);
      const auto limit = std::chrono::steady_clock::now() + 100ms;
      while (!half_written() && std::chrono::steady_clock::now() < limit) sched_yield();
      victim->stop();
      if (half_written()) {
        if (signal != SIGSTOP) victim->signal(signal);
        return;
      }
      victim->signal(SIGCONT);
    }
    FAIL() << "never in the middle of a copy; " << failure();
  }
  void revoke(uint32_t area, Timeout timeout) {
    events.completed = 0;
    ASSERT_TRUE(
        engine->submit(Revoke{.grant = grants[area],
                              .timeout = timeout,
                              .notify = Notify::call<&RevokeEvents::on_completion>(&events)}));
    ASSERT_TRUE(other->await([&] { return events.completed.load() == 1; }));
  }
  const char* failure() { return exchange->failure.data(); }

  RevokeEvents events;
  shm::Shared<Exchange> exchange;
  std::unique_ptr<Child> victim, other;
  std::optional<Engine> engine;
  std::optional<MemoryRegion> memory;
  std::optional<Subscription> seen;
  std::vector<GrantId> grants;
  std::vector<Counter> counters;
};

void revoke_of_a_stopped_writer(GuardKind kind) {
  Owner owner(kind);
  ASSERT_NO_FATAL_FAILURE(owner.grant());
  ASSERT_NO_FATAL_FAILURE(owner.interrupt(SIGSTOP));
  ASSERT_NO_FATAL_FAILURE(owner.revoke(kRevoked, 400ms));
  EXPECT_TRUE(owner.grows(kOthers, 2)) << "a writer that was not stopped; " << owner.failure();
  const bool proved = owner.events.code == Errc::kOk;
  if (proved) {
    EXPECT_EQ(owner.events.remote, Remote::kDelivered);
    owner.clear(kRevoked);
  } else {
    // Without restartable sequences it would go on where it was.
    EXPECT_EQ(kind, GuardKind::kPlain);
    EXPECT_EQ(owner.events.code, Errc::kTimeout);
    EXPECT_EQ(owner.events.remote, Remote::kUnknown);
    EXPECT_EQ(owner.events.proved.load(), 0u) << "proved while it was stopped inside a copy";
  }
  owner.clear(kKept);
  owner.victim->signal(SIGCONT);
  if (!proved) {
    ASSERT_TRUE(owner.other->await([&] { return owner.events.proved.load() == 1; }));
    owner.clear(kRevoked);
  }
  Exchange::OfArea& revoked = owner.exchange->areas[kRevoked];
  ASSERT_TRUE(
      owner.victim->await([&] { return revoked.refused.load() >= 3 || owner.failure()[0] != 0; }));
  EXPECT_TRUE(owner.all(kRevoked, kCanary)) << "late bytes";
  // The write that was under way may have begun before the bytes were cleared.
  EXPECT_TRUE(owner.grows(kKept, 3)) << owner.failure();
  EXPECT_TRUE(owner.all(kKept, byte_of(kKept))) << "the other grant does not work";
  EXPECT_TRUE(owner.grows(kOthers, 2)) << owner.failure();

  owner.exchange->finish.store(1);
  for (Child* child : {owner.victim.get(), owner.other.get()}) {
    const uint32_t i = child == owner.other.get();
    ASSERT_TRUE(child->await([&] { return owner.exchange->finished[i].load() == 1; }));
  }
  EXPECT_STREQ(owner.failure(), "");
  for (const uint32_t area : {kKept, kOthers}) {
    const uint64_t written = owner.exchange->areas[area].written.load();
    // A write may complete at its sender before it is counted here.
    EXPECT_TRUE(owner.counters[area].wait(written, 20s)) << area;
    EXPECT_EQ(owner.counters[area].count(), 0u) << "counted twice, area " << area;
  }
  EXPECT_TRUE(owner.all(kRevoked, kCanary)) << "late bytes";
}

void revoke_of_a_killed_writer(GuardKind kind, bool killed_first) {
  Owner owner(kind);
  ASSERT_NO_FATAL_FAILURE(owner.grant());
  ASSERT_NO_FATAL_FAILURE(owner.interrupt(killed_first ? SIGKILL : SIGSTOP));
  if (killed_first) {
    ASSERT_NO_FATAL_FAILURE(owner.revoke(kRevoked, 10s));
  } else {
    // While it has not replied, so that its death is the only proof.
    ASSERT_TRUE(owner.engine->submit(
        Revoke{.grant = owner.grants[kRevoked],
               .timeout = 10s,
               .notify = Notify::call<&RevokeEvents::on_completion>(&owner.events)}));
    owner.victim->signal(SIGKILL);
    ASSERT_TRUE(owner.other->await([&] { return owner.events.completed.load() == 1; }));
  }
  EXPECT_EQ(owner.events.code, Errc::kOk);
  EXPECT_EQ(owner.events.remote, Remote::kDelivered);
  owner.clear(kRevoked);
  EXPECT_TRUE(owner.grows(kOthers, 3)) << owner.failure();
  // Its other grant ends by a Revoke of its own, or has ended with the session.
  ASSERT_NO_FATAL_FAILURE(owner.revoke(kKept, 10s));
  EXPECT_EQ(owner.events.code, Errc::kOk);
  owner.clear(kKept);
  owner.victim->kill();
  owner.clear(kOthers);
  EXPECT_TRUE(owner.grows(kOthers, 3)) << owner.failure();
  EXPECT_TRUE(owner.all(kOthers, byte_of(kOthers)));
  EXPECT_TRUE(owner.all(kRevoked, kCanary) && owner.all(kKept, kCanary)) << "late bytes";
  EXPECT_STREQ(owner.failure(), "");
}

class GrantProcesses : public testing::TestWithParam<GuardKind> {
 protected:
  void SetUp() override {
    if (GetParam() == GuardKind::kPlain) return;
    if (shm::guard_kind() != GuardKind::kRestartable || !shm::fence_support().procfs) {
      GTEST_SKIP() << "this machine has no restartable sequences, or no procfs";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Guards, GrantProcesses,
                         testing::Values(GuardKind::kRestartable, GuardKind::kPlain),
                         [](const auto& kind) { return shm::name_of(kind.param); });

TEST_P(GrantProcesses, NothingLandsUnderARevokedGrantOfAStoppedWriter) {
  revoke_of_a_stopped_writer(GetParam());
}

TEST_P(GrantProcesses, NothingLandsUnderARevokedGrantOfAKilledWriter) {
  revoke_of_a_killed_writer(GetParam(), true);
}

TEST_P(GrantProcesses, ADeathProvesARevokeThatWaitsForAStoppedWriter) {
  revoke_of_a_killed_writer(GetParam(), false);
}

}  // namespace
}  // namespace fabric::test::grants_process_test::grants_test
