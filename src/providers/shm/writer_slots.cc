#include "providers/shm/writer_slots.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "providers/shm/copy.h"
#include "providers/shm/mapping.h"

namespace fabric::shm {

namespace {

/// The futex word that the kernel marks. Read directly, because the pthread calls need write access
/// to the mutex and peers map it read-only.
uint32_t lock_word(const pthread_mutex_t& mutex) noexcept {
#ifdef __GLIBC__
  static_assert(sizeof(mutex.__data.__lock) == sizeof(uint32_t));
  // Pairs with the kernel's exchange when the owner dies, a full barrier: a reader that sees the
  // mark sees all stores of the thread.
  return static_cast<uint32_t>(__atomic_load_n(&mutex.__data.__lock, __ATOMIC_ACQUIRE));
#else
  return 0;
#endif
}

bool init_robust(pthread_mutex_t& mutex) noexcept {
  pthread_mutexattr_t attr;
  if (pthread_mutexattr_init(&attr) != 0) return false;
  const bool made = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) == 0 &&
                    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST) == 0 &&
                    pthread_mutex_init(&mutex, &attr) == 0;
  pthread_mutexattr_destroy(&attr);
  return made;
}

/// Whether this C library keeps the owner's tid in the word that lock_word() reads.
bool lock_word_is_known() noexcept {
  pthread_mutex_t mutex;
  if (!init_robust(mutex)) return false;
  const uint32_t before = lock_word(mutex);
  if (pthread_mutex_lock(&mutex) != 0) return false;
  const uint32_t owner_tid = lock_word(mutex) & FUTEX_TID_MASK;
  pthread_mutex_unlock(&mutex);
  pthread_mutex_destroy(&mutex);
  return before == 0 && owner_tid == static_cast<uint32_t>(gettid());
}

pthread_key_t thread_exit_key;
std::atomic<WriterSlots*> instance{nullptr};

}  // namespace

// A pthread key instead of a thread_local object: its destructor runs after those of all
// thread_local objects, which may still copy, runs again if one of them takes a slot again, and
// does not run for the main thread at exit().
bool WriterSlots::install_hooks() noexcept {
  static const bool installed = pthread_key_create(&thread_exit_key, &WriterSlots::release) == 0 &&
                                pthread_atfork(nullptr, nullptr, &WriterSlots::on_child) == 0;
  return installed;
}

// The slot that the child's only thread inherited is neither mapped nor locked in the child.
void WriterSlots::on_child() noexcept { mine_ = nullptr; }

