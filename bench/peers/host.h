#pragma once

#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <system_error>

#include <fmt/format.h>

// What every program of a peer needs of its host.

namespace peers {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    throw std::system_error(errno, std::generic_category(), fmt::format("core {}", cpu));
  }
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

inline std::byte* map(uint64_t bytes, int sharing) {
  void* const at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(at);
}

}  // namespace peers
