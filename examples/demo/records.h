#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "control_socket.h"

// What happened to every request, as the processes reported it. Times are those of now_ns().

namespace demo {

/// One layer of one chunk of a prompt.
struct ComputedLayer {
  uint32_t layer = 0;
  uint64_t first_token = 0;
  uint64_t tokens = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct AttemptRecord {
  std::string prefiller{};
  std::string decoder{};
  int64_t started_ns = 0;
  std::vector<ComputedLayer> computed{};
  std::map<uint32_t, int64_t> arrived_ns{};  ///< by layer
  int64_t complete_ns = 0;
  uint64_t bytes = 0;
  int64_t failed_ns = 0;
  std::string why{};
  int64_t pages_free_ns = 0;  ///< after a failure: the proof
};

struct RequestRecord {
  uint32_t prompt = 0;
  int64_t submitted_ns = 0;
  int64_t first_token_ns = 0;
  int64_t done_ns = 0;
  std::vector<uint32_t> tokens{};
  bool answers_differ = false;  ///< answered more than once, and not always with the same tokens
  std::map<uint32_t, AttemptRecord> attempts{};
};

/// For the report: what the scenario did and what followed.
struct TimelineEvent {
  int64_t at_ns = 0;
  std::string member{};
  std::string text{};
};

/// Requests that completed in a span of time.
struct Window {
  uint64_t requests = 0;
  double gigabytes_per_second = 0;
  double p50_ms = 0, p99_ms = 0;  ///< submitted until the first token is at the decoder
};

struct Records {
  std::map<uint64_t, RequestRecord> requests{};
  std::vector<TimelineEvent> events{};

  /// `from`: the name of the process.
  void take(const Message& message, const std::string& from);
  uint64_t answered() const;
  uint64_t sent_again() const { return sent_again_; }
  /// Of one decoder, or of all when the name is empty.
  Window window(const std::string& decoder, int64_t from_ns, int64_t to_ns) const;

 private:
  uint64_t sent_again_ = 0;
};

}  // namespace demo
