#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fabric/log.h>
#include <fabric/types.h>

namespace fabric {

/// One network the engine may use. The order in Config::networks is the order of preference.
struct Network {
  std::string provider{};              ///< "shm", "verbs", "sim"; "ofi", "tcp" to come
  std::string name{};                  ///< how peers recognise it; empty: the provider's name
  std::vector<std::string> devices{};  ///< empty: all of them
  uint32_t rails_max = kRailsMax;      ///< 1..kRailsMax
  bool required = true;  ///< false: leave it out when it is not there, and say so in the log
  bool trusted = false;  ///< peers need no job key here (for networks that leave the host, to come)
};

/// Every knob. `FABRICLIB_<NAME>` sets the field of that name for every engine that a process opens
/// (FABRICLIB_OPS_MAX=8192, FABRICLIB_SPIN=20us, FABRICLIB_NETWORKS=shm,tcp); durations take ns, us, ms or
/// s. An unknown variable is an error, FABRICLIB_TEST_* aside. docs/configuration.md lists them.
struct Config {
  std::vector<Network> networks{};  ///< empty: every network that this build and machine have

  // Time. All of them are on the engine's clock, so they are virtual in a simulated world.
  Nanos default_timeout{30'000'000'000};
  Nanos drain_timeout{5'000'000'000};  ///< how long posted work may drain after deadline or cancel
  Nanos timeout_max{300'000'000'000};  ///< longest timeout of an operation; told to peers
  Nanos peer_timeout{5'000'000'000};   ///< silence after which a peer is stalled (P16)
  Nanos lost_timeout{30'000'000'000};  ///< silence after which it is lost, without other evidence
  Nanos retransmit{5'000'000};         ///< first retransmission of a control message; doubles

  // Bounds (P18).
  uint32_t ops_max = 4096;  ///< operations accepted and not yet reported; 7/8 of them to one peer
  uint32_t batches_max = 4096;
  uint32_t peers_max = 1024;
  uint32_t regions_max = 4096;         ///< local ones, and imported ones per peer
  uint32_t counters_max = 32768;       ///< live ones; at most 1 << 20
  uint32_t names_per_peer_max = 4096;  ///< names that a peer may resolve before we claim them
  uint32_t message_bytes_max = 65536;
  uint32_t message_buffers = 256;         ///< arrived messages that no listener has taken yet
  uint32_t message_credits = 32;          ///< of those, per peer and channel
  uint64_t index_arena_bytes = 8u << 20;  ///< page lists, targets and messages of queued requests

  // Cutting.
  uint64_t stripe_bytes_min = 64u << 10;  ///< smaller writes use one NIC
  uint64_t stripe_align = 4096;           ///< cuts fall on multiples of this; a power of two
  uint64_t bulk_slice_bytes = 1u << 20;

  // Threads.
  Nanos spin{50'000};              ///< how long a worker polls before it sleeps (P20)
  std::vector<int> worker_cpus{};  ///< where the worker thread may run; empty: anywhere

  /// When all rails of a network are down here, new work takes the next one that reaches the peer,
  /// and goes back when one returns. A kPeer event with kRailLost tells each time.
  bool reroute = false;
  /// The name of this engine across restarts; 0: a random one, new in each life. A peer that meets
  /// the next life under the same name gives the old one up at once. Two engines that are alive at
  /// the same time must not share one.
  uint64_t engine_id = 0;
  std::string app_info{};  ///< at most 1 KiB, shown to peers at connect: model, layout hash, role
  std::string job_key{};   ///< not empty: only peers with the same one are listened to
  LogLevel log_level = LogLevel::kWarning;
  LogSink log_sink{};
};

}  // namespace fabric
