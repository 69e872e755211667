// One owner: a second one would end the first one's life.
// refused: deleted
#include <utility>

#include <fabric/notify.h>

fabric::Flag take(fabric::Flag&& from) {
#ifdef FABRIC_MISUSE
  fabric::Flag other(from);
#else
  fabric::Flag other(std::move(from));
#endif
  return other;
}
