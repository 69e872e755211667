// One owner: the destructor of a copy would close the original.
// refused: deleted
#include <utility>

#include <fabric/counter.h>

fabric::CounterGroup take(fabric::CounterGroup&& from) {
#ifdef FABRIC_MISUSE
  fabric::CounterGroup other(from);
#else
  fabric::CounterGroup other(std::move(from));
#endif
  return other;
}
