#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "page_pool.h"

namespace transformer {

/// Pages by the tokens whose rows they hold: a sequence that shares a prefix with an earlier one
/// takes its first pages from here and computes only the rest.
///
/// The index is one of the users of its pages. The key of a page is a hash of all tokens up to its
/// end, because a row depends on every token before it.
///
/// Threads: one.
class PrefixIndex {
 public:
  /// Lifetime: `pool` outlives the index.
  PrefixIndex(PagePool& pool, uint32_t page_tokens) : pool_(pool), page_tokens_(page_tokens) {}

  /// The pages of the longest known prefix, whole pages, with one more user each. At least the last
  /// token is left to compute: the next one comes from it.
  std::vector<uint32_t> find(std::span<const uint32_t> tokens);
  /// Keeps the pages that `tokens` fill to the end.
  void add(std::span<const uint32_t> tokens, std::span<const uint32_t> pages);
  /// Forgets the pages that were used longest ago until `pages` are free, or no more are left.
  void make_room(uint32_t pages);

  uint32_t size() const { return static_cast<uint32_t>(known_.size()); }

 private:
  struct KnownPage {
    uint32_t page = 0;
    uint64_t used_at = 0;                 ///< by clock_
    std::vector<uint32_t> page_tokens{};  ///< a hash alone may be equal by chance
  };
  uint64_t chain_hash(uint64_t before, std::span<const uint32_t> tokens) const;

  PagePool& pool_;
  uint32_t page_tokens_;
  uint64_t clock_ = 0;
  std::map<uint64_t, KnownPage> known_{};
};

}  // namespace transformer
