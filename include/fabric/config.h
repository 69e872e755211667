#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fabric/export.h>
#include <fabric/log.h>
#include <fabric/result.h>
#include <fabric/shm.h>
#include <fabric/types.h>
#include <fabric/verbs.h>

namespace fabric {

/// A network that the engine may use. The order in Config::networks is the order of preference.
struct Network {
  std::string provider{};              ///< "shm", "verbs", "sim"; "ofi", "tcp" to come
  std::string name{};                  ///< peers match networks by it; empty: the provider's name
  std::vector<std::string> devices{};  ///< NICs or their ports; empty: all of them
  /// Takes only the NICs, of `devices` or of all, that are closest to this by the PCIe tree and
  /// NUMA nodes of sysfs: a PCI address ("0000:19:00.0"), a GPU of this process by its ordinal
  /// ("gpu0"), a NUMA node ("numa:1"), or the CPUs where the opening thread may run ("auto").
  /// Empty: NICs are taken wherever they are. For networks over NICs only. docs/verbs.md, "NICs
  /// near a GPU".
  ///
  /// Fails with kInvalidArgument ("networks.near") when it is none of these forms, or when there is
  /// no such device; the log says which ones there are.
  std::string near{};
  uint32_t rails_max = kRailsMax;  ///< 1..kRailsMax
  uint64_t stripe_bytes_min = 0;   ///< writes of twice this are cut; 0: Config::stripe_bytes_min
  bool required = true;  ///< false: when it is not available, log that and open without it
  bool trusted = false;  ///< peers need no job key here (for networks that leave the host, to come)
  /// Options of that provider; another provider's are refused. Empty: all defaults.
  std::variant<std::monostate, shm::Options, verbs::Options> options{};
};

/// Reads the text form of a network, which FABRICLIB_NETWORKS and the `fabric` tool share: the
/// provider, then devices and `option=value`, separated by spaces: "verbs mlx5_0 mlx5_1:2
/// gid_index=3", "verbs near=gpu0", "shm lanes=2". Besides the provider's options there are name,
/// near, rails_max, stripe_bytes_min, required and trusted.
///
/// Fails with kInvalidArgument and the name of the option; "networks" when there is no provider,
/// "networks.options" when the provider has no such option.
FABRIC_EXPORT Result<Network> parse_network(std::string_view text);
/// The text form: what differs from the defaults.
FABRIC_EXPORT std::string to_string(const Network& network);

/// Every setting. The variable `FABRICLIB_<NAME>` overrides the field of that name in every engine
/// that the process opens (FABRICLIB_OPS_MAX=8192, FABRICLIB_SPIN=20us,
/// FABRICLIB_NETWORKS='verbs mlx5_0, shm'); durations take ns, us, ms or s. An unknown FABRICLIB_
/// variable is an error, except FABRICLIB_TEST_*. docs/configuration.md lists all of them.
struct Config {
  std::vector<Network> networks{};  ///< empty: every network that this build and machine have

  // Time. All of them are on the engine's clock, so they are virtual in a simulated world.
  Nanos default_timeout{30'000'000'000};
  Nanos drain_timeout{5'000'000'000};  ///< how long posted work may drain after deadline or cancel
  Nanos timeout_max{300'000'000'000};  ///< longest timeout of an operation; announced to peers
  Nanos peer_timeout{5'000'000'000};   ///< silence after which a peer is stalled (contracts.md P16)
  Nanos lost_timeout{30'000'000'000};  ///< silence after which a peer is lost (P16)
  Nanos retransmit{5'000'000};         ///< before a control message is sent again; doubles

  // Bounds (P18).
  uint32_t ops_max = 4096;  ///< operations accepted and not yet reported; 7/8 of them to one peer
  uint32_t batches_max = 4096;
  uint32_t peers_max = 1024;
  uint32_t regions_max = 4096;            ///< local ones, and imported ones per peer
  uint32_t counters_max = 32768;          ///< live ones; at most 1 << 20
  uint32_t names_per_peer_max = 4096;     ///< names resolved by a peer before named_counter()
  uint32_t message_bytes_max = 1u << 20;  ///< accepted by this engine; at most 1 MiB
  uint32_t message_buffers = 256;         ///< arrived messages that no listener has taken yet
  uint32_t message_credits = 32;          ///< of those, per peer and channel, one for each 64 KiB
  uint64_t index_arena_bytes = 8u << 20;  ///< page lists, targets and messages of queued requests

  // Striping and slicing.
  /// A write or a scatter target is cut over several NICs when each gets at least this much. 0: by
  /// the network, 64 KiB, or 32 KiB where writes are not ordered (Caps::ordered).
  /// Network::stripe_bytes_min overrides it.
  uint64_t stripe_bytes_min = 0;
  uint64_t stripe_align = 4096;          ///< stripes start at multiples of this; a power of two
  uint64_t bulk_slice_bytes = 1u << 20;  ///< bulk writes are posted in slices of this size

  // Threads.
  Nanos spin{50'000};              ///< how long a worker polls before it sleeps (P20)
  std::vector<int> worker_cpus{};  ///< where the worker thread may run; empty: anywhere

  /// True: while all local rails of a peer's network are down, new work takes the next network that
  /// reaches the peer. A kPeer event with kRailLost reports each change of network.
  bool reroute = false;
  /// Identifies this engine across restarts; 0: random, different at each open. When an engine is
  /// opened again under the same id, peers drop the previous incarnation at once. Two engines that
  /// are open at the same time must not share an id.
  uint64_t engine_id = 0;
  std::string app_info{};  ///< at most 1 KiB, shown to peers at connect: model, layout hash, role
  std::string job_key{};   ///< not empty: only peers with the same job key are accepted
  LogLevel log_level = LogLevel::kWarning;
  LogSink log_sink{};
};

}  // namespace fabric
