#pragma once

#include <map>
#include <string>
#include <vector>

#include <fabric/kv_plan.h>

namespace fabric::kv::planner {

/// Two sides that fit: every group, layer and tensor that a decode rank has, the prefill side has
/// too, in the same shape.
struct MatchedSides {
  std::vector<GroupPlan> groups{};  ///< ascending by name
  uint64_t model_hash = 0;
};

/// Fails with a refusal for everything that does not depend on single bytes: limits, order of the
/// ranks, model, groups, layers, tensors, types, shapes, ranks that are missing.
Result<MatchedSides> match_sides(const Side& prefill, const Side& decode, Refusal* refusal);

/// The group or tensor of that name, or nullptr.
const CacheGroup* find_cache_group(const Layout& layout, std::string_view name);
const Tensor* find_tensor(const CacheGroup& group, std::string_view name);

}  // namespace fabric::kv::planner
