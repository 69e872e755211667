// One owner: the destructor of a copy would close the original.
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
