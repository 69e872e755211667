// One owner: a second one would end the first one's life.
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
