#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include <fabric/kv_plan.h>

namespace fabric::tool {

/// Human-readable: groups, the plan slices of one layer of each pair, counts of the request.
std::string plan_text(const kv::TransferPlan& plan, const kv::Side& prefill, const kv::Side& decode,
                      const kv::RequestTokens& tokens);

/// Everything: `hash`, `groups`, `slices` of all pairs and layers, `counts` of the request. Hashes
/// are text, because a JSON number holds 53 bits in many programs.
nlohmann::ordered_json plan_json(const kv::TransferPlan& plan, const kv::RequestTokens& tokens);

}  // namespace fabric::tool
