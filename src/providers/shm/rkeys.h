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

/// The own registered memory, as peers find it in the front.
///
/// Threads: everything from any thread.
class Keys {
 public:
  explicit Keys(Front& front) noexcept : front_(front) {}

  /// Fails with kExhausted.
  Result<WireKey> add(const Memory& memory);
  /// Ends the permit at once; the slot stays taken until release().
  void revoke(WireKey key) noexcept;
  /// Nothing can land any more. Returns the block that has no key any more, or 0.
  uint64_t release(WireKey key) noexcept;

  /// Where a fetched piece goes; null when key or bounds are wrong. Good until the caller's next
  /// look for fences, because only the worker fetches and only the worker proves them.
  std::byte* place(WireKey key, uint64_t offset, uint64_t bytes) noexcept;

  /// Shared pages that at least one key lies in; without a file when there are none of that number.
  SharedPages::Location block(uint64_t number);

 private:
  struct Own {
    std::byte* address = nullptr;
    uint64_t size_bytes = 0;
    uint64_t block = 0;  ///< 0: none
    uint32_t generation = 0;
    bool live = false;
    bool remote_write = false;
  };
  struct Shown {
    SharedPages::Location place{};
    uint32_t keys = 0;
  };

  LightMutex mutex_;  // nearly always the worker's, in place()
  Front& front_;
  std::vector<Own> keys_;
  std::vector<uint32_t> free_;
  std::map<uint64_t, Shown> blocks_;
};

}  // namespace fabric::shm
