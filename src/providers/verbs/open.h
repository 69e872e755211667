#pragma once

#include <memory>

#include <fabric/config.h>
#include <fabric/provider.h>
#include <fabric/result.h>

#include "base/driver.h"

namespace fabric::verbs {

/// Opens the network over RDMA NICs: the ports in `spec.devices`, of those the nearest to
/// `spec.near`, with the options in `spec.options` (<fabric/verbs.h>). Fails with kInvalidArgument
/// (names the option), kUnsupported (no library, device, port or address), kPermission, kExhausted.
Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context);

}  // namespace fabric::verbs
