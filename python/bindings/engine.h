#pragma once

#include "native.h"

namespace fabric_python {

/// A new Python Engine in place; `inline_engine`: it belongs to the calling thread.
void construct_engine(PyEngine* self, SharedContext context, fabric::Engine&& engine,
                      const fabric::Config& config);

/// Bytes of an address or descriptor, and back.
std::span<const std::byte> span_of(const nb::bytes& bytes);
nb::bytes to_bytes(std::span<const std::byte> bytes);

}  // namespace fabric_python
