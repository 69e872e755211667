// refused: no match for|no viable
#include <fabric/types.h>

void set(fabric::Key& key) {
#ifdef FABRIC_MISUSE
  key = 7;
#else
  key = fabric::Key::from_wire(7);
#endif
}
