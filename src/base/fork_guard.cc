#include "base/fork_guard.h"

#include <pthread.h>

#include <new>

namespace fabric {

namespace detail {
std::atomic<uint32_t> fork_generation{0};
}

namespace {

// Runs in the child before fork() returns. It takes no lock: another thread of the parent may have
// held any of them.
void on_child() {
  detail::fork_generation.fetch_add(1, std::memory_order_relaxed);  // pairs with nothing, see above
}

}  // namespace

ForkGuard::ForkGuard() {
  // ENOMEM is the only failure. If this throws, the static stays uninitialised and the next
  // ForkGuard tries again.
  [[maybe_unused]] static const bool installed = [] {
    if (pthread_atfork(nullptr, nullptr, &on_child) != 0) throw std::bad_alloc();
    return true;
  }();
  generation_ = detail::fork_generation.load(std::memory_order_relaxed);  // as in forked()
}

}  // namespace fabric
