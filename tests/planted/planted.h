#pragma once

// In the second build of the library every planted bug is compiled in and at most one is on. The
// shipped sources know nothing of this: plant.py writes `planted("name")` into copies of them.

namespace fabric {

/// The bug that is on, by its place in bugs.py; -1: none. From FABRICLIB_TEST_PLANTED.
extern const int planted_number;

inline bool planted(int number) noexcept { return planted_number == number; }

}  // namespace fabric
