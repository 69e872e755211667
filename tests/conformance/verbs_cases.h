#pragma once

#include <vector>

#include "conformance/conformance.h"

namespace fabric::test {

/// Where there are RDMA NICs: one case for each number of rails. Elsewhere none.
std::vector<ProviderCase> verbs_cases();

/// Everywhere: the same network on fake NICs (tests/fake_verbs).
std::vector<ProviderCase> fake_verbs_cases();

}  // namespace fabric::test
