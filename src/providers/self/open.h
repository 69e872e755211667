#pragma once

#include <memory>

#include <fabric/config.h>
#include <fabric/provider.h>
#include <fabric/result.h>

#include "base/driver.h"

namespace fabric::self {

/// The network on which an engine reaches itself. It is always there: `spec` holds no choice.
Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context);

}  // namespace fabric::self
