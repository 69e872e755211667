// One owner: a second one would end the first one's life.
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
