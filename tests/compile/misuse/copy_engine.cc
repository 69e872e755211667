// One owner: a second one would end the first one's life.
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
