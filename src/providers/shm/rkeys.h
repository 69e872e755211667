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

/// The registered memory of this engine. Assigns rkeys (index and generation), publishes them in
/// the SharedHeader, and resolves the rkeys of pull requests to local addresses.
///
/// Owner: ShmNetwork. Threads: all functions from any thread, under `mutex_`.
/// Invariant: an index is reused only after release(), that is after a proof that no writer can
///   store under the old rkey, and then with another generation.
class RkeyTable {
 public:
  explicit RkeyTable(SharedHeader& header) noexcept : header_(header) {}

  /// Fails with kExhausted.
  Result<WireRkey> add(const Memory& memory);
  /// Invalidates the published entry at once; the index stays in use until release().
  void revoke(WireRkey rkey) noexcept;
  /// Frees the index, after the fence proved that no write can land. Returns the block if this was
  /// the last rkey in it, else 0.
  uint64_t release(WireRkey rkey) noexcept;

  /// The local address for a pull; null if the rkey is not valid or the range is out of bounds. The
  /// address stays valid until the worker next polls its fences: only the worker pulls, and only
  /// the worker completes fences.
  std::byte* resolve(WireRkey rkey, uint64_t offset, uint64_t bytes) noexcept;

  /// The shared pages of a block that contains at least one rkey; without a file if there is none.
  SharedPages::Location block(uint64_t number);

 private:
  /// What the engine itself knows about one rkey; peers see the RkeyEntry of the same index.
  struct RkeyRecord {
    std::byte* address = nullptr;
    uint64_t size_bytes = 0;
    uint64_t block = 0;  ///< 0: not in shared pages
    uint32_t generation = 0;
    bool live = false;
    bool remote_write = false;
  };
  /// A block of shared pages and the number of rkeys in it.
  struct BlockUse {
    SharedPages::Location location{};
    uint32_t rkeys = 0;
  };

  LightMutex mutex_;  // contended rarely: nearly all calls are resolve() by the worker
  SharedHeader& header_;
  std::vector<RkeyRecord> rkeys_;
  std::vector<uint32_t> free_;
  std::map<uint64_t, BlockUse> blocks_;
};

}  // namespace fabric::shm
