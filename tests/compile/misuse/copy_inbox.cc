// One owner: the destructor of a copy would close the original.
// refused: deleted
#include <utility>

#include <fabric/notify.h>

fabric::Inbox take(fabric::Inbox&& from) {
#ifdef FABRIC_MISUSE
  fabric::Inbox other(from);
#else
  fabric::Inbox other(std::move(from));
#endif
  return other;
}
