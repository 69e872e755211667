#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include <fabric/result.h>

#include "base/fork_guard.h"
#include "base/unique_fd.h"

// One slot per thread that stores into the memory of other processes. A peer that maps the slots
// read-only sees from them whether the thread is inside a copy and whether it is alive. The fence
// (proof.h) relies on both: docs/design/0010-same-host-fence.md.

namespace fabric::shm {

/// The shared state of one writer thread, in memory that peers map read-only. Only the thread that
/// owns the slot writes it, except that the kernel marks `liveness_mutex` when the thread dies.
///
/// Invariant: the thread stores into a peer's memory only while `section_seq` is odd and the thread
/// holds `liveness_mutex`. An epoch is the number in the SharedHeader of the memory's owner under
/// which a path or an rkey is valid, and which a section checks before it stores. So the memory's
/// owner, after revoking an epoch, knows that no store under it can follow once it has seen
/// `section_seq` change or the owner-died mark (proof.h has the other two proofs).
struct alignas(128) WriterSlot {
  /// Robust and process-shared; the owner holds it until it exits, and no thread ever waits for it.
  /// The kernel sets FUTEX_OWNER_DIED in its lock word when the thread dies, before it frees the
  /// memory of the process, so that a peer learns of a death at once.
  pthread_mutex_t liveness_mutex;
  /// A sequence number: odd while the thread is inside a section that may store into a peer's
  /// memory. It grows by 2 with each section, so another value proves that the section has ended.
  std::atomic<uint32_t> section_seq;
  std::atomic<uint32_t> tid;  ///< owner, in the pid namespace of its process; 0: the slot is free
  /// Nonzero: a section that is preempted checks its guard again before it stores more
  /// (GuardKind::kRestartable). Per thread, because rseq is registered per thread; constant while
  /// the slot has an owner.
  std::atomic<uint32_t> restartable;
};
static_assert(sizeof(WriterSlot) == 128);

/// The layout of the memfd that a process shares with its peers.
struct WriterSlotTable {
  static constexpr uint32_t kSlots = 4096;
  /// High-water mark: only slots [0, used) have ever been inside a section.
  std::atomic<uint32_t> used;
  WriterSlot slot[kSlots];
};

/// The slots of this process: owns the memfd and gives each writer thread a slot.
///
/// Lifetime: a singleton created on first use. It is never unmapped, because application threads
///   hold slots until they exit, longer than any engine. A child of fork() gets its own.
/// Threads: all functions from any thread; slots are claimed with a compare-exchange of `tid`.
/// Invariant: a thread has at most one slot, and no two threads share one.
class WriterSlots {
 public:
  /// Fails with kExhausted (no memory or descriptor), kUnsupported (no robust mutex whose word can
  /// be read, no sealed memory).
  static Result<WriterSlots*> of_process();

  int fd() const noexcept { return fd_.get(); }  ///< passed to peers, which can map it read-only
  /// The calling thread's slot: taken on its first call, released when the thread exits. Null when
  /// all slots are taken. The main thread does not release its slot on return from main(), so that
  /// peers see that process exit as well.
  WriterSlot* mine() noexcept {
    WriterSlot* const slot = mine_;
    return slot != nullptr ? slot : take();
  }

  /// First call of mine(). `limit`: uses only the first slots, for tests that exhaust them.
  WriterSlot* take(uint32_t limit = WriterSlotTable::kSlots) noexcept;

  ~WriterSlots() = default;

 private:
  WriterSlots() = default;
  static Result<std::unique_ptr<WriterSlots>> make();
  static void release(void* slot) noexcept;
  static void on_child() noexcept;
  static bool install_hooks() noexcept;

  // Initial-exec: one load relative to the thread pointer, even in a shared library.
  [[gnu::tls_model("initial-exec")]] static thread_local constinit inline WriterSlot* mine_ =
      nullptr;

  WriterSlotTable* table_ = nullptr;
  UniqueFd fd_;
  ForkGuard fork_;
  std::unique_ptr<WriterSlots> parent_;  ///< inherited across fork(); kept to own its descriptor
};

/// A read-only mapping of a peer process's slots (or of our own, for two engines in one process).
/// Its contents are untrusted: reads stay in bounds, and a peer that stores false values there
/// affects only its own fences and paths.
///
/// Lifetime: shared by the ShmPeer and the fences that still wait for the process.
/// Threads: immutable after map(); all functions from any thread.
class PeerWriterSlots {
 public:
  /// `fd` is untrusted: fails with kBadFormat unless it is a memfd of the right size, sealed
  /// against shrinking; with kExhausted if it cannot be mapped. `pid` is the peer in our pid
  /// namespace; 0 if it is not visible there, in which case procfs cannot be used for proofs.
  static Result<std::unique_ptr<PeerWriterSlots>> map(UniqueFd fd, int32_t pid);
  ~PeerWriterSlots();

  /// Some thread exited without releasing its slot, which only the exit of its whole process (or
  /// exec()) causes. Other threads of the process may still be in their last instructions.
  bool process_died() const noexcept;
  /// The thread of this slot has executed its last user-space instruction.
  bool thread_died(uint32_t index) const noexcept;
  /// Some thread holds a slot, so that process_died() would see a death.
  bool any_held() const noexcept;
  int32_t pid() const noexcept { return pid_; }
  uint32_t used() const noexcept;  ///< clamped to WriterSlotTable::kSlots
  const WriterSlot& slot(uint32_t index) const noexcept { return table_->slot[index]; }

 private:
  PeerWriterSlots(const WriterSlotTable* table, int32_t pid) noexcept : table_(table), pid_(pid) {}

  const WriterSlotTable* table_;
  int32_t pid_;
  ForkGuard fork_;
};

}  // namespace fabric::shm
