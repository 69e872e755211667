// One owner: a second one would end the first one's life.
// refused: deleted
#include <utility>

#include <fabric/memory.h>

fabric::MemoryRegion take(fabric::MemoryRegion&& from) {
#ifdef FABRIC_MISUSE
  fabric::MemoryRegion other(from);
#else
  fabric::MemoryRegion other(std::move(from));
#endif
  return other;
}
