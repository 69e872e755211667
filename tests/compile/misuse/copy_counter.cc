// One owner: the destructor of a copy would close the original.
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
