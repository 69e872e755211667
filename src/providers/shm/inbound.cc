#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "providers/shm/handles.h"

// Inbound traffic: immediates of writes whose bytes have landed, and pull requests. The contents of
// a ring are untrusted.

namespace fabric::shm {

namespace {
constexpr uint32_t kPullBatch = 64;  ///< pull requests per system call
}

/// A pull request that is being served.
struct ShmRail::PullJob {
  uint64_t position = 0;
  Extent extent{};
  uint64_t size_bytes = 0;  ///< of the request; `extent` may be a part
  uint32_t imm = 0;
  bool has_imm = false;
  bool bounced = false;
  PullRequest::State state = PullRequest::kPublished;  ///< kPublished: not read yet
};

uint32_t ShmRail::take_imms(InPath& path, std::span<RailEvent> out) noexcept {
  if (out.empty()) return 0;
  const uint64_t before = path.imms_taken;
  uint32_t n = 0;
  uint64_t word = 0;
  // At most one lap per call: equal immediates merge into one event, so `out` does not bound it.
  for (bool more = true; more && path.imms_taken - before < Ring::kImms;) {
    // Up to the end of the lap; within it all words have the same upper half.
    const uint64_t at = path.imms_taken % Ring::kImms;
    const uint64_t lap = Ring::imm_word(path.imms_taken, 0) >> 32;
    const std::atomic<uint64_t>* slot = &path.ring->imms[at];
    const std::atomic<uint64_t>* const first = slot;
    const std::atomic<uint64_t>* const last = slot + (Ring::kImms - at);
    for (; slot != last; ++slot) {
      const uint64_t previous = word;
      // Pairs with the commit of a section: the bytes have landed.
      word = slot->load(std::memory_order_acquire);
      if (word >> 32 != lap) break;
      if (n != 0 && static_cast<uint32_t>(word) == static_cast<uint32_t>(previous)) {
        ++out[n - 1].value;  // paged writes repeat one immediate
        continue;
      }
      if (n == out.size()) break;
      out[n++] = {
          .kind = RailEvent::Kind::kImm, .imm = static_cast<uint32_t>(word), .path = path.id};
    }
    more = slot == last;
    path.imms_taken += static_cast<uint64_t>(slot - first);
  }
  if (n == 0) return 0;
  path.imms_delivered += path.imms_taken - before;
  // Pairs with imm_room(): the words may be overwritten.
  path.ring->imms_taken.store(path.imms_taken, std::memory_order_release);
  imms_freed(path, before);
  return n;
}

/// Wakes a sender that may sleep because the ring was full. `before`: imms_taken until now. A
/// sender that waits for room sleeps only if it has filled the last free slot and then, after the
/// fence, has read that value. Either its last check reads the new one, or the slot is filled here.
void ShmRail::imms_freed(InPath& path, uint64_t before) noexcept {
  path.from->publication_fence();
  const uint64_t last = before + Ring::kImms - 1;
  const uint64_t word = path.ring->imms[last % Ring::kImms].load(std::memory_order_relaxed);
  // Or it has been filled again since. Untrusted: a wrong lap delays the sender that wrote it.
  const auto lap = static_cast<uint32_t>(Ring::imm_word(last, 0) >> 32);
  if (static_cast<int32_t>(static_cast<uint32_t>(word >> 32) - lap) >= 0) {
    path.from->wake_if_asleep();
  }
}

/// Takes the request at `position` and validates it. False: there is none, or the budget is used
/// up.
bool ShmRail::begin_pull(InPath& path, uint64_t position, PullJob& job) noexcept {
  PullRequest& request = path.ring->pulls[position % Ring::kPulls];
  // Pairs with publish_pull().
  uint64_t word = request.word.load(std::memory_order_acquire);
  job = {};
  job.position = position;
  if (word == PullRequest::word_of(position, PullRequest::kWithdrawn) ||
      word == PullRequest::word_of(position, PullRequest::kAbandoned)) {
    job.state = PullRequest::kWithdrawn;
    return true;
  }
  // A request that takes several polls is already in kTaken.
  if (word != PullRequest::word_of(position, PullRequest::kTaken)) {
    if (word != PullRequest::word_of(position, PullRequest::kPublished)) return false;
    if (!request.word.compare_exchange_strong(
            word, PullRequest::word_of(position, PullRequest::kTaken), std::memory_order_acq_rel,
            std::memory_order_acquire)) {
      job.state = PullRequest::kWithdrawn;  // between the load and the exchange
      return word == PullRequest::word_of(position, PullRequest::kWithdrawn);
    }
  }
  const uint64_t rkey = request.rkey.load(std::memory_order_relaxed);
  const uint64_t target = request.target.load(std::memory_order_relaxed);
  const uint64_t source = request.source.load(std::memory_order_relaxed);
  const uint32_t flags = request.flags.load(std::memory_order_relaxed);
  job.size_bytes = request.size_bytes.load(std::memory_order_relaxed);
  job.imm = request.imm.load(std::memory_order_relaxed);
  job.has_imm = (flags & PullRequest::kHasImm) != 0;
  job.bounced = (flags & PullRequest::kBounced) != 0;
  std::byte* const target_address = network_.rkeys().resolve(
      {static_cast<uint32_t>(rkey), static_cast<uint32_t>(rkey >> 32)}, target, job.size_bytes);
  const bool outside =
      job.bounced && (source > Ring::kBounceBytes || job.size_bytes > Ring::kBounceBytes - source);
  // pulled_bytes >= size_bytes: an empty request, or the sender changed the size while it was
  // served.
  if (target_address == nullptr || outside || path.pulled_bytes >= job.size_bytes) {
    job.state = PullRequest::kRefused;
    return true;
  }
  const uint64_t part_bytes = std::min(job.size_bytes - path.pulled_bytes, copy_budget_);
  if (part_bytes == 0) {
    copying_ = true;
    return false;
  }
  job.extent = {source + path.pulled_bytes, target_address + path.pulled_bytes, part_bytes};
  copy_budget_ -= part_bytes;
  if (job.bounced) {
    std::memcpy(job.extent.target, path.ring->bounce.data() + job.extent.source, part_bytes);
    job.state = PullRequest::kDone;
  }
  return true;
}

uint32_t ShmRail::take_pulls(InPath& path, std::span<RailEvent> out) noexcept {
  network_.take_writer_slot();
  std::array<PullJob, kPullBatch> jobs;
  std::array<Extent, kPullBatch> extents;
  uint32_t n = 0;
  for (bool more = true; more && n < out.size();) {
    const auto room = std::min<size_t>(kPullBatch, out.size() - n);
    uint32_t count = 0, to_read = 0;
    while (count < room && (more = begin_pull(path, path.pulls_taken + count, jobs[count]))) {
      const PullJob& job = jobs[count++];
      if (job.state == PullRequest::kPublished) extents[to_read++] = job.extent;
      // A part of a request: the rest follows with the next budget.
      if (path.pulled_bytes + job.extent.bytes < job.size_bytes &&
          job.state != PullRequest::kRefused && job.state != PullRequest::kWithdrawn) {
        more = false;
        break;
      }
      if (path.pulled_bytes != 0) break;  // the last part of a long request is its own batch
    }
    if (count == 0) break;
    if (to_read != 0 && !path.from->puller().read(std::span(extents).first(to_read))) {
      // One of them cannot be read: retries each alone.
      for (PullJob& job : std::span(jobs).first(count)) {
        if (job.state != PullRequest::kPublished) continue;
        if (!path.from->puller().read(std::span(&job.extent, 1)))
          job.state = PullRequest::kUnreadable;
      }
    }
    finish_pulls(path, std::span(jobs).first(count), out, n);
    if (path.lost) break;
  }
  return n;
}

/// Sets the final states of the batch and delivers its immediates.
void ShmRail::finish_pulls(InPath& path, std::span<PullJob> jobs, std::span<RailEvent> out,
                           uint32_t& n) noexcept {
  // If the sender is dead, the bytes may have come from another process with its pid.
  if (path.from->check_dead()) {
    path.lost = true;
    return;
  }
  for (PullJob& job : jobs) {
    if (job.state == PullRequest::kPublished) job.state = PullRequest::kDone;
    if (job.state == PullRequest::kDone && path.pulled_bytes + job.extent.bytes < job.size_bytes) {
      path.pulled_bytes += job.extent.bytes;
      copying_ = true;
      break;
    }
    path.pulled_bytes = 0;
    ++path.pulls_taken;
    if (job.state == PullRequest::kWithdrawn) continue;
    // Pairs with retire_pulls(). Fails if the sender abandoned it: then no immediate is delivered.
    uint64_t word = PullRequest::word_of(job.position, PullRequest::kTaken);
    PullRequest& request = path.ring->pulls[job.position % Ring::kPulls];
    const bool ours =
        request.word.compare_exchange_strong(word, PullRequest::word_of(job.position, job.state),
                                             std::memory_order_acq_rel, std::memory_order_relaxed);
    if (!ours || job.state != PullRequest::kDone || !job.has_imm) continue;
    out[n++] = {.kind = RailEvent::Kind::kImm, .imm = job.imm, .path = path.id};
    ++path.imms_delivered;
  }
  path.from->wake_if_asleep();
}

}  // namespace fabric::shm
