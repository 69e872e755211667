// refused: private
#include <fabric/types.h>

#ifdef FABRIC_MISUSE
fabric::CounterKey key(7);
#else
fabric::CounterKey key = fabric::CounterKey::from_wire(7);
#endif
