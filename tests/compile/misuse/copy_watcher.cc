// One owner: the destructor of a copy would close the original.
// refused: deleted
#include <utility>

#include <fabric/watcher.h>

fabric::Watcher take(fabric::Watcher&& from) {
#ifdef FABRIC_MISUSE
  fabric::Watcher other(from);
#else
  fabric::Watcher other(std::move(from));
#endif
  return other;
}
