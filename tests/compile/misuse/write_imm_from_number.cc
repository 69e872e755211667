// A key is something the receiver handed out, never a number that somebody made up.
// refused: convert|conversion
#include <fabric/transfer.h>

#ifdef FABRIC_MISUSE
fabric::Write request{.imm = 7};
#else
fabric::Write request{.imm = fabric::CounterKey::from_wire(7)};
#endif
