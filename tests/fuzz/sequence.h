#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "control/message.h"

// Inputs that are not one message but a story: each eight bytes are one action, the first eight say
// what world it is told in. Every input is a legal story, so that a fuzzer which swaps, repeats or
// drops actions has a new one each time; and every value of every byte means something.

namespace fabric::fuzz {

using control::MessageType;

inline constexpr size_t kActionBytes = 8;
inline constexpr size_t kActionsMax = 96;

enum class Verb : uint8_t {
  kFrame,    ///< a hostile peer sends a frame: `what` is its kind, `twist` what is wrong with it
  kPass,    ///< time, then the hostile peers read: `twist` and `a` are the answers of each
  kLocal,   ///< the user of the engine calls a function: `what`
  kHonest,  ///< the honest peer and the engine exchange one write and one message each way
  kWrite,   ///< a hostile peer posts a write on a path that it has
  kReplay,  ///< a datagram that was said before, whole or damaged
  kBecome,  ///< a hostile peer takes another session, life or name
  kFault,   ///< something breaks between the engine and a hostile peer
};
inline constexpr uint8_t kVerbs = 8;

struct FuzzAction {
  Verb verb = Verb::kPass;
  uint8_t who = 0;   ///< which hostile peer
  uint8_t what = 0;  ///< what each verb makes of these is said where it is done
  uint8_t twist = 0;
  uint8_t a = 0;
  uint8_t b = 0;
  uint16_t n = 0;
};

/// Every kind of frame, and one that is not known. FuzzAction::what of Verb::kFrame is an index.
inline constexpr std::array kFrameKinds{
    MessageType::kHello,      MessageType::kWelcome,      MessageType::kReady,
    MessageType::kReject,     MessageType::kBye,          MessageType::kAck,
    MessageType::kPing,       MessageType::kPong,         MessageType::kPathOpen,
    MessageType::kPathAnswer, MessageType::kPathState,    MessageType::kPathClose,
    MessageType::kMessage,    MessageType::kMessageDone,  MessageType::kResolve,
    MessageType::kResolved,   MessageType::kRevokeRegion, MessageType::kRegionRevoked,
    MessageType::kFence,      MessageType::kFenced,       MessageType::kRevokeKey,
    MessageType::kKeyRevoked, MessageType::kAbortKey,     static_cast<MessageType>(31)};

/// Which questions a hostile peer answers as it should when it reads (Verb::kPass).
struct Answers {
  static constexpr uint8_t kPong = 1;
  static constexpr uint8_t kAck = 2;
  static constexpr uint8_t kLetsIn = 4;  ///< accepts paths
  static constexpr uint8_t kTakes = 8;   ///< messages
  static constexpr uint8_t kResolves = 16;
  static constexpr uint8_t kRevokes = 32;  ///< regions and keys
  static constexpr uint8_t kFences = 64;
  static constexpr uint8_t kWelcomes = 128;
  static constexpr uint8_t kAll = 255;
};

/// FuzzAction::twist of Verb::kFrame: what is wrong with the header (low half, below kOldSession nothing)
/// and with the rest (high half, below kCutBody nothing).
struct Twist {
  enum Header : uint8_t {
    kOldSession = 8,
    kNoSession,
    kGuessedSession,
    kOldSender,
    kNoSender,
    kSameNumber,
    kFarNumber,
    kAcksAll
  };
  enum Frame : uint8_t { kCutBody = 10, kLongBody, kFlipped, kOtherPort, kFlood, kCutFrame };
  static constexpr uint8_t of(Frame frame) { return static_cast<uint8_t>(frame << 4); }
};

/// FuzzAction::what of Verb::kLocal.
enum class Local : uint8_t {
  kWrite,
  kPaged,
  kScatter,
  kSignal,
  kSend,
  kConnect,
  kDisconnect,
  kFence,
  kResolve,
  kCancel,
  kExpect,
  kNamed,
  kRelease,
  kCloseCounter,
  kDeregister,
  kGrant,
  kListen,
  kImport,
};
inline constexpr uint8_t kLocals = 18;

/// FuzzAction::what of Verb::kBecome.
enum class Become : uint8_t {
  kNextSession,
  kEarlierSession,
  kNextIncarnation,
  kEarlierIncarnation,
  kTheOther,
  kOtherPeer,
  kTheEngine,
  kHonest,  ///< only without the job key: a job trusts its own
};

/// The first record.
struct Setting {
  static constexpr uint8_t kJobKey = 1;       ///< the engine and the honest peer have one
  static constexpr uint8_t kSecondKnows = 2;  ///< and so has the second hostile peer, as the first
  static constexpr uint8_t kLossy = 4;        ///< datagrams are lost, repeated, out of order
  static constexpr uint8_t kUnordered = 8;    ///< NICs that can prove less
  static constexpr uint8_t kAbrupt = 16;      ///< closed in the middle of it all
  static constexpr uint8_t kTwoRails = 32;
  uint8_t flags = 0;
  uint8_t seed = 0;
};

struct Script {
  Setting setting{};
  std::vector<FuzzAction> actions{};
};

/// What is left over behind the last whole record, or beyond kActionsMax, is ignored.
Script decode_script(std::span<const std::byte> bytes);

/// Before the first action: strangers, or peers with sessions and paths.
enum class InitialState : uint8_t { kUnknownPeers, kSessions };

/// Plays it to its end and checks, all along, what must hold whatever a peer says.
void play(const Script& script, InitialState initial);

}  // namespace fabric::fuzz
