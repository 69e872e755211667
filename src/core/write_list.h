#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <fabric/lists.h>
#include <fabric/result.h>

#include "core/list_table.h"

namespace fabric::core {

class EngineCore;

/// Where the writes of a list, or of a range of it, end at most: the largest offset plus size.
struct WriteEnds {
  uint64_t source = 0, target = 0;
  static WriteEnds of(std::span<const ListedWrite> writes) noexcept;
};

/// The contents of a prepared write list.
struct WriteEntries {
  std::unique_ptr<ListedWrite[]> writes{};
  std::unique_ptr<uint64_t[]> bytes_before{};  ///< of each write, in all before it; and of all
  uint32_t count = 0;
  uint64_t size_max = 0;  ///< of one write
  WriteEnds ends{};

  static Result<WriteEntries> copy(std::span<const ListedWrite> writes);
  std::span<const ListedWrite> range(uint32_t first, uint32_t n) const noexcept {
    return {writes.get() + first, n};
  }
};

struct WriteListSlot : ListHead {
  WriteEntries entries{};
  void clear() noexcept { entries = {}; }
};

/// The state behind the copies of a WriteList.
struct WriteListState {
  std::shared_ptr<EngineCore> core{};
  WriteListSlot* slot = nullptr;
  WriteListId id{};
  uint32_t size = 0;
  ~WriteListState();
};

}  // namespace fabric::core
