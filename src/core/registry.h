#pragma once

#include <memory>
#include <string>
#include <vector>

#include <fabric/config.h>
#include <fabric/provider.h>
#include <fabric/result.h>

#include "base/driver.h"

// How the core opens networks without naming a provider: src/providers/registry.cc defines these.

namespace fabric::core {

/// Opens `spec.provider`.
///
/// Fails with kUnsupported ("networks.provider") when this build has no provider of that name, and
/// with the provider's error.
Result<std::unique_ptr<OpenNetwork>> open_network(const Network& spec, const OpenContext& context);

/// Names of the providers in this build, in order of preference.
std::vector<std::string> built_providers();

}  // namespace fabric::core
