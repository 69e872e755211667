#include "side.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fabric::tool::bench {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = 2u << 20;

Config config_of(const BenchPlan& plan) {
  Network network{.provider = plan.network, .devices = plan.devices, .rails_max = plan.rails};
  // A lane is what the network of one host has for a rail; one that is not named is not opened.
  const bool lanes = plan.network == "shm" && plan.devices.empty();
  for (uint32_t i = 0; lanes && i < plan.rails; ++i) {
    network.devices.push_back(fmt::format("lane{}", i));
  }
  Config config{.networks = {std::move(network)}};
  // One peer may have 7/8 of them once there are 64. In a stream of writes this is the window; the
  // other verbs count theirs themselves, with a batch.
  const uint32_t window = plan.window < 56 ? plan.window : (plan.window * 8 + 6) / 7;
  const bool stream = plan.benchmark == Benchmark::kWrite || plan.benchmark == Benchmark::kRate;
  config.ops_max = stream ? window : std::max(config.ops_max, window);
  config.peers_max = std::max(config.peers_max, 2 * plan.targets);
  return config;
}

/// As allocators of inference engines take theirs: in huge pages where the system has them.
BenchEngine::Heap take_heap(uint64_t bytes) {
  const uint64_t align = bytes < kHugePageBytes ? kPageBytes : kHugePageBytes;
  const uint64_t whole = (bytes + align - 1) / align * align;
  BenchEngine::Heap heap(static_cast<std::byte*>(std::aligned_alloc(align, whole)));
  if (heap == nullptr) throw BenchError(fmt::format("no {} bytes of memory", bytes));
  // Advice: without huge pages it is the same memory, only slower to walk.
  [[maybe_unused]] const int advised = ::madvise(heap.get(), whole, MADV_HUGEPAGE);
  std::memset(heap.get(), 0, bytes);  // so that no page fault is measured
  return heap;
}

}  // namespace

Side::Side(const BenchPlan& plan, JsonSocket& socket, uint32_t engines, uint64_t bytes)
    : plan_(plan), socket_(socket) {
  if (!plan.threaded) runtime_ = std::make_shared<InlineRuntime>();
  const uint64_t whole = std::max<uint64_t>(1, (bytes + kPageBytes - 1) / kPageBytes) * kPageBytes;
  engines_.reserve(engines);
  for (uint32_t i = 0; i < engines; ++i) {
    engines_.push_back(open_engine(whole));
    subscriptions_.push_back(
        need(engines_.back().engine.subscribe(Notify::call<&Side::on_event>(this)), "subscribe"));
  }
}

BenchEngine Side::open_engine(uint64_t bytes) {
  Engine engine = need(Engine::open(config_of(plan_), runtime_), "no engine");
  BenchEngine::Heap heap = plan_.registered ? take_heap(bytes) : nullptr;
  MemoryRegion memory =
      need(heap ? engine.register_memory({.address = heap.get(), .size_bytes = bytes})
                : engine.allocate({.size_bytes = bytes}),
           "no memory");
  const std::span<std::byte> slot = heap ? std::span(heap.get(), bytes) : memory.bytes();
  Counter counter = need(engine.make_counter(), "no counter");
  return {std::move(engine), std::move(heap), std::move(memory), std::move(counter), slot};
}

/// With threads of their own the engines wake us: in slices, to check_peer at the line in between.
void Side::wait_for_counts(BenchEngine& local, uint64_t n) {
  using namespace std::chrono_literals;
  for (;;) {
    const auto done = local.counter.wait(n, 100ms);
    if (done) return;
    if (done.error().code != Errc::kTimeout) need<void>(done.error(), "waiting for counts");
    check_peer();
  }
}

void Side::take_counts() {
  check_peer();  // what failed may have been told only now
  for (BenchEngine& local : engines_) {
    if (local.awaited > 0 && !local.counter.try_take(local.awaited)) {
      throw BenchError("what was counted cannot be taken");
    }
    local.awaited = 0;
    if (local.counter.count() > 0) throw BenchError("more was counted than was sent");
  }
}

nlohmann::json Side::receive(double seconds) {
  if (plan_.threaded) return socket_.receive(seconds);
  return socket_.receive(seconds, [this] { runtime_->turn(); });
}

void Side::on_event(const Event& event) {
  const bool lost =
      event.kind == EventKind::kPeer && static_cast<PeerState>(event.value) == PeerState::kLost;
  if (!lost && event.kind != EventKind::kUnhandled) return;
  const Errc why = event.code == Errc::kOk ? Errc::kPeerLost : event.code;
  failure_.store(why, std::memory_order_relaxed);  // read by check_peer(); nothing else goes with it
}

/// A number that changes while there is something to wait for.
uint64_t Side::progress() const {
  uint64_t sum = moves_;
  for (const BenchEngine& local : engines_) sum += local.counter.count();
  return sum;
}

/// The slow part of waiting: whether it still makes sense to wait.
void Side::check_peer() {
  const Errc why = failure_.load(std::memory_order_relaxed);
  if (why != Errc::kOk || socket_.broken()) {
    // Its own words are better than what the engine can know; when there are none, it has gone.
    (void)socket_.receive(1);
    throw BenchError(fmt::format("the other side's engine: {}", to_string(why)));
  }
  if (const uint64_t now = progress(); now != progress_at_check_) {
    progress_at_check_ = now;
    last_progress_ = Clock::now();
  } else if (Clock::now() - last_progress_ > std::chrono::duration<double>(kIdleSecondsMax)) {
    throw BenchError(fmt::format("nothing note_progress for {:.0f} s", kIdleSecondsMax));
  }
  std::this_thread::yield();  // two that poll may have to share a core
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace fabric::tool::bench
