// Handles are not aggregates: without that, `.batch = 3` would compile by brace elision.
// refused: convert|conversion
#include <fabric/transfer.h>

#ifdef FABRIC_MISUSE
fabric::Write request{.batch = 3};
#else
fabric::Write request{.batch = fabric::BatchId(3, 1)};
#endif
