#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <fabric/fabric.h>

#include "control_socket.h"

// Statistics about the receivers.

namespace demo {

/// One completed request.
struct Sample {
  int64_t submitted_ns = 0;  ///< its last layer
  int64_t counted_ns = 0;    ///< the receiver had counted all pages
  uint64_t bytes = 0;
};

/// Requests that completed in a span of time. Latencies in milliseconds.
struct Window {
  uint64_t requests = 0;
  double gigabytes_per_second = 0;
  double p50 = 0, p99 = 0, longest = 0;
};

/// What the source has reported about one receiver.
struct ReceiverStats {
  fabric::PeerState state = fabric::PeerState::kConnecting;
  std::map<fabric::PeerState, int64_t> entered_ns{};  ///< when each state was last entered
  uint64_t pages_expected = 0;                        ///< of every request that was started
  uint64_t pages_counted = 0;
  uint64_t pages_wrong = 0;
  uint64_t counts_extra = 0;  ///< beyond the expected number
  uint64_t requests_done = 0;
  uint64_t bytes_correct = 0;
  std::map<uint64_t, uint64_t> open{};  ///< requests started and not done, with their pages
  std::map<fabric::Errc, uint64_t> failed_ops{};  ///< operations that failed, by code
  std::map<fabric::Errc, uint64_t> refused{};
  int64_t first_failure_ns = 0, last_failure_ns = 0;
  std::vector<Sample> samples{};

  void take(const MessageHeader& header);
  Window window(int64_t from_ns, int64_t to_ns) const;
  uint64_t failures() const;
  uint64_t pages_open() const;
};

std::string lower(const char* name);

}  // namespace demo
