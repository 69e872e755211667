#include "prefix_index.h"

#include <algorithm>

namespace transformer {

uint64_t PrefixIndex::chain_hash(uint64_t before, std::span<const uint32_t> tokens) const {
  uint64_t hash = before;
  for (const uint32_t token : tokens) {
    hash = (hash ^ token) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

std::vector<uint32_t> PrefixIndex::find(std::span<const uint32_t> tokens) {
  std::vector<uint32_t> pages;
  uint64_t hash = 0;
  for (uint64_t end = page_tokens_; end < tokens.size(); end += page_tokens_) {
    const auto page_tokens = tokens.subspan(end - page_tokens_, page_tokens_);
    hash = chain_hash(hash, page_tokens);
    const auto at = known_.find(hash);
    if (at == known_.end() || !std::ranges::equal(at->second.page_tokens, page_tokens)) break;
    at->second.used_at = ++clock_;
    pages.push_back(at->second.page);
  }
  pool_.share(pages);
  return pages;
}

void PrefixIndex::add(std::span<const uint32_t> tokens, std::span<const uint32_t> pages) {
  uint64_t hash = 0;
  for (uint64_t i = 0; i < pages.size() && (i + 1) * page_tokens_ <= tokens.size(); ++i) {
    const auto page_tokens = tokens.subspan(i * page_tokens_, page_tokens_);
    hash = chain_hash(hash, page_tokens);
    const auto [at, inserted] = known_.try_emplace(hash);
    at->second.used_at = ++clock_;
    if (!inserted) continue;
    at->second.page = pages[i];
    at->second.page_tokens.assign(page_tokens.begin(), page_tokens.end());
    pool_.share(pages.subspan(i, 1));
  }
}

void PrefixIndex::make_room(uint32_t pages) {
  while (pool_.free() < pages && !known_.empty()) {
    const auto oldest = std::ranges::min_element(
        known_, {}, [](const auto& known) { return known.second.used_at; });
    const uint32_t page = oldest->second.page;
    known_.erase(oldest);
    pool_.give_back(std::span(&page, 1));
  }
}

}  // namespace transformer
