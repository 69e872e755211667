// A counter key comes from the receiver; a number is not a counter key.
// refused: convert|conversion
#include <fabric/transfer.h>

#ifdef FABRIC_MISUSE
fabric::Write request{.imm = 7};
#else
fabric::Write request{.imm = fabric::CounterKey::from_wire(7)};
#endif
