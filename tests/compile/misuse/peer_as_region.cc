// Handles of different things are different types.
// refused: convert|conversion
#include <fabric/transfer.h>

#ifdef FABRIC_MISUSE
using Handle = fabric::PeerId;
#else
using Handle = fabric::RegionId;
#endif

fabric::Deregister deregister(Handle handle) { return {.region = handle}; }
