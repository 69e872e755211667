#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fabric::kv {

/// Which lease holds a page. Detects an allocator that hands out a page too early, or twice, before
/// it shows as wrong tokens.
///
/// Threads: one at a time.
class PageOwners {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit PageOwners(uint32_t pages = 0) : owner_(pages, kNone) {}

  /// All of them or none. Returns the position of the first page that is held already, also when it
  /// is twice in the list; pages.size(): none was. Pages are below the pool's size.
  size_t take(std::span<const uint32_t> pages, uint32_t owner) {
    for (size_t i = 0; i < pages.size(); ++i) {
      if (owner_[pages[i]] == kNone) {
        owner_[pages[i]] = owner;
        continue;
      }
      give_back(pages.first(i));
      return i;
    }
    taken_ += pages.size();
    return pages.size();
  }
  void release(std::span<const uint32_t> pages) {
    give_back(pages);
    taken_ -= pages.size();
  }
  uint32_t owner(uint32_t page) const { return page < owner_.size() ? owner_[page] : kNone; }
  uint64_t taken() const { return taken_; }
  uint32_t size() const { return static_cast<uint32_t>(owner_.size()); }

 private:
  void give_back(std::span<const uint32_t> pages) {
    for (const uint32_t page : pages) owner_[page] = kNone;
  }

  std::vector<uint32_t> owner_;
  uint64_t taken_ = 0;
};

}  // namespace fabric::kv
