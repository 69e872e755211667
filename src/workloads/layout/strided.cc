#include <algorithm>
#include <cstring>

#include <fabric/layout.h>

namespace fabric::layout {

IndexRange intersect(IndexRange a, IndexRange b) noexcept {
  const uint64_t begin = std::max(a.begin, b.begin);
  const uint64_t end = std::min(a.begin + a.count, b.begin + b.count);
  return {begin, end > begin ? end - begin : 0};
}

Result<ShardRange> shard(uint64_t total, uint32_t rank, uint32_t size) {
  if (total == 0 || total > UINT32_MAX) return fail(Errc::kInvalidArgument, "total");
  if (size == 0) return fail(Errc::kInvalidArgument, "size: 0 ranks");
  if (rank >= size) return fail(Errc::kInvalidArgument, "rank: not below size");
  if (total % size == 0) {
    const uint64_t share = total / size;
    return ShardRange{.range = {rank * share, share}};
  }
  if (size % total != 0) {
    return fail(Errc::kUnsupported, "total: neither divides size nor is divided by it");
  }
  const auto replicas = static_cast<uint32_t>(size / total);
  return ShardRange{
      .range = {rank * total / size, 1}, .replicas = replicas, .replica = rank % replicas};
}

std::optional<uint64_t> span_bytes(const Block& block) noexcept {
  uint64_t span = block.element_bytes;
  for (const BlockAxis& axis : block.axes) {
    if (axis.range.count == 0) return 0;
    uint64_t step = 0;
    if (__builtin_mul_overflow(axis.range.count - 1, axis.stride_bytes, &step) ||
        __builtin_add_overflow(span, step, &span)) {
      return std::nullopt;
    }
  }
  return span;
}

bool has_distinct_elements(const Block& block) noexcept {
  std::vector<BlockAxis> axes;
  for (const BlockAxis& axis : block.axes) {
    if (axis.range.count > 1) axes.push_back(axis);
  }
  std::sort(axes.begin(), axes.end(),
            [](const BlockAxis& a, const BlockAxis& b) { return a.stride_bytes < b.stride_bytes; });
  // From the inside out: each axis must step over all that is inside it.
  uint64_t inside = block.element_bytes;
  for (const BlockAxis& axis : axes) {
    if (axis.stride_bytes < inside) return false;
    uint64_t step = 0;
    if (__builtin_mul_overflow(axis.range.count - 1, axis.stride_bytes, &step) ||
        __builtin_add_overflow(inside, step, &inside)) {
      return false;
    }
  }
  return true;
}

Result<std::optional<StridedCopy>> intersect(const Block& source, const Block& target) {
  if (source.axes.size() != target.axes.size() || source.axes.size() > kAxesMax) {
    return fail(Errc::kInvalidArgument, "axes: not the same number, or more than kAxesMax");
  }
  if (source.element_bytes != target.element_bytes || source.element_bytes == 0) {
    return fail(Errc::kInvalidArgument, "element_bytes: not the same, or 0");
  }
  StridedCopy copy{.source_offset_bytes = source.offset_bytes,
                   .target_offset_bytes = target.offset_bytes,
                   .run_bytes = source.element_bytes};
  for (size_t k = 0; k < source.axes.size(); ++k) {
    const BlockAxis& from = source.axes[k];
    const BlockAxis& to = target.axes[k];
    const IndexRange common = intersect(from.range, to.range);
    if (common.count == 0) return std::optional<StridedCopy>();
    copy.source_offset_bytes += (common.begin - from.range.begin) * from.stride_bytes;
    copy.target_offset_bytes += (common.begin - to.range.begin) * to.stride_bytes;
    if (common.count == 1) {
      copy.axes_in_run |= 1u << k;
    } else {
      copy.loops.push_back({common.count, from.stride_bytes, to.stride_bytes, 1u << k});
    }
  }
  return std::optional<StridedCopy>(std::move(copy));
}

namespace {

/// The loop that continues the run on both sides.
std::vector<Loop>::iterator find_continuation(StridedCopy& copy) {
  return std::find_if(copy.loops.begin(), copy.loops.end(), [&](const Loop& loop) {
    return loop.source_stride_bytes == copy.run_bytes && loop.target_stride_bytes == copy.run_bytes;
  });
}

bool continues(const Loop& outer, const Loop& inner) {
  return outer.source_stride_bytes == inner.source_stride_bytes * inner.count &&
         outer.target_stride_bytes == inner.target_stride_bytes * inner.count;
}

/// Calls step(source offset, target offset, packed offset) for each run, in the order of the loops.
/// Stops when it returns false.
template <class Step>
bool for_each_run(const StridedCopy& copy, Step&& step) {
  std::vector<uint64_t> at(copy.loops.size(), 0);
  uint64_t source = copy.source_offset_bytes;
  uint64_t target = copy.target_offset_bytes;
  for (uint64_t packed = 0;; packed += copy.run_bytes) {
    if (!step(source, target, packed)) return false;
    size_t k = at.size();
    for (; k > 0; --k) {
      const Loop& loop = copy.loops[k - 1];
      source += loop.source_stride_bytes;
      target += loop.target_stride_bytes;
      if (++at[k - 1] < loop.count) break;
      source -= loop.count * loop.source_stride_bytes;
      target -= loop.count * loop.target_stride_bytes;
      at[k - 1] = 0;
    }
    if (k == 0) return true;
  }
}

bool holds(uint64_t size, uint64_t offset, uint64_t bytes) {
  return offset <= size && bytes <= size - offset;
}

}  // namespace

StridedCopy merge(StridedCopy copy) {
  std::erase_if(copy.loops, [](const Loop& loop) { return loop.count == 1; });
  for (auto next = find_continuation(copy); next != copy.loops.end();
       next = find_continuation(copy)) {
    copy.run_bytes *= next->count;
    copy.axes_in_run |= next->axes;
    copy.loops.erase(next);
  }
  // Equal source strides cannot be in a block of distinct elements; the target's decide all the
  // same, so that the result never depends on the order of the axes.
  std::sort(copy.loops.begin(), copy.loops.end(), [](const Loop& a, const Loop& b) {
    return a.source_stride_bytes != b.source_stride_bytes
               ? a.source_stride_bytes > b.source_stride_bytes
               : a.target_stride_bytes > b.target_stride_bytes;
  });
  for (size_t k = copy.loops.size(); k >= 2; --k) {
    Loop& outer = copy.loops[k - 2];
    const Loop& inner = copy.loops[k - 1];
    if (!continues(outer, inner)) continue;
    outer = {outer.count * inner.count, inner.source_stride_bytes, inner.target_stride_bytes,
             outer.axes | inner.axes};
    copy.loops.erase(copy.loops.begin() + static_cast<std::ptrdiff_t>(k - 1));
  }
  return copy;
}

Result<void> gather(const StridedCopy& copy, std::span<const std::byte> source,
                    std::span<std::byte> packed) {
  if (packed.size() < copy.bytes()) return fail(Errc::kOutOfBounds, "packed: too short");
  const bool done = for_each_run(copy, [&](uint64_t from, uint64_t, uint64_t to) {
    if (!holds(source.size(), from, copy.run_bytes)) return false;
    std::memcpy(packed.data() + to, source.data() + from, copy.run_bytes);
    return true;
  });
  if (!done) return fail(Errc::kOutOfBounds, "source: a run past its end");
  return {};
}

Result<void> scatter(const StridedCopy& copy, std::span<const std::byte> packed,
                     std::span<std::byte> target) {
  if (packed.size() < copy.bytes()) return fail(Errc::kOutOfBounds, "packed: too short");
  const bool done = for_each_run(copy, [&](uint64_t, uint64_t to, uint64_t from) {
    if (!holds(target.size(), to, copy.run_bytes)) return false;
    std::memcpy(target.data() + to, packed.data() + from, copy.run_bytes);
    return true;
  });
  if (!done) return fail(Errc::kOutOfBounds, "target: a run past its end");
  return {};
}

uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

uint64_t hash_bytes(std::string_view text) noexcept {
  return hash_bytes(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

}  // namespace fabric::layout
