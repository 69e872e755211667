#pragma once

#include <map>
#include <mutex>
#include <vector>

#include <fabric/memory.h>
#include <fabric/result.h>

#include "base/light_mutex.h"
#include "base/shared_pages.h"
#include "providers/shm/shared_header.h"
#include "providers/shm/wire.h"

namespace fabric::shm {

/// The own registered memory, as peers find it in the header.
///
/// Threads: everything from any thread.
class RkeyTable {
 public:
  explicit RkeyTable(SharedHeader& header) noexcept : header_(header) {}

  /// Fails with kExhausted.
  Result<WireRkey> add(const Memory& memory);
  /// Ends the validity_epoch at once; the slot stays taken until release().
  void revoke(WireRkey rkey) noexcept;
  /// Nothing can land any more. Returns the block that has no rkey any more, or 0.
  uint64_t release(WireRkey rkey) noexcept;

  /// Where a fetched piece goes; null when rkey or bounds are wrong. Good until the caller's next
  /// look for fences, because only the worker fetches and only the worker proves them.
  std::byte* resolve(WireRkey rkey, uint64_t offset, uint64_t bytes) noexcept;

  /// Shared pages that at least one rkey lies in; without a file when there are none of that number.
  SharedPages::Location block(uint64_t number);

 private:
  struct Registration {
    std::byte* address = nullptr;
    uint64_t size_bytes = 0;
    uint64_t block = 0;  ///< 0: none
    uint32_t generation = 0;
    bool live = false;
    bool remote_write = false;
  };
  struct BlockUse {
    SharedPages::Location location{};
    uint32_t rkeys = 0;
  };

  LightMutex mutex_;  // nearly always the worker's, in location()
  SharedHeader& header_;
  std::vector<Registration> rkeys_;
  std::vector<uint32_t> free_;
  std::map<uint64_t, BlockUse> blocks_;
};

}  // namespace fabric::shm
