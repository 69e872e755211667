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

/// When a peer's writes can be proved to have stopped.
enum class FenceKind : uint8_t {
  kNone,   ///< never
  kLocal,  ///< at once, without the peer (queue pair torn down, software check)
  kRekey,  ///< only granted regions, by dropping the peer's own key (connection-less NICs)
  kHost,   ///< memory mapped by the peer: its copy ended, its thread is off the CPU, or it is dead
};

FABRIC_EXPORT const char* to_string(FenceKind kind) noexcept;

struct PeerInfo {
  PeerState state = PeerState::kConnecting;
  struct Route {
    MemoryKind here = MemoryKind::kHost, there = MemoryKind::kHost;
    std::string network{};  ///< its name; empty: nothing reaches this pair of kinds
    std::string why{};      ///< why the networks before it in the order were not taken
  };
  std::vector<Route> routes{};  ///< chosen when the peer connects, never changed in silence
  uint32_t rails_here = 0, rails_there = 0;  ///< of the host-to-host route
  uint32_t message_bytes_max = 0;
  FenceKind fence = FenceKind::kNone;
  std::string app_info{};
  uint64_t engine_id = 0;    ///< stable name of the remote engine, across reconnects
  uint64_t incarnation = 0;  ///< ordered: a later life of the engine has a larger one
};

struct ConnectOptions {
  std::vector<std::string> networks{};  ///< restrict the route for this peer; empty: engine's order
  bool warm = false;                    ///< set up all rails now instead of on first use
};

/// A fixed list of peers for repeated scatters and signals. Cheap to copy, immutable. A member that
/// is lost fails its own targets only; make a new group for its next incarnation.
///
/// Lifetime: may outlive the engine, inertly.
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
