#pragma once

#include <fabric/kv_plan.h>

namespace fabric::kv::planner {

/// The hash of the pairs from `first` on, all of one decode rank. Independent of where the decode
/// rank is in its side and of what the side has besides.
uint64_t target_hash(const TransferPlan& plan, size_t first);

/// Over the hashes of all decode ranks.
uint64_t plan_hash(const TransferPlan& plan);

}  // namespace fabric::kv::planner
