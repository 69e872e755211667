#pragma once

#include <cstdint>

// Non-deterministic input from the operating system, which a simulated world must not use: entropy
// and unique numbers. Real time is in base/clock.h. For runtimes only; all other code uses Driver.

namespace fabric {

/// 64 bits from the kernel's generator.
uint64_t system_entropy() noexcept;

/// The number of one incarnation of an engine. The upper 46 bits are wall-clock time in steps of
/// 2^16 ns (66 us, less than any process takes to start), the lower 18 are random, for engines of
/// different processes that start in the same step. Within one process later calls return larger
/// numbers even if the clock steps back; across processes only if it does not.
uint64_t next_incarnation() noexcept;

}  // namespace fabric
