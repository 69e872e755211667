#pragma once

#include <memory>
#include <string>
#include <vector>

#include <fabric/export.h>
#include <fabric/memory.h>
#include <fabric/result.h>
#include <fabric/types.h>

namespace fabric {

namespace core {
struct PeerGroupState;
}

enum class PeerState : uint8_t { kConnecting, kConnected, kStalled, kLost, kFenced };

FABRIC_EXPORT const char* to_string(PeerState state) noexcept;

/// Which sessions Engine::peers() lists.
enum class PeerFilter : uint8_t {
  kOpen,  ///< kConnecting, kConnected and kStalled
  /// Lost, and no fence has proved yet that they cannot write here: fence them before memory that
  /// they could write is reused. A lost session stays known (peer_info(), Fence, Drop) until a new
  /// one needs its slot because there are Config::peers_max; fenced ones are forgotten first. One
  /// that was never connected could not write, and is not listed.
  kLostUnfenced,
};

/// How a network proves that a peer's writes have stopped, when the peer does not answer.
enum class FenceKind : uint8_t {
  kNone,   ///< it cannot
  kLocal,  ///< at once, without the peer (queue pair destroyed, software check)
  kRekey,  ///< for granted regions only, by invalidating the peer's rkeys (connection-less NICs)
  kHost,   ///< for memory that the peer maps: its copy ended, its thread is off the CPU, or it died
};

FABRIC_EXPORT const char* to_string(FenceKind kind) noexcept;

struct PeerInfo {
  PeerState state = PeerState::kConnecting;
  struct Route {
    MemoryKind here = MemoryKind::kHost, there = MemoryKind::kHost;
    std::string network{};  ///< its name; empty: no network reaches this pair of kinds
    std::string why{};      ///< why the networks with a higher preference were not taken
  };
  std::vector<Route> routes{};  ///< chosen when the peer connects; a change is an event
  uint32_t rails_here = 0, rails_there = 0;  ///< of the host-to-host route
  uint32_t message_bytes_max = 0;            ///< of one message to it; 0: not known yet
  FenceKind fence = FenceKind::kNone;
  /// What the peer wrote here may be overwritten as soon as its count is reached. False: bytes of a
  /// counted write may land once more until the peer has completed it, so the count permits only
  /// reading; write there after the peer has said that it is quiet (P6, docs/failures.md). True
  /// when Caps::count_is_final holds for every network of the routes, and for every network on
  /// which the peer has paths to this engine; false before it is connected. Ask again after an
  /// event that reports a change of route.
  bool count_is_final = false;
  std::string app_info{};
  uint64_t engine_id = 0;    ///< identifies the remote engine across reconnects (Config::engine_id)
  uint64_t incarnation = 0;  ///< larger each time the engine is opened
};

struct ConnectOptions {
  std::vector<std::string> networks{};  ///< names of the networks to choose from; empty: all
  bool warm = false;                    ///< open the paths of all rails now, not on first use
};

/// A fixed list of peers for repeated scatters and signals. Immutable and cheap to copy. A member
/// that is lost fails only its own targets; its next incarnation needs a new group.
///
/// Lifetime: may outlive the engine.
/// Threads: share it freely.
class FABRIC_EXPORT PeerGroup {
 public:
  PeerGroup() = default;
  GroupId id() const noexcept;
  operator GroupId() const noexcept { return id(); }
  uint32_t size() const noexcept;
  PeerId operator[](uint32_t i) const noexcept;
  std::span<const PeerId> peers() const noexcept;

 private:
  friend class Engine;
  explicit PeerGroup(std::shared_ptr<const core::PeerGroupState> state) noexcept;
  std::shared_ptr<const core::PeerGroupState> state_;
};

}  // namespace fabric
