#pragma once

#include <memory>

#include <fabric/config.h>
#include <fabric/provider.h>
#include <fabric/result.h>

#include "base/driver.h"

namespace fabric::shm {

/// Opens the network between the processes of one user on one host. `spec.options` may hold
/// shm::Options: the number of lanes, and an absolute directory for the socket file (for containers
/// that share a directory but not a network namespace).
/// Fails with kInvalidArgument (devices or `near` are given, or the directory is not absolute or
/// too long), kUnsupported (the kernel lacks a feature), kPermission (the directory), kExhausted.
Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context);

}  // namespace fabric::shm
