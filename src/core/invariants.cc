#include <algorithm>

#include "base/check.h"
#include "core/inflight.h"
#include "core/shard.h"

// Transfers::check_invariants(): recomputes every in-flight count from its records. Debug
// builds run it at the end of turns, when no call is in progress: nothing is staged, no OpHold
// exists, and every operation that is done has been completed. State lock held, on the worker.

namespace fabric::core {

#ifndef NDEBUG

/// What the records add up to, by path index, region slot, operation slot and cut target. Reused by
/// all checks of a thread, so that they allocate nothing in the steady state.
struct Transfers::InflightSums {
  std::vector<uint32_t> listed{};   ///< InflightWrites in the list of a path
  std::vector<uint32_t> batched{};  ///< entries of compact post batches on a path
  std::vector<uint64_t> bulk_bytes{};
  std::vector<uint32_t> by_region{};
  std::vector<uint32_t> by_op{};   ///< all zero between two checks
  uint64_t of_ops = 0;             ///< the sum of by_op
  std::vector<uint32_t> by_cut{};  ///< slices in flight or pending
  uint64_t in_doubt = 0;

  void begin(size_t paths, size_t ops, size_t cut_targets) {
    by_cut.assign(cut_targets, 0);
    listed.assign(paths, 0);
    batched.assign(paths, 0);
    bulk_bytes.assign(paths, 0);
    std::fill(by_region.begin(), by_region.end(), 0);
    by_op.resize(ops, 0);
    of_ops = in_doubt = 0;
  }
  void add_op(uint32_t slot, uint32_t n) {
    by_op[slot] += n;
    of_ops += n;
  }
  void add_region(uint32_t slot, uint32_t n) {
    if (slot >= by_region.size()) by_region.resize(slot + 1, 0);
    by_region[slot] += n;
  }
};

void Transfers::check_invariants() const {
  static thread_local InflightSums sums;
  sums.begin(paths_.size(), core_.ops.max(), cut_targets_.size());
  sum_post_batches(sums);
  sum_records(sums);
  check_paths(sums);
  check_rails(sums);
  check_regions(sums);
  check_ops(sums);
  check_pending();
  check_cut_targets(sums);
}

void Transfers::sum_post_batches(InflightSums& sums) const {
  uint64_t held = 0;
  post_batches_.each([&](const PostBatch& post_batch) FABRIC_REQUIRES(state_lock) {
    ++held;
    const uint32_t all = PostBatch::low_bits(post_batch.count);
    FABRIC_DCHECK((post_batch.inflight & ~all) == 0, "only entries are in flight");
    FABRIC_DCHECK((post_batch.with_imm & ~all) == 0, "only entries carry immediates");
    for (uint32_t bits = post_batch.inflight; bits != 0; bits &= bits - 1) {
      const uint32_t entry = post_batch.entry[static_cast<uint32_t>(std::countr_zero(bits))];
      if (!post_batch.compact) {
        const bool has_record = entry < inflight_.size() && inflight_[entry].op != kNone;
        FABRIC_DCHECK(has_record && !inflight_[entry].in_doubt, "an expanded entry has a record");
      } else if (post_batch.op == kNone) {
        FABRIC_DCHECK(core_.ops.at(entry).post_batch == post_batch.index,
                      "a write knows its batch");
      }
    }
    if (!post_batch.compact) return;  // sum_records() has its entries
    const uint32_t n = PostBatch::popcount(post_batch.inflight);
    FABRIC_DCHECK(core_.regions.at(post_batch.region_slot) == post_batch.region, "its source");
    for (uint32_t bits = post_batch.inflight; bits != 0; bits &= bits - 1) {
      const auto at = static_cast<uint32_t>(std::countr_zero(bits));
      const Path& path = post_batch.has_targets() ? *post_batch.targets[at].path : *post_batch.path;
      ++sums.batched[path.index];
    }
    sums.add_region(post_batch.region_slot, n);
    if (post_batch.op != kNone) sums.add_op(post_batch.op, n);
  });
  FABRIC_DCHECK(held == post_batches_.held(), "a post batch is given back with its last entry");
}

void Transfers::sum_records(InflightSums& sums) const {
  size_t free = 0;
  for (const InflightWrite& write : inflight_) {
    if (write.op == kNone) {
      ++free;
      continue;
    }
    if (write.op != kProbe) sums.add_op(write.op, 1);
    if (write.cut != kNone) ++sums.by_cut[write.cut];
    if (write.in_doubt) {
      ++sums.in_doubt;
      continue;
    }
    ++sums.listed[write.path];
    if (write.priority == Priority::kBulk) sums.bulk_bytes[write.path] += write.wr.size_bytes;
    if (write.region_slot != kNone) sums.add_region(write.region_slot, 1);
  }
  FABRIC_DCHECK(free == free_inflight_count_, "the free list has every free record");
}

void Transfers::check_paths(const InflightSums& sums) const {
  uint64_t in_doubt = 0;
  for (const auto& path : paths_) {
    uint32_t listed = 0, last = kNone;
    uint64_t seq = 0;
    for (uint32_t i = path->first_inflight; i != kNone; i = inflight_[i].next) {
      const InflightWrite& write = inflight_[i];
      FABRIC_DCHECK(write.op != kNone && !write.in_doubt, "only what is in flight is listed");
      FABRIC_DCHECK(write.path == path->index && write.prev == last, "the list is consistent");
      FABRIC_DCHECK(write.seq > seq, "the list is in posting order");
      seq = write.seq;
      last = i;
      ++listed;
    }
    FABRIC_DCHECK(path->last_inflight == last, "the list is consistent");
    FABRIC_DCHECK(listed == sums.listed[path->index], "every record in flight is listed");
    FABRIC_DCHECK(path->inflight == listed + sums.batched[path->index], "in flight on the path");
    FABRIC_DCHECK(path->imms_done <= path->imms_posted, "only posted writes are acknowledged");
    for (const uint32_t cookie : path->in_doubt) {
      FABRIC_DCHECK(inflight_[cookie].in_doubt, "a write in doubt is marked");
    }
    in_doubt += path->in_doubt.size();
  }
  for (const auto& broken : broken_) {
    for (const uint32_t cookie : broken->writes) {
      FABRIC_DCHECK(inflight_[cookie].in_doubt, "a write in doubt is marked");
    }
    in_doubt += broken->writes.size();
  }
  FABRIC_DCHECK(in_doubt == sums.in_doubt, "a write in doubt is in one list");
}

void Transfers::check_rails(const InflightSums& sums) const {
  uint32_t listed_total = 0;
  for (const NetworkSlot& network : core_.networks) {
    for (const RailSlot& rail : network.rails) {
      uint32_t inflight = 0, listed = 0;
      uint64_t bulk_bytes = 0;
      for (const auto& path : paths_) {
        if (path->state == Path::State::kFree) continue;
        if (path->network != rail.network || path->rail != rail.index) continue;
        inflight += path->inflight;
        bulk_bytes += sums.bulk_bytes[path->index];
      }
      FABRIC_DCHECK(rail.inflight == inflight, "in flight on the rail");
      FABRIC_DCHECK(rail.bulk_bytes == bulk_bytes, "bulk bytes in flight on the rail");
      for (uint32_t p = 0; p < 3; ++p) {
        uint32_t last = kNone;
        for (uint32_t i = rail.first_active[p]; i != kNone; i = paths_[i]->next_active[p]) {
          const Path& path = *paths_[i];
          FABRIC_DCHECK(path.network == rail.network && path.rail == rail.index, "its own path");
          FABRIC_DCHECK(path.active[p], "an active path is marked");
          last = i;
          ++listed;
        }
        FABRIC_DCHECK(rail.last_active[p] == last, "the list of active paths is consistent");
      }
      FABRIC_DCHECK(rail.active_paths == listed, "how many paths are active");
      listed_total += listed;
      for (const WriteOp& wr : rail.backlog) {
        FABRIC_DCHECK(inflight_[wr.cookie].op != kNone, "a refused write is in flight");
        FABRIC_DCHECK(inflight_[wr.cookie].imms_before == UINT64_MAX, "and not accepted");
      }
      FABRIC_DCHECK(rail.staged_count == 0 && rail.open_post_batch == nullptr,
                    "all staged is posted");
    }
  }
  FABRIC_DCHECK(active_total_ == listed_total && staged_rails_.empty(),
                "how many paths are active");
}

void Transfers::check_regions(const InflightSums& sums) const {
  for (uint32_t slot = 0; core_.regions.at(slot) != nullptr; ++slot) {
    const uint32_t inflight = slot < sums.by_region.size() ? sums.by_region[slot] : 0;
    FABRIC_DCHECK(core_.regions.at(slot)->inflight == inflight, "in flight from the region");
  }
}

void Transfers::check_ops(InflightSums& sums) const {
  for (uint32_t i = core_.running_head; i != kNone; i = core_.ops.at(i).running_next) {
    const Op& op = core_.ops.at(i);
    FABRIC_DCHECK(op.inflight == sums.by_op[i], "in flight of the operation");
    sums.of_ops -= sums.by_op[i];
    sums.by_op[i] = 0;
    if (!is_transfer(op.kind)) continue;
    FABRIC_DCHECK(op.holds == 0, "no hold outlives its function");
    FABRIC_DCHECK(op.parts_completed < op.parts || op.inflight > 0, "what is done was completed");
    FABRIC_DCHECK(op.parts_delivered + op.parts_failed == op.parts_completed, "the parts add up");
    FABRIC_DCHECK(op.slices_completed <= op.slices, "the slices add up");
  }
  FABRIC_DCHECK(sums.of_ops == 0, "only running operations have writes in flight");
}

void Transfers::check_cut_targets(InflightSums& sums) const {
  if (cut_targets_.held() == 0) return;
  for (uint32_t i = core_.running_head; i != kNone; i = core_.ops.at(i).running_next) {
    for (uint32_t at = core_.ops.at(i).pending; at != kNone; at = pending_.at(at).op_next) {
      const PendingFragment& fragment = pending_.at(at);
      if (fragment.cut == kNone) continue;
      sums.by_cut[fragment.cut] +=
          slice_count(fragment.size_bytes, cut_targets_.at(fragment.cut).slice_bytes);
    }
  }
  for (uint32_t i = 0; i < sums.by_cut.size(); ++i) {
    const CutTarget& target = cut_targets_.at(i);
    const uint32_t accounted = target.used ? target.slices - target.slices_completed : 0;
    FABRIC_DCHECK(sums.by_cut[i] == accounted, "the slices of a cut target add up");
  }
}

/// Returns the length.
uint64_t Transfers::check_queue(const PendingQueue& queue) const {
  uint64_t n = 0;
  uint32_t last = kNone;
  for (uint32_t i = queue.head; i != kNone; i = pending_.at(i).next) {
    const PendingFragment& fragment = pending_.at(i);
    FABRIC_DCHECK(fragment.queue == &queue && fragment.prev == last, "the queue is consistent");
    last = i;
    ++n;
  }
  FABRIC_DCHECK(queue.tail == last, "the queue is consistent");
  return n;
}

void Transfers::check_pending() const {
  uint64_t queued = 0, of_ops = 0;
  for (const auto& path : paths_) {
    for (const PendingQueue& queue : path->queue) queued += check_queue(queue);
  }
  for (const auto& broken : broken_) queued += check_queue(broken->partly_posted);
  for (uint32_t i = core_.running_head; i != kNone; i = core_.ops.at(i).running_next) {
    uint32_t last = kNone;
    for (uint32_t at = core_.ops.at(i).pending; at != kNone; at = pending_.at(at).op_next) {
      const PendingFragment& fragment = pending_.at(at);
      FABRIC_DCHECK(fragment.op == i && fragment.op_prev == last, "the list is consistent");
      last = at;
      ++of_ops;
      if (fragment.path != kNone) continue;
      FABRIC_DCHECK(fragment.queue == &core_.peers.at(fragment.peer)->waiting,
                    "waits for its peer");
      ++queued;
    }
  }
  FABRIC_DCHECK(queued == pending_.held(), "every pending fragment is in a queue");
  FABRIC_DCHECK(of_ops == pending_.held(),
                "every pending fragment is in the list of its operation");
}

#endif

}  // namespace fabric::core
