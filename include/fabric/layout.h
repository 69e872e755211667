#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <fabric/export.h>
#include <fabric/result.h>

/// Strided boxes in memory and the copies between them. Pure arithmetic: no engine, no memory is
/// touched except by gather() and scatter(). The KV planner (kv_plan.h) is built on it.
///
/// A tensor that is sharded over ranks has one global index space. What one rank holds of it is a
/// Block: a range of each axis, and where the elements of that range are. Two blocks of the same
/// tensor, one here and one at a peer, have a common part, intersect(); merge() turns it into the
/// fewest contiguous runs.
///
/// Threads: all functions are pure; call them from any thread.
namespace fabric::layout {

/// The most axes of a block. Enough for [part][head][token][element] and for optimiser states.
inline constexpr uint32_t kAxesMax = 8;

/// The indices `begin` to `begin + count - 1` of one axis.
struct IndexRange {
  uint64_t begin = 0;
  uint64_t count = 0;
  friend constexpr bool operator==(const IndexRange&, const IndexRange&) = default;
};

/// The indices that both ranges have; count 0 when there are none.
FABRIC_EXPORT IndexRange intersect(IndexRange a, IndexRange b) noexcept;

/// Which of `total` heads (or rows, groups, experts) rank `rank` of `size` holds.
struct ShardRange {
  IndexRange range{};
  uint32_t replicas = 1;  ///< ranks that hold the same range, this one included
  uint32_t replica = 0;   ///< which of them this rank is, counted by rank
};

/// total >= size: equal shares. total < size: floor(rank * total / size), so that size / total
/// consecutive ranks hold the same index. (rank % total is wrong: it would give consecutive ranks
/// different heads.)
///
/// Fails with kInvalidArgument (total or size 0, rank >= size) and kUnsupported (neither divides
/// the other).
FABRIC_EXPORT Result<ShardRange> shard(uint64_t total, uint32_t rank, uint32_t size);

/// One axis of a block. The element at global index i, begin <= i < begin + count, is
/// (i - begin) * stride_bytes after the first one.
struct BlockAxis {
  IndexRange range{};
  uint64_t stride_bytes = 0;
};

/// A box of a tensor in memory. Axis k of two blocks of one tensor means the same; the order of the
/// axes in memory is in the strides only and may differ between the two.
struct Block {
  std::vector<BlockAxis> axes{};
  uint64_t offset_bytes = 0;   ///< of the element at the beginning of every axis
  uint64_t element_bytes = 0;  ///< contiguous
};

/// Bytes from the first byte of the block to the end of its last element; 0 when it is empty.
/// Nothing when that is 2^64 or more.
FABRIC_EXPORT std::optional<uint64_t> span_bytes(const Block& block) noexcept;

/// True when no two elements of the block share a byte. Strides may be in any order and padded.
/// Conservative: a block whose axes interleave (no axis order nests) is called overlapping.
FABRIC_EXPORT bool has_distinct_elements(const Block& block) noexcept;

/// One loop of a strided copy.
struct Loop {
  uint64_t count = 1;
  uint64_t source_stride_bytes = 0;
  uint64_t target_stride_bytes = 0;
  uint32_t axes = 0;  ///< bit k: axis k of the blocks is in this loop
  friend constexpr bool operator==(const Loop&, const Loop&) = default;
};

/// A copy between two strided boxes:
///
///     for each tuple of loop indices (loops[0] outermost):
///       copy run_bytes from source_offset_bytes + sum(index * source_stride_bytes)
///                        to target_offset_bytes + sum(index * target_stride_bytes)
struct StridedCopy {
  uint64_t source_offset_bytes = 0;
  uint64_t target_offset_bytes = 0;
  uint64_t run_bytes = 0;
  std::vector<Loop> loops{};
  uint32_t axes_in_run = 0;  ///< bit k: axis k is inside the run, as any axis of one index is

  uint64_t runs() const noexcept {
    uint64_t product = 1;
    for (const Loop& loop : loops) product *= loop.count;
    return product;
  }
  uint64_t bytes() const noexcept { return runs() * run_bytes; }
};

/// What `source` and `target` have in common, one loop for each axis of more than one index, runs
/// of one element. Nothing when they have no element in common.
///
/// Fails with kInvalidArgument: another number of axes, more than kAxesMax, another element size.
FABRIC_EXPORT Result<std::optional<StridedCopy>> intersect(const Block& source,
                                                           const Block& target);

/// The same bytes in the fewest runs: loops whose strides continue the run on both sides become
/// part of it, adjacent loops become one. The remaining loops are in the order of falling source
/// strides. Deterministic: two machines get the same copy from the same blocks.
FABRIC_EXPORT StridedCopy merge(StridedCopy copy);

/// Copies the source side of `copy` into `packed`, run after run in the order of the loops.
///
/// Fails with kOutOfBounds: a run past `source`, or `packed` shorter than copy.bytes().
FABRIC_EXPORT Result<void> gather(const StridedCopy& copy, std::span<const std::byte> source,
                                  std::span<std::byte> packed);

/// Copies what gather() packed to the target side of `copy`. Fails as gather() does.
FABRIC_EXPORT Result<void> scatter(const StridedCopy& copy, std::span<const std::byte> packed,
                                   std::span<std::byte> target);

/// FNV-1a over the bytes, 64 bits, then the finaliser of splitmix64. Stable across builds, machines
/// and versions. For comparing what two sides computed, not against an attacker.
FABRIC_EXPORT uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept;
FABRIC_EXPORT uint64_t hash_bytes(std::string_view text) noexcept;

}  // namespace fabric::layout
