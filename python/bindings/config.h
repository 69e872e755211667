#pragma once

#include "native.h"

namespace fabric_python {

/// A copy of `base`, or the defaults, with the keywords set.
fabric::Config config_with(nb::handle base, const nb::kwargs& settings, const char* caller);

}  // namespace fabric_python
