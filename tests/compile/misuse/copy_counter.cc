// One owner: a second one would end the first one's life.
// refused: deleted
#include <utility>

#include <fabric/counter.h>

fabric::Counter take(fabric::Counter&& from) {
#ifdef FABRIC_MISUSE
  fabric::Counter other(from);
#else
  fabric::Counter other(std::move(from));
#endif
  return other;
}
