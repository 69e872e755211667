// The source of a write is memory of our own.
// refused: convert|conversion
#include <fabric/engine.h>

#ifdef FABRIC_MISUSE
using Source = fabric::RemoteRegion;
#else
using Source = fabric::RegionId;
#endif

fabric::Result<fabric::OpId> push(fabric::Engine& engine, Source source,
                                  fabric::RemoteRegion target) {
  return engine.submit(fabric::PagedWrite{.source = source, .target = target});
}
