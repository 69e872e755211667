// refused: no match for|no viable
#include <fabric/types.h>

void set(fabric::CounterKey& key) {
#ifdef FABRIC_MISUSE
  key = 7;
#else
  key = fabric::CounterKey::from_wire(7);
#endif
}
