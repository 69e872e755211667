#pragma once

#include <vector>

#include "conformance/conformance.h"

namespace fabric::test {

/// Where there are RDMA devices: one line for each number of rails. Elsewhere none.
std::vector<ProviderCase> verbs_cases();

/// Everywhere: the same network on cards made of software (tests/fake_verbs).
std::vector<ProviderCase> fake_verbs_cases();

}  // namespace fabric::test
