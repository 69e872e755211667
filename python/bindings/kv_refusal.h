#pragma once

#include <fabric/kv_layout.h>

#include "native.h"

namespace fabric_python {

/// Raises the error with the reason and the remedy as its text, and the refusal as an attribute.
[[noreturn]] void raise_refused(const fabric::Error& error, const fabric::kv::Refusal& refusal);

}  // namespace fabric_python
