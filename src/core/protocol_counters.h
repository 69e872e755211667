#pragma once

#include <array>
#include <cstdint>

#include "control/message.h"

namespace fabric::core {

/// The rare turns that things take: what the engine did about failures, and how peers and memory
/// were let go. Off the hot path, so each is counted; Engine::dump_json() shows them as "steps",
/// and the swarm looks whether all of them are ever taken.
enum class Step : uint8_t {
  kPathOpened,
  kPathBroke,
  kPathTornDown,  ///< its operation did not drain
  kPathRested,
  kOtherRailPaired,  ///< no good path was left
  kPieceStranded,
  kPieceFoundTaken,  ///< the target had it after all
  kPieceRepeated,
  kShardRepeated,      ///< all of it, because some slice was lost
  kPieceGivenUp,       ///< by a network without connections: its fate is unknown
  kPieceGivenUpAgain,  ///< and sent again, because it never left
  kSettledUnproved,    ///< the target could not say what it took
  kProbeSent,
  kProbeAnswered,
  kProbeFailed,
  kRailDown,
  kRailUp,
  kRerouted,
  kStoppedQueued,  ///< ended by deadline or cancel before anything was posted
  kStoppedPosted,
  kBoundPassed,  ///< ended without the word of the target
  kKeySpoiled,   ///< we told a peer that a write has an unknown fate
  kKeyAborted,   ///< we were told
  kPeerStalled,
  kPeerResumed,
  kPeerLostByEvidence,
  kPeerLostBySilence,
  kLeaseOver,  ///< nothing was posted because the peer might have given us up
  kFenceByWord,
  kFenceAlone,
  kFenceProvedLate,
  kRegionProved,
  kRegionProvedLate,
  kGraceOver,  ///< an importer did not answer in time
};
inline constexpr uint32_t kSteps = static_cast<uint32_t>(Step::kGraceOver) + 1;

const char* to_string(Step step) noexcept;

/// How often each was taken, and each control message said and heard. State lock held.
struct Steps {
  static constexpr uint32_t kMessages = 32;
  std::array<uint64_t, kSteps> taken{};
  std::array<uint64_t, kMessages> said{}, heard{};

  void take(Step step) noexcept { ++taken[static_cast<uint32_t>(step)]; }
  void say(control::MessageType type) noexcept { ++said[static_cast<uint32_t>(type) % kMessages]; }
  void hear(control::MessageType type) noexcept {
    ++heard[static_cast<uint32_t>(type) % kMessages];
  }
};

}  // namespace fabric::core
