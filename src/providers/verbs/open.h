#pragma once

#include <memory>

#include <fabric/config.h>
#include <fabric/provider.h>
#include <fabric/result.h>

#include "base/driver.h"

namespace fabric::verbs {

/// The network over RDMA cards. `spec.devices` holds ports and options (<fabric/verbs.h>).
/// Fails with kInvalidArgument (and the option's name), kUnsupported (no library, device, port or
/// address), kPermission, kExhausted.
Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context);

}  // namespace fabric::verbs
