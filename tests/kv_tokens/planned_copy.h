#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <fabric/kv_plan.h>

#include "paged_cache.h"

namespace fabric::test {

/// Does with memcpy what a prefiller does with writes: takes the rows of a request from one cache
/// to another, as a plan says.
class PlannedCopy {
 public:
  struct Request {
    kv::RequestTokens tokens{};
    std::vector<uint32_t> source_pages{};
    std::vector<uint32_t> target_pages{};
  };

  /// Lifetime: all of them outlive the copy.
  PlannedCopy(const kv::TransferPlan& plan, transformer::ShardedCache& source,
              transformer::ShardedCache& target, Request request);

  /// What every source sends of one layer when a chunk of the prompt has passed it.
  void push(uint32_t layer, kv::TokenRange chunk);
  /// True: each pair has sent as many counts as the plan says for the whole request.
  bool counts_are_exact() const;

 private:
  void push_group(uint32_t pair, const kv::PairGroup& group, uint32_t layer, kv::TokenRange chunk);
  void copy_slice(const kv::PairPlan& pair, const kv::PageSlice& slice,
                  const kv::UnitIndices& indices);
  void copy_staged(const kv::PairPlan& pair, const kv::StagedWrite& staged,
                   const kv::UnitIndices& indices);

  const kv::TransferPlan& plan_;
  transformer::ShardedCache& source_;
  transformer::ShardedCache& target_;
  Request request_;
  std::vector<uint64_t> sent_{};  ///< counts, by pair
};

}  // namespace fabric::test
