#include "base/biased_lock.h"

#include <algorithm>

#include "base/membarrier.h"

namespace fabric {

void Regular::send_away() noexcept {
  last_ = now_.load(std::memory_order_relaxed);
  now_.store(nullptr, std::memory_order_relaxed);  // ordered by the fence
  visits_ = 0;
  visits_needed_ = std::min(visits_needed_ * 2, kVisitsMost);
  fence_all_threads();
}

void Regular::settle() noexcept {
  visits_ = 0;
  if (!can_fence_all_threads()) return;
  for (Seat& seat : seats_) {
    const void* const whose = seat.whose.load(std::memory_order_relaxed);
    if (whose != nullptr && whose != visitor_) continue;
    // Relaxed, both: the thread for which they mean something is this one.
    seat.whose.store(visitor_, std::memory_order_relaxed);
    now_.store(&seat, std::memory_order_relaxed);
    return;
  }
}

}  // namespace fabric
