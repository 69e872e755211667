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

namespace fabric::shm {

namespace {

// Linux 5.1; the headers of older systems lack it.
constexpr int kSealFutureWrite = 0x0010;

/// The word that the kernel marks, read behind the back of the C library: the calls that would
/// tell need write access to the mutex.
uint32_t lock_word(const pthread_mutex_t& mutex) noexcept {
#ifdef __GLIBC__
  static_assert(sizeof(mutex.__data.__lock) == sizeof(uint32_t));
  // Pairs with the kernel's exchange when the owner dies, a full barrier: what the thread stored is
  // seen by whoever sees the mark.
  return static_cast<uint32_t>(__atomic_load_n(&mutex.__data.__lock, __ATOMIC_ACQUIRE));
#else
  return 0;
#endif
}

bool init_robust(pthread_mutex_t& mutex) noexcept {
  pthread_mutexattr_t kind;
  if (pthread_mutexattr_init(&kind) != 0) return false;
  const bool made = pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED) == 0 &&
                    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0 &&
                    pthread_mutex_init(&mutex, &kind) == 0;
  pthread_mutexattr_destroy(&kind);
  return made;
}

/// Whether a locked mutex names its owner where we look for the mark.
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
std::atomic<WriterSlots*> of_this_process{nullptr};

}  // namespace

// A rkey and no thread_local object: its destructor runs behind those of all thread_local objects,
// which may still copy, and again if a later one takes a slot once more; and it does not run for
// the main thread at exit().
bool WriterSlots::hooks_installed() noexcept {
  static const bool installed = pthread_key_create(&thread_exit_key, &WriterSlots::release) == 0 &&
                                pthread_atfork(nullptr, nullptr, &WriterSlots::on_child) == 0;
  return installed;
}

// The child has one thread, and the slot that it remembers is neither mapped nor locked there.
void WriterSlots::on_child() noexcept { mine_ = nullptr; }

