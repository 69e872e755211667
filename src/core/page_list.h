#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include <fabric/lists.h>
#include <fabric/result.h>

#include "core/list_table.h"

namespace fabric::core {

class EngineCore;

/// Consecutive pages of a prepared list: from page number `begin` of the list, up to the next run's
/// `begin`, the indices are first, first + 1, ... The array ends with a run that has no pages.
struct PageRun {
  uint32_t begin = 0;
  uint32_t first = 0;
};

/// The contents of a prepared page list: an array of indices, or of runs.
struct PageIndices {
  std::unique_ptr<uint32_t[]> indices{};
  std::unique_ptr<PageRun[]> runs{};
  uint32_t count = 0;    ///< pages
  uint32_t largest = 0;  ///< index
  uint32_t run_count = 0;

  static Result<PageIndices> copy(std::span<const uint32_t> indices);
  /// As indices, if those take no more memory than the runs would.
  static Result<PageIndices> copy(std::span<const PageRange> ranges);
};

struct PageListSlot : ListHead {
  PageIndices pages{};
  void clear() noexcept { pages = {}; }
};

/// One side of a paged write: which page is where.
struct PageSide {
  const uint32_t* indices = nullptr;  ///< copied at submit, or of the list; null: `runs`
  const PageRun* runs = nullptr;
  uint64_t stride = 0, inner_stride = 0;
  PageListSlot* list = nullptr;  ///< used by the operation until it completes

  /// The index of page number `page`. `run` is where the last one was found: the next one of a walk
  /// in steps of at most kRailsMax pages is at most as many runs further, because no run is empty.
  uint32_t index_of(uint32_t page, uint32_t& run) const noexcept {
    if (indices != nullptr) return indices[page];
    if (page < runs[run].begin) [[unlikely]]
      run = run_of(page);
    for (uint32_t steps = 0; page >= runs[run + 1].begin; ++run) {
      if (steps++ == kRailsMax) [[unlikely]] {
        run = run_of(page);
        break;
      }
    }
    return runs[run].first + (page - runs[run].begin);
  }
  /// Of element `inner` of the page, without the side's offset.
  uint64_t offset_of(uint32_t page, uint32_t inner, uint32_t& run) const noexcept {
    return index_of(page, run) * stride + inner * inner_stride;
  }

 private:
  /// By binary search, for a part that is not the next one of a walk. In the list only.
  uint32_t run_of(uint32_t page) const noexcept;
};

/// Where a walk over the parts of a paged write has come to. Hints: any value gives the same pages.
struct PageCursor {
  uint32_t run_at_source = 0, run_at_target = 0;
};

/// The state behind the copies of a PageList.
struct PageListState {
  std::shared_ptr<EngineCore> core{};
  PageListSlot* slot = nullptr;
  PageListId id{};
  uint32_t size = 0;
  ~PageListState();
};

}  // namespace fabric::core
