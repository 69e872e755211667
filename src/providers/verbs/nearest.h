#pragma once

#include <span>
#include <string>

#include <fabric/config.h>
#include <fabric/result.h>

#include "base/log.h"
#include "topology/near.h"

namespace fabric::verbs {

/// The devices, of `candidates`, that Network::near picks. Logs what is taken and what is left out,
/// with the reasons.
///
/// Fails with kInvalidArgument ("networks.near"): there is no such device or node. The log names
/// what there is.
Result<topology::NicChoice> nearest_devices(const Network& spec,
                                            std::span<const std::string> candidates, Log& log);

/// One NIC that is left out, for the log.
void log_left_out(const Network& spec, std::string_view device, std::string_view reason, Log& log);

}  // namespace fabric::verbs
