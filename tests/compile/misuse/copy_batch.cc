// One owner: a second one would end the first one's life.
// refused: deleted
#include <utility>

#include <fabric/notify.h>

fabric::Batch take(fabric::Batch&& from) {
#ifdef FABRIC_MISUSE
  fabric::Batch other(from);
#else
  fabric::Batch other(std::move(from));
#endif
  return other;
}
