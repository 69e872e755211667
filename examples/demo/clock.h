#pragma once

#include <chrono>
#include <cstdint>

namespace demo {

/// CLOCK_MONOTONIC is shared by all processes of a host, so times can be compared between them.
inline int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace demo