Result<std::unique_ptr<WriterSlots>> WriterSlots::make() {
  if (!hooks_installed()) return fail(Errc::kExhausted, "pthread_key_create");
  if (!lock_word_is_known()) return fail(Errc::kUnsupported, "robust mutex");
  std::unique_ptr<WriterSlots> slots(new (std::nothrow) WriterSlots);
  if (!slots) return fail(Errc::kExhausted, "slots");
  slots->fd_.reset(memfd_create("fabric-slots", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = slots->fd_.get();
  if (fd < 0) {
    return fail(errno == ENOSYS ? Errc::kUnsupported : Errc::kExhausted, "memfd_create", errno);
  }
  if (ftruncate(fd, sizeof(WriterSlotPage)) != 0) return fail(Errc::kExhausted, "ftruncate", errno);
  void* const at = mmap(nullptr, sizeof(WriterSlotPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail(Errc::kExhausted, "mmap", errno);
  // Fresh pages are zero, and so is a page of slots that owner has had.
  slots->page_ = static_cast<WriterSlotPage*>(at);
  // PeerAccess that could shrink it would end us. That they cannot write is protection against mistakes
  // only, so an older kernel may do without.
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  const bool sealed = fcntl(fd, F_ADD_SEALS, kSize | kSealFutureWrite | F_SEAL_SEAL) == 0 ||
                      fcntl(fd, F_ADD_SEALS, kSize | F_SEAL_SEAL) == 0;
  if (!sealed || madvise(at, sizeof(WriterSlotPage), MADV_DONTFORK) != 0) {
    const int why = errno;
    munmap(at, sizeof(WriterSlotPage));
    return fail(Errc::kUnsupported, "sealed memory", why);
  }
  return slots;
}

Result<WriterSlots*> WriterSlots::of_process() {
  // Pairs with the exchange below: who finds the pointer finds what it points to.
  WriterSlots* present = of_this_process.load(std::memory_order_acquire);
  if (present != nullptr && !present->fork_.forked()) return present;
  auto made = make();
  if (!made) return made.error();
  // No lock: one that another thread of a parent any_held across fork() would stay locked here.
  if (of_this_process.compare_exchange_strong(present, made->get(), std::memory_order_acq_rel,
                                              std::memory_order_acquire)) {
    (*made)->parent_.reset(present);
    return made->release();
  }
  munmap((*made)->page_, sizeof(WriterSlotPage));
  return present;
}

WriterSlot* WriterSlots::take(uint32_t limit) noexcept {
  if (mine_ != nullptr) return mine_;
  if (fork_.forked()) return nullptr;  // not mapped here
  const auto tid = static_cast<uint32_t>(gettid());
  for (uint32_t i = 0; i < std::min(limit, WriterSlotPage::kSlots); ++i) {
    WriterSlot& slot = page_->slot[i];
    // Pairs with the release store of 0 in release(): the mutex is free to be made again.
    uint32_t owner = slot.tid.load(std::memory_order_relaxed);
    if (owner != 0 || !slot.tid.compare_exchange_strong(owner, tid, std::memory_order_acquire,
                                                         std::memory_order_relaxed)) {
      continue;
    }
    // The rkey first: a slot that is not given back would look like the death of the process.
    if (pthread_setspecific(thread_exit_key, &slot) != 0 || !init_robust(slot.alive) ||
        pthread_mutex_trylock(&slot.alive) != 0) {   // it is free: owner ever waits for one
      slot.tid.store(0, std::memory_order_release);  // as in release()
      return nullptr;
    }
    // Before the first section: pairs with the loads in Proof, behind a heavy fence.
    slot.restartable.store(thread_is_restartable() ? 1 : 0, std::memory_order_relaxed);
    uint32_t used = page_->used.load(std::memory_order_relaxed);
    // Pairs with PeerWriterSlots::used().
    while (used <= i && !page_->used.compare_exchange_weak(used, i + 1, std::memory_order_release,
                                                           std::memory_order_relaxed)) {
    }
    return mine_ = &slot;
  }
  return nullptr;
}

void WriterSlots::release(void* at) noexcept {
  // In a child of fork() the rkey still has the slot of the parent's thread.
  if (mine_ != at) return;
  mine_ = nullptr;
  WriterSlot& slot = *static_cast<WriterSlot*>(at);
  // Odd: the thread was cancelled inside a section, which it will not go back to.
  const uint32_t intent = slot.intent.load(std::memory_order_relaxed);
  slot.intent.store((intent + 1) & ~1u, std::memory_order_release);  // pairs with Proof's loads
  pthread_mutex_unlock(&slot.alive);
  pthread_mutex_destroy(&slot.alive);
  slot.tid.store(0, std::memory_order_release);  // pairs with the exchange in take()
}

Result<std::unique_ptr<PeerWriterSlots>> PeerWriterSlots::map(UniqueFd fd, int32_t pid) {
  struct stat about {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);  // only memory has any
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &about) != 0 ||
      !S_ISREG(about.st_mode) || about.st_size != sizeof(WriterSlotPage)) {
    return fail(Errc::kBadFormat, "slots of a peer");
  }
  void* const at = mmap(nullptr, sizeof(WriterSlotPage), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return fail(Errc::kExhausted, "mmap", errno);
  std::unique_ptr<PeerWriterSlots> slots(new (std::nothrow)
                                       PeerWriterSlots(static_cast<const WriterSlotPage*>(at), pid));
  if (!slots || madvise(at, sizeof(WriterSlotPage), MADV_DONTFORK) != 0) {
    if (!slots) munmap(at, sizeof(WriterSlotPage));
    return fail(Errc::kExhausted, "slots of a peer");
  }
  return slots;
}

PeerWriterSlots::~PeerWriterSlots() {
  // In a child of fork() the addresses may belong to somebody else by now.
  if (!fork_.forked()) munmap(const_cast<WriterSlotPage*>(page_), sizeof(WriterSlotPage));
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
  // The owner in the word is a number of the peer's pid namespace: only the mark means something.
  return (lock_word(slot(index).alive) & FUTEX_OWNER_DIED) != 0;
}

uint32_t PeerWriterSlots::used() const noexcept {
  // Pairs with the exchange in WriterSlots::take().
  return std::min(page_->used.load(std::memory_order_acquire), WriterSlotPage::kSlots);
}

}  // namespace fabric::shm
