#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <fabric/kv_etcd.h>

#include "workloads/kv_etcd/etcd_answers.h"
#include "workloads/kv_etcd/http_client.h"

namespace fabric::kv {

/// What the watch and the registration of one EtcdDirectory share.
///
/// Threads: confined to the directory's thread.
class EtcdContext {
 public:
  EtcdContext(const EtcdOptions& chosen, HttpClient& client, uint64_t seed)
      : options(chosen), http(client), state_(seed) {}

  static Nanos now() { return std::chrono::steady_clock::now().time_since_epoch(); }

  const std::string& endpoint() const { return options.endpoints[endpoint_]; }
  std::string url(std::string_view path) const { return endpoint() + std::string(path); }

  /// A request failed. `used`: its endpoint; when that still is the present one, the next follows.
  void failed(const std::string& used, std::string_view why) {
    ++stats.failures;
    stats.last_failure = used + ": " + std::string(why.substr(0, 256));
    if (used == endpoint()) endpoint_ = (endpoint_ + 1) % options.endpoints.size();
  }
  /// The same for an answer: transport, status, and what its body says.
  void failed(const std::string& used, const HttpAnswer& answer) {
    if (answer.too_large) ++stats.bad_answers;
    if (!answer.complete) return failed(used, answer.failure);
    const auto failure = parse_failure(answer.body);
    failed(used, "status " + std::to_string(answer.status) +
                     (failure ? ": " + failure->message : std::string()));
  }

  /// Between half of `delay` and all of it.
  Nanos jittered(Nanos delay) {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    const auto half = static_cast<uint64_t>(delay.count() / 2);
    return delay - Nanos(static_cast<int64_t>((z ^ (z >> 31)) % (half + 1)));
  }

  const EtcdOptions options;
  HttpClient& http;
  EtcdStats stats{};

 private:
  size_t endpoint_ = 0;
  uint64_t state_;
};

/// A delay that doubles from failure to failure.
class EtcdDelay {
 public:
  void reset() noexcept { delay_ = {}; }
  Nanos next(EtcdContext& context) {
    const EtcdOptions& options = context.options;
    delay_ = delay_ == Nanos{} ? options.retry : std::min(delay_ * 2, options.retry_max);
    return context.jittered(delay_);
  }

 private:
  Nanos delay_{};
};

}  // namespace fabric::kv
