// One owner: the destructor of a copy would close the original.
// refused: deleted
#include <utility>

#include <fabric/engine.h>

fabric::Engine take(fabric::Engine&& from) {
#ifdef FABRIC_MISUSE
  fabric::Engine other(from);
#else
  fabric::Engine other(std::move(from));
#endif
  return other;
}
