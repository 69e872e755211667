#pragma once

#include <cstdint>

// What the operating system knows and a simulated world must not: real randomness, and numbers that
// nobody else has. Real time is in base/clock.h. Only runtimes ask here; everybody else asks their
// Driver.

namespace fabric {

/// 64 bits from the kernel's generator.
uint64_t system_entropy() noexcept;

/// The number of one life of an engine. The upper 46 bits are wall-clock time in steps of 2^16 ns
/// (66 us, less than any process takes to start), the lower 18 are random, for engines of different
/// processes that start in the same step. Within one process later calls are always larger, also
/// when the clock steps back; across processes this needs a clock that does not.
uint64_t next_incarnation() noexcept;

}  // namespace fabric
