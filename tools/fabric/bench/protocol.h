#pragma once

#include <string>
#include <vector>

#include "json_socket.h"
#include "plan.h"
#include "report.h"

namespace fabric::tool::bench {

/// Runs the sender's side. True if all bytes were correct. Throws BenchError.
bool run_sender(const BenchPlan& plan, JsonSocket& socket, Report& report);

/// Runs the receiver's side until the sender says goodbye. The sender must ask for `benchmark`;
/// `devices` are those of this side. Throws BenchError, after sending the reason to the sender.
void run_receiver(Benchmark benchmark, const std::vector<std::string>& devices, JsonSocket& socket);

}  // namespace fabric::tool::bench
