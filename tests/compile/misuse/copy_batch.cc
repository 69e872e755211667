// One owner: the destructor of a copy would close the original.
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
