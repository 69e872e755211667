#pragma once

#include <string>
#include <vector>

#include "line.h"
#include "plan.h"
#include "report.h"

namespace fabric::tool::bench {

/// The sender's side of a whole run. True when all bytes were right. Throws Failed.
bool conduct(const Plan& plan, Line& line, Report& report);

/// The receiver's side: does what the sender asks until it says goodbye. `verb` is what was asked
/// for here, and the sender has to want the same; `devices` are this side's own. Throws Failed, and
/// tells the sender why.
void follow(Verb verb, const std::vector<std::string>& devices, Line& line);

}  // namespace fabric::tool::bench