Result<std::unique_ptr<WriterSlots>> WriterSlots::make() {
  if (!install_hooks()) return fail(Errc::kExhausted, "pthread_key_create or pthread_atfork");
  if (!lock_word_is_known()) return fail(Errc::kUnsupported, "robust mutex");
  std::unique_ptr<WriterSlots> slots(new (std::nothrow) WriterSlots);
  if (!slots) return fail(Errc::kExhausted, "shm writer slots");
  slots->fd_.reset(memfd_create("fabric-writer-slots", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = slots->fd_.get();
  if (fd < 0) {
    return fail(errno == ENOSYS ? Errc::kUnsupported : Errc::kExhausted, "memfd_create", errno);
  }
  if (ftruncate(fd, sizeof(WriterSlotTable)) != 0)
    return fail(Errc::kExhausted, "ftruncate", errno);
  void* const at =
      mmap(nullptr, sizeof(WriterSlotTable), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail(Errc::kExhausted, "mmap", errno);
  // Zeroed pages are a valid array of free slots.
  slots->table_ = static_cast<WriterSlotTable*>(at);
  // A peer that shrank it would make our accesses fault. The seal against writing only protects
  // against mistakes, so an older kernel may lack it.
  constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  const bool sealed = fcntl(fd, F_ADD_SEALS, kSizeSeals | kSealFutureWrite | F_SEAL_SEAL) == 0 ||
                      fcntl(fd, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) == 0;
  if (!sealed || madvise(at, sizeof(WriterSlotTable), MADV_DONTFORK) != 0) {
    const int why = errno;
    munmap(at, sizeof(WriterSlotTable));
    return fail(Errc::kUnsupported, sealed ? "madvise" : "fcntl(F_ADD_SEALS)", why);
  }
  return slots;
}

Result<WriterSlots*> WriterSlots::of_process() {
  // Pairs with the exchange below, which publishes the object with the pointer.
  WriterSlots* present = instance.load(std::memory_order_acquire);
  if (present != nullptr && !present->fork_.forked()) return present;
  auto made = make();
  if (!made) return made.error();
  // No lock: one held by another thread of the parent during fork() would stay locked here.
  if (instance.compare_exchange_strong(present, made->get(), std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
    (*made)->parent_.reset(present);
    return made->release();
  }
  munmap((*made)->table_, sizeof(WriterSlotTable));
  return present;
}

WriterSlot* WriterSlots::take(uint32_t limit) noexcept {
  if (mine_ != nullptr) return mine_;
  if (fork_.forked()) return nullptr;  // not mapped in the child
  const auto tid = static_cast<uint32_t>(gettid());
  for (uint32_t i = 0; i < std::min(limit, WriterSlotTable::kSlots); ++i) {
    WriterSlot& slot = table_->slot[i];
    // Pairs with the release store of 0 in release(): the mutex may be initialised again.
    uint32_t owner = slot.tid.load(std::memory_order_relaxed);
    if (owner != 0 || !slot.tid.compare_exchange_strong(owner, tid, std::memory_order_acquire,
                                                        std::memory_order_relaxed)) {
      continue;
    }
    // The pthread key first: a slot that is never released looks like the death of the process.
    if (pthread_setspecific(thread_exit_key, &slot) != 0 || !init_robust(slot.liveness_mutex) ||
        pthread_mutex_trylock(&slot.liveness_mutex) != 0) {  // always free here
      slot.tid.store(0, std::memory_order_release);          // as in release()
      return nullptr;
    }
    // Before the first section: pairs with the loads in Proof, which follow heavy_barrier().
    slot.restartable.store(thread_is_restartable() ? 1 : 0, std::memory_order_relaxed);
    uint32_t used = table_->used.load(std::memory_order_relaxed);
    // Pairs with PeerWriterSlots::used().
    while (used <= i && !table_->used.compare_exchange_weak(used, i + 1, std::memory_order_release,
                                                            std::memory_order_relaxed)) {
    }
    return mine_ = &slot;
  }
  return nullptr;
}

void WriterSlots::release(void* at) noexcept {
  // In a child of fork() the pthread key still holds the slot of the parent's thread.
  if (mine_ != at) return;
  mine_ = nullptr;
  WriterSlot& slot = *static_cast<WriterSlot*>(at);
  // Odd if the thread was cancelled inside a section, which it never resumes.
  const uint32_t section_seq = slot.section_seq.load(std::memory_order_relaxed);
  slot.section_seq.store((section_seq + 1) & ~1u,
                         std::memory_order_release);  // pairs with Proof's loads
  pthread_mutex_unlock(&slot.liveness_mutex);
  pthread_mutex_destroy(&slot.liveness_mutex);
  slot.tid.store(0, std::memory_order_release);  // pairs with the exchange in take()
}

Result<std::unique_ptr<PeerWriterSlots>> PeerWriterSlots::map(UniqueFd fd, int32_t pid) {
  struct stat st {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);  // fails unless it is a memfd
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &st) != 0 ||
      !S_ISREG(st.st_mode) || st.st_size != sizeof(WriterSlotTable)) {
    return fail(Errc::kBadFormat, "shm writer slots of a peer");
  }
  void* const at = mmap(nullptr, sizeof(WriterSlotTable), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return fail(Errc::kExhausted, "mmap", errno);
  std::unique_ptr<PeerWriterSlots> slots(
      new (std::nothrow) PeerWriterSlots(static_cast<const WriterSlotTable*>(at), pid));
  if (!slots || madvise(at, sizeof(WriterSlotTable), MADV_DONTFORK) != 0) {
    if (!slots) munmap(at, sizeof(WriterSlotTable));
    return fail(Errc::kExhausted, "shm writer slots of a peer");
  }
  return slots;
}

PeerWriterSlots::~PeerWriterSlots() {
  // In a child of fork() the addresses may be in use by another mapping.
  if (!fork_.forked()) munmap(const_cast<WriterSlotTable*>(table_), sizeof(WriterSlotTable));
}

bool PeerWriterSlots::any_held() const noexcept {
  const uint32_t slots = used();
  for (uint32_t i = 0; i < slots; ++i) {
    if (slot(i).tid.load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

bool PeerWriterSlots::process_died() const noexcept {
  const uint32_t slots = used();
  for (uint32_t i = 0; i < slots; ++i) {
    if (thread_died(i)) return true;
  }
  return false;
}

bool PeerWriterSlots::thread_died(uint32_t index) const noexcept {
  // The tid in the word is of the peer's pid namespace, so only the mark is used.
  return (lock_word(slot(index).liveness_mutex) & FUTEX_OWNER_DIED) != 0;
}

uint32_t PeerWriterSlots::used() const noexcept {
  // Pairs with the exchange in WriterSlots::take().
  return std::min(table_->used.load(std::memory_order_acquire), WriterSlotTable::kSlots);
}

}  // namespace fabric::shm
