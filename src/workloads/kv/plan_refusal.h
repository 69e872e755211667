#pragma once

#include <string>
#include <utility>

#include <fabric/kv_layout.h>

namespace fabric::kv::planner {

/// The error for a code, for callers that passed no Refusal.
Error refusal_error(RefusalCode code);

/// Fills in `out`, if there is one, and returns the error.
inline Error refuse(Refusal* out, RefusalCode code, std::string reason, std::string remedy) {
  if (out != nullptr) *out = {code, std::move(reason), std::move(remedy)};
  return refusal_error(code);
}

}  // namespace fabric::kv::planner
