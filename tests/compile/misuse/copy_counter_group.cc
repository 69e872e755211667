// One owner: a second one would end the first one's life.
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
