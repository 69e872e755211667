// The target of a write is memory that a peer exported.
// refused: convert|conversion
#include <fabric/engine.h>

#ifdef FABRIC_MISUSE
using Target = fabric::RegionId;
#else
using Target = fabric::RemoteRegion;
#endif

fabric::Result<fabric::OpId> push(fabric::Engine& engine, fabric::RegionId source, Target target) {
  return engine.submit(fabric::PagedWrite{.source = source, .target = target});
}
