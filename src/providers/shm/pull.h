#pragma once
#include "base/unique_fd.h"
#include "providers/shm/wire.h"
#include <sys/uio.h>
namespace fabric::shm {
struct Stretch { uint64_t source=0; std::byte* target=nullptr; uint64_t bytes=0; };
UniqueFd open_own_memory();
class Puller {
 public:
  bool by_process(int32_t pid, const Beacon& beacon);
  bool by_memory(UniqueFd memory, const Beacon& beacon);
  Result<void> read(std::span<const Stretch> s) noexcept;
  int pid_=0; UniqueFd mem_;
};
}
