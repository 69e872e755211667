#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "paged_cache.h"

namespace transformer {

/// Hands out the pages of a cache, the page that has been free longest first. A page may have
/// several users: sequences with a common prefix.
///
/// Free pages are full of a canary on every rank, and a page is checked before it is handed out,
/// which detects a late write of a transfer that has ended.
///
/// Threads: one.
class PagePool {
 public:
  static constexpr std::byte kCanary{0xca};

  /// Lifetime: `cache` outlives the pool.
  explicit PagePool(ShardedCache& cache);

  /// Empty when fewer are free.
  std::optional<std::vector<uint32_t>> take(uint32_t count);
  /// One more user of each page, which has one already.
  void share(std::span<const uint32_t> pages);
  /// One user fewer; the page is free after the last.
  void give_back(std::span<const uint32_t> pages);

  uint32_t size() const { return static_cast<uint32_t>(users_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  /// Pages that had changed while they were free, as far as they were checked.
  uint64_t touched() const { return touched_; }
  /// Checks all free pages now.
  void check_free_pages();

 private:
  void check(uint32_t page);

  ShardedCache& cache_;
  std::vector<uint32_t> users_{};
  std::deque<uint32_t> free_{};
  uint64_t touched_ = 0;
};

}  // namespace transformer
