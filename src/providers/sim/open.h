#pragma once

#include <memory>

#include <fabric/config.h>
#include <fabric/provider.h>

#include "base/driver.h"

namespace fabric::sim {

/// Opens one network of one node. `spec.devices` holds the node's token, which World::open() fills
/// in; `spec.name` picks the network.
///
/// Fails with kInvalidArgument without a token, with `near`, or when a world with virtual time is
/// opened by the engine of another runtime; kUnsupported when the node has no such network; kClosed
/// when the world was destroyed.
Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context);

}  // namespace fabric::sim
