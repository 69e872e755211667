#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include <fabric/result.h>

#include "base/fork_guard.h"
#include "base/unique_fd.h"

// The threads of a process, as other processes see them: who is alive, and who is storing into
// somebody else's memory right now. One array per process, which peers map read-only.

namespace fabric::shm {

/// One thread that copies into other processes' memory. Written by its process only.
struct alignas(128) WriterSlot {
  /// Robust and shared, any_held by the thread for its whole life. When the kernel ends a thread that
  /// holds one it marks the word before it takes the memory apart, however much there is.
  pthread_mutex_t alive;
  /// Odd while the thread is inside a section that may store into a peer's memory. Every section
  /// changes it, so a look that finds another number proves that the earlier one is over.
  std::atomic<uint32_t> intent;
  std::atomic<uint32_t> tid;  ///< as its process sees it; 0: nobody has the slot
  /// Not 0: a section that was switched out looks at its guard again before it stores
  /// (GuardKind::kRestartable). Constant while the slot has an owner, because not every thread of a
  /// process need have what it takes.
  std::atomic<uint32_t> restartable;
};
static_assert(sizeof(WriterSlot) == 128);

/// What every process lays out: header and slots.
struct WriterSlotPage {
  static constexpr uint32_t kSlots = 4096;
  std::atomic<uint32_t> used;  ///< slots [0, used) have had an owner
  WriterSlot slot[kSlots];
};

/// The array of the own process.
///
/// Lifetime: made at the first use, never unmapped, because threads of the application hold slots
///   until they end; a child of fork() makes its own.
/// Threads: everything from any thread.
class WriterSlots {
 public:
  /// Fails with kExhausted (no memory or descriptor), kUnsupported (no robust mutex whose word can
  /// be read, no sealed memory).
  static Result<WriterSlots*> of_process();

  int fd() const noexcept { return fd_.get(); }  ///< for peers, who can map it read-only
  /// The calling thread's, taken at its first call and given back when the thread ends. Null when
  /// all are taken. The main thread keeps its own until the process is gone, so that peers see the
  /// end of a process that simply returns as well.
  WriterSlot* mine() noexcept {
    WriterSlot* const slot = mine_;
    return slot != nullptr ? slot : take();
  }

  /// Of the calling thread, as mine() does at first. Apart, so that a test can make them few.
  WriterSlot* take(uint32_t limit = WriterSlotPage::kSlots) noexcept;

  ~WriterSlots() = default;

 private:
  WriterSlots() = default;
  static Result<std::unique_ptr<WriterSlots>> make();
  static void release(void* slot) noexcept;
  static void on_child() noexcept;
  static bool hooks_installed() noexcept;

  // Read by one load relative to the thread pointer, in a shared library too.
  [[gnu::tls_model("initial-exec")]] static thread_local constinit inline WriterSlot* mine_ = nullptr;

  WriterSlotPage* page_ = nullptr;
  UniqueFd fd_;
  ForkGuard fork_;
  std::unique_ptr<WriterSlots> parent_;  ///< of the process that forked this one: a descriptor to close
};

/// Another process's array, mapped read-only. (Or the own one, for two engines of one process.)
///
/// Threads: immutable after map(); everything from any thread.
class PeerWriterSlots {
 public:
  /// `fd` is from outside: fails with kBadFormat unless it is a memfd of the right size that can
  /// neither shrink nor be a file on a disk. `pid` is the process as this one sees it; 0 when it
  /// does not (another pid namespace), and then procfs gives no proof.
  static Result<std::unique_ptr<PeerWriterSlots>> map(UniqueFd fd, int32_t pid);
  ~PeerWriterSlots();

  /// A thread ended without signing off: only the end of its whole process does that, exec()
  /// included.
  bool process_died() const noexcept;
  /// The same for one thread: it is past its last instruction in user space. Others of its process
  /// may not be yet.
  bool thread_died(uint32_t index) const noexcept;
  /// Some thread holds a slot, so that a death would show there.
  bool any_held() const noexcept;
  int32_t pid() const noexcept { return pid_; }
  uint32_t used() const noexcept;  ///< at most WriterSlotPage::kSlots, whatever the peer wrote
  const WriterSlot& slot(uint32_t index) const noexcept { return page_->slot[index]; }

 private:
  PeerWriterSlots(const WriterSlotPage* page, int32_t pid) noexcept : page_(page), pid_(pid) {}

  const WriterSlotPage* page_;
  int32_t pid_;
  ForkGuard fork_;
};

}  // namespace fabric::shm
