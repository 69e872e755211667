#pragma once

#include <cstdint>
#include <memory>

#include <fabric/export.h>
#include <fabric/types.h>

namespace fabric {

class Engine;
namespace core {
struct PageListState;
struct WriteListState;
}  // namespace core

/// The pages `first`, `first + 1`, ..., `count` of them.
struct PageRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

/// Page indices that were copied once, by Engine::make_page_list(), for any number of paged writes:
/// the pages of a request are the same in every layer and tensor. Immutable and cheap to copy.
///
/// Lifetime: the list belongs to the engine. It is freed when the last copy of this handle is gone
///   and the last operation that uses it has completed, so the handle may be destroyed as soon as
///   submit() has returned. It may outlive the engine.
/// Threads: share it freely. A submit() on another thread while the last copy is destroyed either
///   uses the list or fails with kNotFound.
class FABRIC_EXPORT PageList {
 public:
  PageList() = default;
  PageListId id() const noexcept;
  operator PageListId() const noexcept { return id(); }
  uint32_t size() const noexcept;  ///< pages

 private:
  friend class Engine;
  explicit PageList(std::shared_ptr<const core::PageListState> state) noexcept;
  std::shared_ptr<const core::PageListState> state_;
};

/// One write of a prepared list. The offsets are added to those of ListedWrites.
struct ListedWrite {
  uint64_t source_offset = 0;
  uint64_t target_offset = 0;
  uint64_t size_bytes = 0;
};
static_assert(sizeof(ListedWrite) == 24);

/// Writes that were copied once, by Engine::make_write_list(), to be submitted by ranges as often
/// as needed: a transfer plan. Immutable and cheap to copy.
///
/// Lifetime and threads: as for PageList.
class FABRIC_EXPORT WriteList {
 public:
  WriteList() = default;
  WriteListId id() const noexcept;
  operator WriteListId() const noexcept { return id(); }
  uint32_t size() const noexcept;  ///< writes

 private:
  friend class Engine;
  explicit WriteList(std::shared_ptr<const core::WriteListState> state) noexcept;
  std::shared_ptr<const core::WriteListState> state_;
};

}  // namespace fabric
