// One owner: the destructor of a copy would close the original.
// refused: deleted
#include <utility>

#include <fabric/engine.h>

fabric::Subscription take(fabric::Subscription&& from) {
#ifdef FABRIC_MISUSE
  fabric::Subscription other(from);
#else
  fabric::Subscription other(std::move(from));
#endif
  return other;
}
