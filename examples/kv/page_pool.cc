#include "page_pool.h"

namespace transformer {

PagePool::PagePool(ShardedCache& cache) : cache_(cache), users_(cache.options().pages) {
  for (uint32_t page = 0; page < users_.size(); ++page) {
    for (PagedCache& rank : cache_.ranks()) rank.fill_page(page, kCanary);
    free_.push_back(page);
  }
}

std::optional<std::vector<uint32_t>> PagePool::take(uint32_t count) {
  if (count > free_.size()) return std::nullopt;
  std::vector<uint32_t> taken(free_.begin(), free_.begin() + count);
  free_.erase(free_.begin(), free_.begin() + count);
  for (const uint32_t page : taken) {
    check(page);
    users_[page] = 1;
  }
  return taken;
}

void PagePool::share(std::span<const uint32_t> pages) {
  for (const uint32_t page : pages) ++users_[page];
}

void PagePool::give_back(std::span<const uint32_t> pages) {
  for (const uint32_t page : pages) {
    if (--users_[page] > 0) continue;
    for (PagedCache& rank : cache_.ranks()) rank.fill_page(page, kCanary);
    free_.push_back(page);
  }
}

void PagePool::check_free_pages() {
  for (const uint32_t page : free_) check(page);
}

void PagePool::check(uint32_t page) {
  bool changed = false;
  for (PagedCache& rank : cache_.ranks()) {
    if (rank.bytes_other_than(page, kCanary) == 0) continue;
    changed = true;
    rank.fill_page(page, kCanary);  // counted once
  }
  if (changed) ++touched_;
}

}  // namespace transformer
