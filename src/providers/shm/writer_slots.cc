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
  const uint32_t held = lock_word(mutex) & FUTEX_TID_MASK;
  pthread_mutex_unlock(&mutex);
  pthread_mutex_destroy(&mutex);
  return before == 0 && held == static_cast<uint32_t>(gettid());
}

pthread_key_t end_of_thread;
std::atomic<Cards*> of_this_process{nullptr};

}  // namespace

// A key and no thread_local object: its destructor runs behind those of all thread_local objects,
// which may still copy, and again if a later one takes a card once more; and it does not run for
// the main thread at exit().
bool Cards::hooks_installed() noexcept {
  static const bool installed = pthread_key_create(&end_of_thread, &Cards::give_back) == 0 &&
                                pthread_atfork(nullptr, nullptr, &Cards::on_child) == 0;
  return installed;
}

// The child has one thread, and the card that it remembers is neither mapped nor locked there.
void Cards::on_child() noexcept { mine_ = nullptr; }

Result<std::unique_ptr<Cards>> Cards::make() {
  if (!hooks_installed()) return fail(Errc::kExhausted, "pthread_key_create");
  if (!lock_word_is_known()) return fail(Errc::kUnsupported, "robust mutex");
  std::unique_ptr<Cards> cards(new (std::nothrow) Cards);
  if (!cards) return fail(Errc::kExhausted, "cards");
  cards->fd_.reset(memfd_create("fabric-cards", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = cards->fd_.get();
  if (fd < 0) {
    return fail(errno == ENOSYS ? Errc::kUnsupported : Errc::kExhausted, "memfd_create", errno);
  }
  if (ftruncate(fd, sizeof(CardPage)) != 0) return fail(Errc::kExhausted, "ftruncate", errno);
  void* const at = mmap(nullptr, sizeof(CardPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail(Errc::kExhausted, "mmap", errno);
  // Fresh pages are zero, and so is a page of cards that nobody has had.
  cards->page_ = static_cast<CardPage*>(at);
  // Peers that could shrink it would end us. That they cannot write is protection against mistakes
  // only, so an older kernel may do without.
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  const bool sealed = fcntl(fd, F_ADD_SEALS, kSize | kSealFutureWrite | F_SEAL_SEAL) == 0 ||
                      fcntl(fd, F_ADD_SEALS, kSize | F_SEAL_SEAL) == 0;
  if (!sealed || madvise(at, sizeof(CardPage), MADV_DONTFORK) != 0) {
    const int why = errno;
    munmap(at, sizeof(CardPage));
    return fail(Errc::kUnsupported, "sealed memory", why);
  }
  return cards;
}

Result<Cards*> Cards::of_process() {
  // Pairs with the exchange below: who finds the pointer finds what it points to.
  Cards* present = of_this_process.load(std::memory_order_acquire);
  if (present != nullptr && !present->fork_.forked()) return present;
  auto made = make();
  if (!made) return made.error();
  // No lock: one that another thread of a parent held across fork() would stay locked here.
  if (of_this_process.compare_exchange_strong(present, made->get(), std::memory_order_acq_rel,
                                              std::memory_order_acquire)) {
    (*made)->parent_.reset(present);
    return made->release();
  }
  munmap((*made)->page_, sizeof(CardPage));
  return present;
}

Card* Cards::take(uint32_t among) noexcept {
  if (mine_ != nullptr) return mine_;
  if (fork_.forked()) return nullptr;  // not mapped here
  const auto tid = static_cast<uint32_t>(gettid());
  for (uint32_t i = 0; i < std::min(among, CardPage::kCards); ++i) {
    Card& card = page_->card[i];
    // Pairs with the release store of 0 in give_back(): the mutex is free to be made again.
    uint32_t nobody = card.tid.load(std::memory_order_relaxed);
    if (nobody != 0 || !card.tid.compare_exchange_strong(nobody, tid, std::memory_order_acquire,
                                                         std::memory_order_relaxed)) {
      continue;
    }
    // The key first: a card that is not given back would look like the death of the process.
    if (pthread_setspecific(end_of_thread, &card) != 0 || !init_robust(card.alive) ||
        pthread_mutex_trylock(&card.alive) != 0) {   // it is free: nobody ever waits for one
      card.tid.store(0, std::memory_order_release);  // as in give_back()
      return nullptr;
    }
    // Before the first section: pairs with the loads in Proof, behind a heavy fence.
    card.restartable.store(thread_is_restartable() ? 1 : 0, std::memory_order_relaxed);
    uint32_t used = page_->used.load(std::memory_order_relaxed);
    // Pairs with PeerCards::used().
    while (used <= i && !page_->used.compare_exchange_weak(used, i + 1, std::memory_order_release,
                                                           std::memory_order_relaxed)) {
    }
    return mine_ = &card;
  }
  return nullptr;
}

void Cards::give_back(void* at) noexcept {
  // In a child of fork() the key still has the card of the parent's thread.
  if (mine_ != at) return;
  mine_ = nullptr;
  Card& card = *static_cast<Card*>(at);
  // Odd: the thread was cancelled inside a section, which it will not go back to.
  const uint32_t intent = card.intent.load(std::memory_order_relaxed);
  card.intent.store((intent + 1) & ~1u, std::memory_order_release);  // pairs with Proof's loads
  pthread_mutex_unlock(&card.alive);
  pthread_mutex_destroy(&card.alive);
  card.tid.store(0, std::memory_order_release);  // pairs with the exchange in take()
}

Result<std::unique_ptr<PeerCards>> PeerCards::map(UniqueFd fd, int32_t pid) {
  struct stat about {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);  // only memory has any
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &about) != 0 ||
      !S_ISREG(about.st_mode) || about.st_size != sizeof(CardPage)) {
    return fail(Errc::kBadFormat, "cards of a peer");
  }
  void* const at = mmap(nullptr, sizeof(CardPage), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return fail(Errc::kExhausted, "mmap", errno);
  std::unique_ptr<PeerCards> cards(new (std::nothrow)
                                       PeerCards(static_cast<const CardPage*>(at), pid));
  if (!cards || madvise(at, sizeof(CardPage), MADV_DONTFORK) != 0) {
    if (!cards) munmap(at, sizeof(CardPage));
    return fail(Errc::kExhausted, "cards of a peer");
  }
  return cards;
}

PeerCards::~PeerCards() {
  // In a child of fork() the addresses may belong to somebody else by now.
  if (!fork_.forked()) munmap(const_cast<CardPage*>(page_), sizeof(CardPage));
}

bool PeerCards::held() const noexcept {
  const uint32_t cards = used();
  for (uint32_t i = 0; i < cards; ++i) {
    if (card(i).tid.load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

bool PeerCards::died() const noexcept {
  const uint32_t cards = used();
  for (uint32_t i = 0; i < cards; ++i) {
    if (died(i)) return true;
  }
  return false;
}

bool PeerCards::died(uint32_t index) const noexcept {
  // The owner in the word is a number of the peer's pid namespace: only the mark means something.
  return (lock_word(card(index).alive) & FUTEX_OWNER_DIED) != 0;
}

uint32_t PeerCards::used() const noexcept {
  // Pairs with the exchange in Cards::take().
  return std::min(page_->used.load(std::memory_order_acquire), CardPage::kCards);
}

}  // namespace fabric::shm
