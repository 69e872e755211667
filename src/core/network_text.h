#pragma once

#include <fabric/config.h>
#include <fabric/result.h>

namespace fabric::core {

/// Checks the ranges of Network::options and that they belong to the provider. Fails with
/// kInvalidArgument and the name of the option.
Result<void> check_network_options(const Network& network);

}  // namespace fabric::core
