#pragma once

#include <array>
#include <cstdint>

#include "control/message.h"

namespace fabric::core {

/// Rare events of the failover, liveness and release protocols. They are off the hot path, so each
/// is counted. Engine::dump_json() shows the counts as "protocol_counters"; the swarm checks that
/// every event occurs.
enum class ProtocolEvent : uint8_t {
  kPathOpened,
  kPathBroke,
  kPathTornDown,  ///< because an operation did not drain
  kPathBackedOff,
  kOtherRailPaired,  ///< no good path was left
  kWriteInDoubt,
  kWriteFoundDelivered,  ///< by the drain report of the target
  kWriteReplayed,
  kShardReplayed,       ///< the entire shard, because a slice was lost
  kWriteGivenUp,        ///< by a network without connections: delivery unknown
  kGivenUpWriteResent,  ///< it was never sent, so it could not arrive twice
  kReconciledUnproved,  ///< the drain report was not exact
  kProbeSent,
  kProbeAnswered,
  kProbeFailed,
  kRailDown,
  kRailUp,
  kRerouted,
  kStoppedQueued,  ///< by deadline or cancel, before anything was posted
  kStoppedPosted,  ///< the same, with writes in flight
  kDrainTimedOut,  ///< completed without the drain report
  kKeyPoisoned,    ///< sent: a counted write has unknown delivery
  kKeyAborted,     ///< received: the same from a peer
  kPeerStalled,
  kPeerResumed,
  kPeerLostByEvidence,
  kPeerLostBySilence,
  kLeaseExpired,      ///< nothing is posted: the peer may consider us lost
  kFenceByReply,      ///< the peer confirmed that it is quiescent
  kFenceWithoutPeer,  ///< no usable reply: this side has to prove it alone
  kFenceProvedLate,
  kRegionProved,
  kRegionProvedLate,
  kGraceExpired,  ///< an importer did not reply in time
  kMessageEarly,  ///< a message arrived before a number before it, and waited
  kGrantProved,
  kGrantProvedLate,
};
inline constexpr uint32_t kProtocolEvents =
    static_cast<uint32_t>(ProtocolEvent::kGrantProvedLate) + 1;

const char* to_string(ProtocolEvent event) noexcept;

/// How often each event occurred, and each control message was sent and received. State lock held.
struct ProtocolCounters {
  static constexpr uint32_t kMessages = 32;
  std::array<uint64_t, kProtocolEvents> events{};
  std::array<uint64_t, kMessages> sent{}, received{};

  void count(ProtocolEvent event) noexcept { ++events[static_cast<uint32_t>(event)]; }
  void count_sent(control::MessageType type) noexcept {
    ++sent[static_cast<uint32_t>(type) % kMessages];
  }
  void count_received(control::MessageType type) noexcept {
    ++received[static_cast<uint32_t>(type) % kMessages];
  }
};

}  // namespace fabric::core
