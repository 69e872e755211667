#pragma once

#include <memory>

#include <fabric/config.h>
#include <fabric/provider.h>
#include <fabric/result.h>

#include "base/driver.h"

namespace fabric::self {

/// The loopback network of an engine. Every engine has one; `spec` has no options.
Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context);

}  // namespace fabric::self
