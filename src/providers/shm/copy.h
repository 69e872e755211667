#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <fabric/provider.h>

#include "providers/shm/writer_slots.h"

// Copies into memory that another process owns and may revoke at any moment.

namespace fabric::shm {

/// The condition for storing bytes: two epochs in the owner's SharedHeader, which the owner changes
/// when it closes the path or revokes the rkey. A null pointer is not checked.
struct Guard {
  const std::atomic<uint64_t>* path_epoch = nullptr;
  uint64_t path_value = 0;
  const std::atomic<uint64_t>* rkey_epoch = nullptr;
  uint64_t rkey_value = 0;
};

/// A store that ends the last section, after all bytes and only if the guard still holds.
struct Commit {
  std::atomic<uint64_t>* word = nullptr;  ///< null: none
  uint64_t value = 0;
};

/// How this process guards its copies: the best kind that the machine supports.
enum class GuardKind : uint8_t {
  kRestartable,  ///< rseq: a preempted copy restarts with the check of the guard
  kPlain,        ///< checked once before each chunk: the owner has to wait for the end of the chunk
};
GuardKind guard_kind() noexcept;

/// The most bytes in one section, so that an owner waits tens of microseconds at most.
inline constexpr uint64_t kChunkBytes = 256u << 10;

enum class Stored : uint8_t {
  kDone,
  kStale,  ///< the guard does not hold: the commit was not stored; earlier chunks may have been
};

/// Copies `bytes` (0 is legal: the commit alone) in chunks, each inside a section that is announced
/// in the calling thread's `slot`. `barrier`: the owner cannot call membarrier or this process
/// could not register for it (FenceSupport), so each section needs a full barrier. `total_bytes`:
/// size of the write that this is a part of, which selects the copy method; 0: `bytes`. The ranges
/// must not overlap. Non-temporal stores are drained before the section ends.
Stored guarded_copy(WriterSlot& slot, std::byte* target, const std::byte* source, uint64_t bytes,
                    const Guard& guard, const Commit& commit, bool barrier,
                    uint64_t total_bytes = 0) noexcept;

/// Copies a burst of small writes in one section with one commit after all of them, so that either
/// all of them are published or none. Each goes to `base` plus its target and has 1 to
/// burst_write_bytes_max() bytes; together they stay below a chunk. `barrier` as above.
Stored guarded_burst(WriterSlot& slot, std::byte* base, std::span<const WriteOp> writes,
                     const Guard& guard, const Commit& commit, bool barrier) noexcept;
uint64_t burst_write_bytes_max() noexcept;

/// Whether the kernel restarts preempted sections of the calling thread (WriterSlot::restartable).
bool thread_is_restartable() noexcept;

/// For tests: sets the kind of the calling thread's slot and of all slots taken from now on. False
/// if the machine does not support it.
bool use_guard_kind(GuardKind kind) noexcept;

/// How the bytes of a section are moved. bench/copy measures them; docs/design/0010 has the table.
enum class CopyMethod : uint8_t {
  kBest,         ///< by size
  kVector,       ///< a loop with 32-byte vector registers
  kRepMovsb,     ///< rep movsb
  kNonTemporal,  ///< non-temporal stores, which bypass the caches
};
/// For the benchmark: the method that guarded_copy() uses from now on where the size allows it.
void use_copy_method(CopyMethod move) noexcept;

}  // namespace fabric::shm
