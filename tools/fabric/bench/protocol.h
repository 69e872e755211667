#pragma once

#include <string>
#include <vector>

#include "json_socket.h"
#include "plan.h"
#include "report.h"

namespace fabric::tool::bench {

/// The sender's side of a whole run. True when all bytes were right. Throws BenchError.
bool run_sender(const BenchPlan& plan, JsonSocket& socket, Report& report);

/// The receiver's side: does what the sender asks until it says goodbye. `verb` is what was asked
/// for here, and the sender has to want the same; `devices` are this side's own. Throws BenchError, and
/// tells the sender why.
void run_receiver(Benchmark benchmark, const std::vector<std::string>& devices, JsonSocket& socket);

}  // namespace fabric::tool::bench
