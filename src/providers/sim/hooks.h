#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fabric::sim {

/// The functions that a world calls at one occasion, in the order in which they were added. The
/// user's Hook owns the function: when it is gone, so is the function, and the list drops its
/// entry.
///
/// Threads: one at a time, virtual time only.
template <class... Args>
class HookList {
 public:
  using Function = std::function<void(Args...)>;

  /// Returns the owner of the function.
  std::shared_ptr<const void> add(Function function) {
    auto owner = std::make_shared<const Function>(std::move(function));
    hooks_.push_back(owner);
    return owner;
  }
  bool empty() const noexcept { return hooks_.empty(); }
  void clear() noexcept { hooks_.clear(); }

  void call(const Args&... args) {
    bool ended = false;
    ++depth_;
    // By index: a function may add hooks, which are called too, and clear the list.
    for (size_t i = 0; i < hooks_.size(); ++i) {
      // Locked for the call: a function may end its own hook.
      const auto function = hooks_[i].lock();
      if (function != nullptr) (*function)(args...);
      ended = ended || function == nullptr;
    }
    --depth_;
    // A nested call must not move the entries that an outer one counts.
    if (ended && depth_ == 0)
      std::erase_if(hooks_, [](const auto& hook) { return hook.expired(); });
  }

 private:
  std::vector<std::weak_ptr<const Function>> hooks_;
  size_t depth_ = 0;  // of call() inside call()
};

}  // namespace fabric::sim
