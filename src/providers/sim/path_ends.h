#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace fabric::sim {

/// The path ends of one rail, by number. Numbers are never reused; an end is erased when its engine
/// has polled its kPathDown, so that memory stays bounded. Ends keep their address.
template <class End>
class PathEnds {
 public:
  uint32_t add() {
    ends_.push_back({++last_, std::make_unique<End>()});
    return last_;
  }

  End* find(uint32_t number) const noexcept {
    if (number == 0 || ends_.empty()) return nullptr;
    // Numbers ascend, so an end is at its number's index, or before it if others were erased.
    const size_t at = std::min<size_t>(number, ends_.size()) - 1;
    if (ends_[at].number == number) return ends_[at].end.get();
    const auto found = lower_bound(number);
    return found == ends_.end() || found->number != number ? nullptr : found->end.get();
  }

  void erase(uint32_t number) {
    const auto found = lower_bound(number);
    if (found != ends_.end() && found->number == number) ends_.erase(found);
  }

  bool known(uint32_t number) const noexcept { return number != 0 && number <= last_; }
  size_t size() const noexcept { return ends_.size(); }

  /// Calls f(number, end) for each, in the order of their numbers. f must not erase an end.
  template <class F>
  void each(F&& f) const {
    for (const Item& item : ends_) f(item.number, *item.end);
  }

 private:
  struct Item {
    uint32_t number = 0;
    std::unique_ptr<End> end{};
  };

  auto lower_bound(uint32_t number) const noexcept {
    return std::lower_bound(ends_.begin(), ends_.end(), number,
                            [](const Item& item, uint32_t n) { return item.number < n; });
  }

  std::vector<Item> ends_;  // by ascending number
  uint32_t last_ = 0;
};

}  // namespace fabric::sim
