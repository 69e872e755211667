#pragma once

#include <span>
#include <string>

#include <fabric/result.h>
#include <fabric/verbs.h>

namespace fabric::verbs {

/// The other direction of network(). Fails with kInvalidArgument and the name of the option.
Result<Options> parse_options(std::span<const std::string> devices);

}  // namespace fabric::verbs
