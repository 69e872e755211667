#pragma once

#include <memory>

#include <fabric/config.h>
#include <fabric/provider.h>
#include <fabric/result.h>

#include "base/driver.h"

namespace fabric::shm {

/// The network between the processes of one user on one host. `spec.devices` may name lanes
/// ("lane0" .. "lane7"; none: one lane) and one absolute directory, where the socket is a file then
/// (for containers with network namespaces of their own that share a directory).
/// Fails with kInvalidArgument (a device that is neither), kUnsupported (the kernel lacks a part),
/// kPermission (the directory), kExhausted.
Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context);

}  // namespace fabric::shm
