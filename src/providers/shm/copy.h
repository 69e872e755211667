#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <fabric/provider.h>

#include "providers/shm/writer_slots.h"

// Copies into memory that another process owns and may take back at any moment.

namespace fabric::shm {

/// What has to hold while bytes are stored: two words that the owner changes when it closes the
/// path or takes the memory back. A null pointer asks for nothing.
struct Guard {
  const std::atomic<uint64_t>* path_epoch = nullptr;
  uint64_t path_value = 0;
  const std::atomic<uint64_t>* rkey_epoch = nullptr;
  uint64_t rkey_value = 0;
};

/// A store that ends the last section: it happens only if the guard still holds, behind all bytes.
struct Commit {
  std::atomic<uint64_t>* word = nullptr;  ///< null: none
  uint64_t value = 0;
};

/// How this process guards its copies; the best that the machine has.
enum class GuardKind : uint8_t {
  kRestartable,  ///< rseq: a copy that was switched out looks at the guard again before it stores
  kPlain,        ///< only looked at before each chunk: the owner waits for the end of the chunk
};
GuardKind guard_kind() noexcept;

/// Longest stretch in one section, so that an owner waits some tens of microseconds at most.
inline constexpr uint64_t kChunkBytes = 256u << 10;

enum class Stored : uint8_t {
  kDone,
  kStale,  ///< the guard does not hold: some bytes may have been stored before, the commit was not
};

/// Copies `bytes` (0 is legal: the commit alone) in chunks, each inside a section on the calling
/// thread's slot. `fence`: the owner cannot call membarrier or this process could not register for
/// it (FenceSupport), so each section pays for a full fence. `total_bytes`: of the copy that this is
/// a part of, which decides how bytes are moved; 0: of this one. The ranges do not overlap.
/// Non-temporal stores are drained before the section ends.
Stored guarded_copy(WriterSlot& slot, std::byte* target, const std::byte* source, uint64_t bytes,
                    const Guard& guard, const Commit& commit, bool fence,
                    uint64_t total_bytes = 0) noexcept;

/// Small writes in one section, with one commit behind all of them: they are there together or, as
/// far as anybody is told, not at all. Each goes to its target behind `base` and has 1 to
/// burst_write_bytes_max() bytes; all together stay below a chunk. `fence` as above.
Stored guarded_burst(WriterSlot& slot, std::byte* base, std::span<const WriteOp> writes, const Guard& guard,
                   const Commit& commit, bool fence) noexcept;
uint64_t burst_write_bytes_max() noexcept;

/// Whether a section of the calling thread is one that the kernel restarts: what its slot says.
bool thread_is_restartable() noexcept;

/// For tests: the kind of the calling thread's slot and of all that are taken from now on, if the
/// machine has it.
bool use_guard_kind(GuardKind kind) noexcept;

/// How the bytes of a section are moved. bench/copy measures them; docs/design/0010 has the table.
enum class Move : uint8_t {
  kBest,    ///< by size
  kVector,  ///< a loop of vector registers, of 32 bytes
  kRepeat,  ///< rep movsb
  kStream,  ///< non-temporal stores, which leave the caches alone
};
/// For the benchmark: what guarded_copy() uses from now on where the size allows it.
void use_move(Move move) noexcept;

}  // namespace fabric::shm
