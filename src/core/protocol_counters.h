#pragma once

#include <array>
#include <cstdint>

#include "control/message.h"

namespace fabric::core {

/// The rare turns that things take: what the engine did about failures, and how peers and memory
/// were let go. Off the hot path, so each is counted; Engine::dump_json() shows them as "protocol_counters",
/// and the swarm looks whether all of them are ever taken.
enum class ProtocolEvent : uint8_t {
  kPathOpened,
  kPathBroke,
  kPathTornDown,  ///< its operation did not drain
  kPathBackedOff,
  kOtherRailPaired,  ///< no good path was left
  kWriteInDoubt,
  kWriteFoundDelivered,  ///< the target had it after all
  kWriteReplayed,
  kShardReplayed,      ///< all of it, because some slice was lost
  kWriteGivenUp,       ///< by a network without connections: its fate is unknown
  kGivenUpWriteResent,  ///< and sent again, because it never left
  kReconciledUnproved,    ///< the target could not say what it took
  kProbeSent,
  kProbeAnswered,
  kProbeFailed,
  kRailDown,
  kRailUp,
  kRerouted,
  kStoppedQueued,  ///< ended by deadline or cancel before anything was posted
  kStoppedPosted,
  kDrainTimedOut,  ///< ended without the word of the target
  kKeyPoisoned,   ///< we told a peer that a write has an unknown fate
  kKeyAborted,   ///< we were told
  kPeerStalled,
  kPeerResumed,
  kPeerLostByEvidence,
  kPeerLostBySilence,
  kLeaseExpired,  ///< nothing was posted because the peer might have given us up
  kFenceByReply,
  kFenceWithoutPeer,
  kFenceProvedLate,
  kRegionProved,
  kRegionProvedLate,
  kGraceExpired,  ///< an importer did not answer in time
};
inline constexpr uint32_t kProtocolEvents = static_cast<uint32_t>(ProtocolEvent::kGraceExpired) + 1;

const char* to_string(ProtocolEvent event) noexcept;

/// How often each was taken, and each control message said and heard. State lock held.
struct ProtocolCounters {
  static constexpr uint32_t kMessages = 32;
  std::array<uint64_t, kProtocolEvents> events{};
  std::array<uint64_t, kMessages> sent{}, received{};

  void count(ProtocolEvent event) noexcept { ++events[static_cast<uint32_t>(event)]; }
  void count_sent(control::MessageType type) noexcept { ++sent[static_cast<uint32_t>(type) % kMessages]; }
  void count_received(control::MessageType type) noexcept {
    ++received[static_cast<uint32_t>(type) % kMessages];
  }
};

}  // namespace fabric::core
