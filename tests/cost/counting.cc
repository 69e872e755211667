#include "cost/counting.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>

#include <fmt/format.h>

namespace fabric::test {
namespace {

constexpr size_t kCallSites = 16;
constexpr size_t kFrames = 8;
constexpr size_t kOwnFrames = 2;  // note(), and the function that calls it

struct CallSite {
  const uint64_t* counter = nullptr;
  const char* what = nullptr;
  std::array<void*, kFrames> frames{};
  uint64_t times = 0;
};

thread_local bool calls_counted = false;
uint64_t allocations = 0, frees = 0, locks = 0;
std::array<CallSite, kCallSites> call_sites{};
ptrdiff_t site_count = 0;

void note(uint64_t& counter, const char* what) {
  if (!calls_counted) return;
  calls_counted = false;  // the allocations of backtrace() do not count
  ++counter;
  CallSite here{.counter = &counter, .what = what};
  backtrace(here.frames.data(), kFrames);
  const auto end = call_sites.begin() + site_count;
  const auto known = std::find_if(call_sites.begin(), end, [&](const CallSite& site) {
    return site.what == what && site.frames == here.frames;
  });
  if (known != end) {
    ++known->times;
  } else if (site_count < std::ssize(call_sites)) {
    here.times = 1;
    call_sites[static_cast<size_t>(site_count++)] = here;
  }
  calls_counted = true;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::string describe(const CallSite& site) {
  std::string text = fmt::format("{} x {} from", site.times, site.what);
  for (size_t i = kOwnFrames; i < kFrames && site.frames[i] != nullptr; ++i) {
    Dl_info info{};
    if (dladdr(site.frames[i], &info) == 0) continue;
    const auto offset =
        reinterpret_cast<uintptr_t>(site.frames[i]) - reinterpret_cast<uintptr_t>(info.dli_fbase);
    text +=
        fmt::format(" {}+{:#x}", std::filesystem::path(info.dli_fname).filename().string(), offset);
  }
  return text + '\n';
}

}  // namespace

Counting::Counting() {
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);  // the first call loads a library
  allocations = frees = locks = site_count = 0;
  calls_counted = true;
}

Counting::~Counting() { calls_counted = false; }

Counts Counting::done() {
  calls_counted = false;
  Counts counts{.allocations = allocations, .frees = frees, .locks = locks};
  for (ptrdiff_t i = 0; i < site_count; ++i) {
    const CallSite& site = call_sites[static_cast<size_t>(i)];
    (site.counter == &locks ? counts.where_locked : counts.where_allocated) += describe(site);
  }
  return counts;
}

}  // namespace fabric::test

using fabric::test::note;

// Interposes on the function of this name: counts, and calls the next one.
#define FABRIC_TEST_COUNTED_LOCK(name, parameters, arguments)            \
  int name parameters noexcept {                                         \
    static auto* const real = fabric::test::next<int parameters>(#name); \
    note(fabric::test::locks, #name);                                    \
    return real arguments;                                               \
  }

extern "C" {

// The allocator under its other names, which nothing else uses.
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) noexcept {
  note(fabric::test::allocations, "malloc");
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) noexcept {
  note(fabric::test::allocations, "calloc");
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) noexcept {
  note(fabric::test::allocations, "realloc");
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) noexcept {
  note(fabric::test::allocations, "memalign");
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  note(fabric::test::allocations, "aligned_alloc");
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  note(fabric::test::allocations, "posix_memalign");
  *memory = __libc_memalign(alignment, bytes);
  return *memory != nullptr ? 0 : ENOMEM;
}
void free(void* memory) noexcept {
  if (memory != nullptr) note(fabric::test::frees, "free");
  __libc_free(memory);
}

FABRIC_TEST_COUNTED_LOCK(pthread_mutex_lock, (pthread_mutex_t * lock), (lock))
FABRIC_TEST_COUNTED_LOCK(pthread_mutex_trylock, (pthread_mutex_t * lock), (lock))
FABRIC_TEST_COUNTED_LOCK(pthread_mutex_timedlock, (pthread_mutex_t * lock, const timespec* until),
                         (lock, until))
FABRIC_TEST_COUNTED_LOCK(pthread_mutex_clocklock,
                         (pthread_mutex_t * lock, clockid_t clock, const timespec* until),
                         (lock, clock, until))
FABRIC_TEST_COUNTED_LOCK(pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
FABRIC_TEST_COUNTED_LOCK(pthread_rwlock_tryrdlock, (pthread_rwlock_t * lock), (lock))
FABRIC_TEST_COUNTED_LOCK(pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
FABRIC_TEST_COUNTED_LOCK(pthread_rwlock_trywrlock, (pthread_rwlock_t * lock), (lock))
}
