// One owner: the destructor of a copy would close the original.
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
