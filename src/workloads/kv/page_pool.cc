#include <fabric/kv.h>

namespace fabric::kv {

PagePool::PagePool(uint32_t pages) : ring_(pages), used_(pages, false), free_(pages) {
  for (uint32_t i = 0; i < pages; ++i) ring_[i] = i;
}

Result<std::vector<uint32_t>> PagePool::allocate(uint32_t count) {
  if (count > free_) {
    return fail(Errc::kExhausted, "count: more than the free pages", static_cast<int32_t>(free_));
  }
  std::vector<uint32_t> pages;
  pages.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t page = ring_[next_];
    next_ = next_ + 1 == size() ? 0 : next_ + 1;
    used_[page] = true;
    pages.push_back(page);
  }
  free_ -= count;
  return pages;
}

Result<void> PagePool::release(std::span<const uint32_t> pages) {
  for (size_t i = 0; i < pages.size(); ++i) {
    const uint32_t page = pages[i];
    if (page < size() && used_[page]) {
      used_[page] = false;
      continue;
    }
    for (size_t k = 0; k < i; ++k) used_[pages[k]] = true;  // nothing is released
    return fail(Errc::kInvalidArgument, "pages: not allocated, or named twice",
                static_cast<int32_t>(page));
  }
  for (const uint32_t page : pages) {
    const uint64_t at = uint64_t{next_} + free_;
    ring_[at % size()] = page;
    ++free_;
  }
  return {};
}

}  // namespace fabric::kv
