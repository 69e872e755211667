#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <fabric/fabric.h>

// Where the engines of a test body live, for bodies that run on several networks: the conformance
// suite on the simulator, on shm, on fake NICs (tests/fake_verbs) and on RDMA NICs
// (tests/guest/conformance). Scenarios use sim::World directly instead: they inject a fault at a
// given network event or time, which only the simulator can do.

namespace fabric::test {

/// How an environment differs from the usual one. Each field needs the capability of its name
/// (CaseCaps).
struct TestEnvOptions {
  double drop_control = 0, duplicate_control = 0, reorder_control = 0;  ///< lossy_control
  bool realtime_threads = false;
  bool second_network = false;  ///< named "second", after the usual one in the order
  bool faults = false;          ///< the body will inject some
};

/// Injects faults between the hosts of an environment, each from the moment of the call.
///
/// The faults are those that every network can produce: a cut is a link that is taken down or a
/// packet filter, a broken path is a queue pair in the error state or a connection that is reset, a
/// stop is a signal. An environment overrides the faults that its case declares; the name of the
/// capability is beside each of them.
class FaultInjector {
 public:
  enum class Side { kSender, kTarget };  ///< of a path
  /// kEnd repairs what kBegin broke, and is harmless without it.
  enum class Phase { kBegin, kEnd };

  virtual ~FaultInjector() = default;
  virtual void cut(uint32_t one, uint32_t other, Phase phase);        ///< cuts
  virtual void lose_rail(uint32_t host, uint32_t rail, Phase phase);  ///< lost_rails
  /// One end of the path from one host to another; the other end has to notice.
  virtual void break_path(uint32_t from, uint32_t to, uint32_t rail, Side side);  ///< broken_paths
  virtual void kill(uint32_t host);                                               ///< kills
  virtual void stop(uint32_t host, Phase phase);                                  ///< stops
  virtual void lose_acks(uint32_t from, uint32_t to, Phase phase);                ///< lost_acks
  virtual void not_ready(uint32_t host, Phase phase);                             ///< not_ready
  virtual void wrong_rkey(uint32_t from, uint32_t to);  ///< wrong_rkeys: the next write
  /// duplicates: packets arrive twice, also after the count, never after the completion
  virtual void duplicate(uint32_t from, uint32_t to, Phase phase);
  virtual void delay_proofs(uint32_t host, Nanos by);  ///< late_proofs; zero ends it
};

/// The address and a descriptor of a peer that never answers.
struct SilentPeer {
  std::vector<std::byte> address, desc;
};

/// The hosts, the network and the time of a test body.
///
/// Threads: the test's thread makes all progress (run_until(), run_for()), except with
///   TestEnvOptions::realtime_threads.
class TestEnv {
 public:
  static constexpr uint32_t kHosts = 3;

  virtual ~TestEnv() = default;
  /// Opens one more engine on a host, 0 .. kHosts - 1.
  virtual Result<Engine> open(uint32_t host, const Config& config) = 0;
  /// Makes progress until done() or for `limit`. Returns whether done() was true.
  virtual bool run_until(const std::function<bool()>& done, Nanos limit) = 0;
  virtual void run_for(Nanos time) = 0;
  /// Runs longer than anything takes that has no deadline.
  virtual void wait_idle() = 0;
  /// Calls `hook` between the steps of run_until() and run_for().
  virtual void each_step(std::function<void()> hook) = 0;
  /// For networks that notice a closed engine at once: a peer that is open and never answers. It
  /// lives as long as the environment.
  virtual std::optional<SilentPeer> silent_peer(const Config&) { return std::nullopt; }
  virtual FaultInjector& faults();  ///< one that fails the test, for environments without faults
  /// The time in which writes get as far here as in `simulated` time on the simulator.
  virtual Nanos wire_time(Nanos simulated) const { return simulated; }
};

}  // namespace fabric::test
