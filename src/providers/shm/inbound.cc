#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "providers/shm/handles.h"

// What arrives: counts of writes whose bytes are in place, and bytes that are to be fetched.
// Everything in a ring is from outside.

namespace fabric::shm {

namespace {
constexpr uint32_t kJobsMax = 64;  ///< orders in one system call
}

/// An order that is being fetched.
struct ShmRail::Job {
  uint64_t position = 0;
  Stretch stretch{};
  uint64_t size_bytes = 0;  ///< of the whole order
  uint32_t imm = 0;
  bool counted = false;
  bool bounced = false;
  Order::State end = Order::kPublished;  ///< kPublished: to be fetched
};

uint32_t ShmRail::take_counts(InPath& path, std::span<WireEvent> out) noexcept {
  if (out.empty()) return 0;
  const uint64_t before = path.counts;
  uint32_t n = 0;
  uint64_t word = 0;
  // A poll is bounded, and all of this may be one event: no more than the ring holds.
  for (bool more = true; more && path.counts - before < Ring::kCounts;) {
    // Up to the end of the lap, in which all of them have the same upper half.
    const uint64_t at = path.counts % Ring::kCounts;
    const uint64_t lap = Ring::count_word(path.counts, 0) >> 32;
    const std::atomic<uint64_t>* slot = &path.ring->counts[at];
    const std::atomic<uint64_t>* const first = slot;
    const std::atomic<uint64_t>* const last = slot + (Ring::kCounts - at);
    for (; slot != last; ++slot) {
      const uint64_t previous = word;
      // Pairs with the commit of a section: the bytes are in place.
      word = slot->load(std::memory_order_acquire);
      if (word >> 32 != lap) break;
      if (n != 0 && static_cast<uint32_t>(word) == static_cast<uint32_t>(previous)) {
        ++out[n - 1].value;  // paged writes come as runs of one key
        continue;
      }
      if (n == out.size()) break;
      out[n++] = {
          .kind = WireEvent::Kind::kImm, .imm = static_cast<uint32_t>(word), .path = path.id};
    }
    more = slot == last;
    path.counts += static_cast<uint64_t>(slot - first);
  }
  if (n == 0) return 0;
  path.immediates += path.counts - before;
  // Pairs with count_room(): the words may be written again.
  path.ring->counts_taken.store(path.counts, std::memory_order_release);
  path.from->wake_if_asleep();
  return n;
}

/// Looks at the next order and makes it ours. False: there is none, or not now.
bool ShmRail::begin_job(InPath& path, uint64_t position, Job& job) noexcept {
  Order& order = path.ring->orders[position % Ring::kOrders];
  // Pairs with publish().
  uint64_t word = order.word.load(std::memory_order_acquire);
  job = {};
  job.position = position;
  if (word == Order::word_of(position, Order::kWithdrawn) ||
      word == Order::word_of(position, Order::kAbandoned)) {
    job.end = Order::kWithdrawn;
    return true;
  }
  // An order that takes several polls is ours already.
  if (word != Order::word_of(position, Order::kTaken)) {
    if (word != Order::word_of(position, Order::kPublished)) return false;
    if (!order.word.compare_exchange_strong(word, Order::word_of(position, Order::kTaken),
                                            std::memory_order_acq_rel, std::memory_order_acquire)) {
      job.end = Order::kWithdrawn;  // that moment
      return word == Order::word_of(position, Order::kWithdrawn);
    }
  }
  const uint64_t key = order.key.load(std::memory_order_relaxed);
  const uint64_t target = order.target.load(std::memory_order_relaxed);
  const uint64_t source = order.source.load(std::memory_order_relaxed);
  const uint32_t flags = order.flags.load(std::memory_order_relaxed);
  job.size_bytes = order.size_bytes.load(std::memory_order_relaxed);
  job.imm = order.imm.load(std::memory_order_relaxed);
  job.counted = (flags & Order::kCounted) != 0;
  job.bounced = (flags & Order::kBounced) != 0;
  std::byte* const place = network_.keys().place(
      {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}, target, job.size_bytes);
  const bool outside =
      job.bounced && (source > Ring::kBounceBytes || job.size_bytes > Ring::kBounceBytes - source);
  // Nothing is left only of an order for nothing, or one that was changed behind our look.
  if (place == nullptr || outside || path.fetched >= job.size_bytes) {
    job.end = Order::kRefused;
    return true;
  }
  const uint64_t stretch = std::min(job.size_bytes - path.fetched, budget_);
  if (stretch == 0) {
    copying_ = true;
    return false;
  }
  job.stretch = {source + path.fetched, place + path.fetched, stretch};
  budget_ -= stretch;
  if (job.bounced) {
    std::memcpy(job.stretch.target, path.ring->bounce.data() + job.stretch.source, stretch);
    job.end = Order::kDone;
  }
  return true;
}

uint32_t ShmRail::take_orders(InPath& path, std::span<WireEvent> out) noexcept {
  network_.show_life();
  std::array<Job, kJobsMax> jobs;
  std::array<Stretch, kJobsMax> stretches;
  uint32_t n = 0;
  for (bool more = true; more && n < out.size();) {
    const auto room = std::min<size_t>(kJobsMax, out.size() - n);
    uint32_t count = 0, fetched = 0;
    while (count < room && (more = begin_job(path, path.orders + count, jobs[count]))) {
      const Job& job = jobs[count++];
      if (job.end == Order::kPublished) stretches[fetched++] = job.stretch;
      // A part of an order: the rest comes with the next budget.
      if (path.fetched + job.stretch.bytes < job.size_bytes && job.end != Order::kRefused &&
          job.end != Order::kWithdrawn) {
        more = false;
        break;
      }
      if (path.fetched != 0) break;  // the end of a long one stands alone
    }
    if (count == 0) break;
    if (fetched != 0 && !path.from->puller().read(std::span(stretches).first(fetched))) {
      // One of them is bad: the others are as good as before.
      for (Job& job : std::span(jobs).first(count)) {
        if (job.end != Order::kPublished) continue;
        if (!path.from->puller().read(std::span(&job.stretch, 1))) job.end = Order::kUnread;
      }
    }
    finish_orders(path, std::span(jobs).first(count), out, n);
    if (path.lost) break;
  }
  return n;
}

/// Counts what was fetched, and says so.
void ShmRail::finish_orders(InPath& path, std::span<Job> jobs, std::span<WireEvent> out,
                            uint32_t& n) noexcept {
  // Read from a process that is gone by now, the bytes may have been somebody else's.
  if (path.from->look_for_death()) {
    path.lost = true;
    return;
  }
  for (Job& job : jobs) {
    if (job.end == Order::kPublished) job.end = Order::kDone;
    if (job.end == Order::kDone && path.fetched + job.stretch.bytes < job.size_bytes) {
      path.fetched += job.stretch.bytes;
      copying_ = true;
      break;
    }
    path.fetched = 0;
    ++path.orders;
    if (job.end == Order::kWithdrawn) continue;
    // Pairs with collect_orders(). What its sender has given up meanwhile is not counted.
    uint64_t word = Order::word_of(job.position, Order::kTaken);
    Order& order = path.ring->orders[job.position % Ring::kOrders];
    const bool ours =
        order.word.compare_exchange_strong(word, Order::word_of(job.position, job.end),
                                           std::memory_order_acq_rel, std::memory_order_relaxed);
    if (!ours || job.end != Order::kDone || !job.counted) continue;
    out[n++] = {.kind = WireEvent::Kind::kImm, .imm = job.imm, .path = path.id};
    ++path.immediates;
  }
  path.from->wake_if_asleep();
}

}  // namespace fabric::shm
