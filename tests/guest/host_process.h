#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

// A process with an engine of its own on host B, for tests in which one is stopped, killed and
// started again.

namespace fabric::test {

/// A child with an engine that offers one region and one counter. It is forked before its test
/// opens any device, opens its own when it is told to, and dies with the test.
class HostProcess {
 public:
  static constexpr uint64_t kBytes = 1 << 20;
  /// With `engine_id` its next life is recognised.
  explicit HostProcess(uint64_t engine_id = 0);
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;
  ~HostProcess() { end(); }

  std::string open() { return ask("open"); }  ///< returns the offer
  /// How many whole counts have come that nobody took.
  uint64_t count() { return std::stoull(ask("count")); }
  /// The same, as soon as there are so many: what a card has acknowledged, the process takes later.
  uint64_t count_of(uint64_t at_least);
  /// How many bytes of the region hold this value.
  uint64_t bytes(uint8_t value) { return std::stoull(ask("bytes " + std::to_string(value))); }
  void stop();
  void resume();
  void kill();
  void end();

 private:
  std::string ask(const std::string& question);

  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
};

}  // namespace fabric::test
