#pragma once

// In the second build of the library every planted bug is compiled in and at most one is on. The
// shipped sources are not changed: plant.py writes `planted(number)` into copies of them.

namespace fabric {

/// Index in bugs.py of the bug that is on; -1: none. From FABRICLIB_TEST_PLANTED.
extern const int planted_number;

inline bool planted(int number) noexcept { return planted_number == number; }

}  // namespace fabric
