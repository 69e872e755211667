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
  Network network = need(
      parse_network(fmt::format("{} {}", plan.network, fmt::join(plan.devices, " "))), "--devices");
  network.rails_max = plan.rails;
  // The rails of shm are its lanes, of which there is one by default.
  if (plan.network == "shm" && plan.devices.empty()) {
    network.options = shm::Options{.lanes = plan.rails};
  }
  Config config{.networks = {std::move(network)}};
  // One peer may have 7/8 of ops_max in flight, from 64 on. For streams of writes ops_max is the
  // window; the other benchmarks bound theirs with a batch.
  const uint32_t window = plan.window < 56 ? plan.window : (plan.window * 8 + 6) / 7;
  const bool stream = plan.benchmark == Benchmark::kWrite || plan.benchmark == Benchmark::kRate;
  config.ops_max = stream ? window : std::max(config.ops_max, window);
  config.peers_max = std::max(config.peers_max, 2 * plan.targets);
  return config;
}

/// Heap memory as inference engines allocate it: in huge pages if the system has them.
BenchEngine::Heap take_heap(uint64_t bytes) {
  const uint64_t align = bytes < kHugePageBytes ? kPageBytes : kHugePageBytes;
  const uint64_t whole = (bytes + align - 1) / align * align;
  BenchEngine::Heap heap(static_cast<std::byte*>(std::aligned_alloc(align, whole)));
  if (heap == nullptr) throw BenchError(fmt::format("cannot allocate {} bytes", bytes));
  // Advice only: without huge pages there are more TLB misses.
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
  Engine engine = need(Engine::open(config_of(plan_), runtime_), "cannot open an engine");
  BenchEngine::Heap heap = plan_.registered ? take_heap(bytes) : nullptr;
  MemoryRegion memory =
      need(heap ? engine.register_memory({.address = heap.get(), .size_bytes = bytes})
                : engine.allocate({.size_bytes = bytes}),
           "cannot get memory");
  const std::span<std::byte> slot = heap ? std::span(heap.get(), bytes) : memory.bytes();
  Counter counter = need(engine.make_counter(), "cannot make a counter");
  return {std::move(engine), std::move(heap), std::move(memory), std::move(counter), slot};
}

/// For threaded engines: blocks on the counter, in slices, to check the other side in between.
void Side::wait_for_counts(BenchEngine& local, uint64_t n) {
  using namespace std::chrono_literals;
  for (;;) {
    const auto done = local.counter.wait(n, 100ms);
    if (done) return;
    if (done.error().code != Errc::kTimeout) need<void>(done.error(), "waiting for counts");
    check_peer();
  }
}

void Side::count_arrived_imms() {
  check_peer();  // a failure may have been reported after the last check
  for (BenchEngine& local : engines_) {
    if (local.awaited > 0 && !local.counter.try_take(local.awaited)) {
      throw BenchError("counts that arrived cannot be taken");
    }
    local.awaited = 0;
    if (local.counter.count() > 0) throw BenchError("more writes were counted than sent");
  }
}

JsonSocket::Idle Side::idle() {
  if (plan_.threaded) return {};
  return [this] { runtime_->turn(); };
}

void Side::on_event(const Event& event) {
  const bool lost =
      event.kind == EventKind::kPeer && static_cast<PeerState>(event.value) == PeerState::kLost;
  if (!lost && event.kind != EventKind::kUnhandled) return;
  const Errc why = event.code == Errc::kOk ? Errc::kPeerLost : event.code;
  failure_.store(why,
                 std::memory_order_relaxed);  // read by check_peer(); publishes no other data
}

/// A number that changes with every sign of progress.
uint64_t Side::progress() const {
  uint64_t sum = moves_;
  for (const BenchEngine& local : engines_) sum += local.counter.count();
  return sum;
}

/// The slow part of waiting: throws if an engine failed, the other side is gone or nothing moves.
void Side::check_peer() {
  const Errc why = failure_.load(std::memory_order_relaxed);
  if (why != Errc::kOk || socket_.closed_by_peer()) {
    // Prefer the other side's own message, if it sent one, to the engine's code.
    socket_.receive_error(1);
    throw BenchError(fmt::format("the other side's engine: {}", to_string(why)));
  }
  if (const uint64_t now = progress(); now != progress_at_check_) {
    progress_at_check_ = now;
    last_progress_ = Clock::now();
  } else if (Clock::now() - last_progress_ > std::chrono::duration<double>(kIdleSecondsMax)) {
    throw BenchError(fmt::format("no progress for {:.0f} s", kIdleSecondsMax));
  }
  std::this_thread::yield();  // the two sides may share a core
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
