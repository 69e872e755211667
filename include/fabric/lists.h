#pragma once

#include <cstdint>
#include <memory>

#include <fabric/export.h>
#include <fabric/types.h>

namespace fabric {

class Engine;
namespace core {
struct PageListState;
}

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

}  // namespace fabric
