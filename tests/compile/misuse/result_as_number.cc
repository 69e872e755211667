// A Result in a condition is fine; in arithmetic it is a mistake.
// refused: convert|conversion|no viable
#include <fabric/result.h>

int get(const fabric::Result<int>& result) {
#ifdef FABRIC_MISUSE
  return result;
#else
  return result ? *result : 0;
#endif
}
