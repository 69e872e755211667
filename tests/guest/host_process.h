#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

// A process with an engine of its own on host B, for tests in which one is stopped, killed and
// started again.

namespace fabric::test {

/// A child process on host B with an engine that offers one region and one counter. It is forked
/// before its test opens any device, opens its own on request, and dies with the test.
class HostProcess {
 public:
  static constexpr uint64_t kBytes = 1 << 20;
  /// A second process with the same `engine_id` is recognised as its next incarnation.
  explicit HostProcess(uint64_t engine_id = 0);
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;
  ~HostProcess() { end(); }

  std::string open() { return ask("open"); }  ///< returns the offer
  /// Counts received and not taken.
  uint64_t count() { return std::stoull(ask("count")); }
  /// The same, once there are `at_least`: the NIC acknowledges before the process counts.
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
