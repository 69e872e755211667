#pragma once

#include <string>
#include <vector>

#include "scenario.h"

namespace demo {

/// Writes one page that needs nothing else: the timeline of all processes, the layers of single
/// requests, and what happened to the requests of the member that was killed or stopped. Returns a
/// line for the result.
Check write_report(const std::string& path, Supervisor& supervisor, const Outcome& outcome,
                   const std::vector<Check>& checks);

/// A picture of all processes over time.
std::string draw_overview(Supervisor& supervisor, const Outcome& outcome);
/// A picture of one request: compute and transfer of every layer, of every attempt.
std::string draw_request(uint64_t number, const RequestRecord& request, uint32_t layers);

}  // namespace demo
