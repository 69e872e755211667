#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "control/message.h"

// Inputs that are a sequence of actions instead of one message: the first eight bytes are the
// setting, and every eight bytes after them are one action. Every input is valid, and every value
// of every byte has a meaning, so that swapped, repeated and dropped actions give a new sequence.

namespace fabric::fuzz {

using control::MessageType;

inline constexpr size_t kActionBytes = 8;
inline constexpr size_t kActionsMax = 96;

enum class Verb : uint8_t {
  kFrame,   ///< a hostile peer sends a frame of kind `what`; `twist`: what is wrong with it
  kPass,    ///< time passes, then the hostile peers read; `twist` and `a`: what each answers
  kLocal,   ///< the user of the engine calls a function: `what`
  kHonest,  ///< the honest peer and the engine exchange one write and one message each way
  kWrite,   ///< a hostile peer posts a write on a path that it has
  kReplay,  ///< a datagram that was sent before, intact or damaged
  kBecome,  ///< a hostile peer takes another session, incarnation or engine id
  kFault,   ///< something breaks between the engine and a hostile peer
};
inline constexpr uint8_t kVerbs = 8;

struct FuzzAction {
  Verb verb = Verb::kPass;
  uint8_t who = 0;   ///< which hostile peer
  uint8_t what = 0;  ///< this and the rest: see the function that executes the verb
  uint8_t twist = 0;
  uint8_t a = 0;
  uint8_t b = 0;
  uint16_t n = 0;
};

/// Every kind of frame, and one that is not known. FuzzAction::what of Verb::kFrame is an index.
inline constexpr std::array kFrameKinds{
    MessageType::kHello,         MessageType::kWelcome,      MessageType::kReady,
    MessageType::kReject,        MessageType::kBye,          MessageType::kAck,
    MessageType::kPing,          MessageType::kPong,         MessageType::kPathOpen,
    MessageType::kPathAnswer,    MessageType::kPathDrained,  MessageType::kPathClose,
    MessageType::kMessage,       MessageType::kMessageDone,  MessageType::kResolve,
    MessageType::kResolved,      MessageType::kRevokeRegion, MessageType::kRegionRevoked,
    MessageType::kFence,         MessageType::kFenced,       MessageType::kRevokeKey,
    MessageType::kKeyRevoked,    MessageType::kAbortKey,     MessageType::kMessagePart,
    static_cast<MessageType>(32)};

/// Which requests a hostile peer answers correctly when it reads (Verb::kPass).
struct Answers {
  static constexpr uint8_t kPong = 1;
  static constexpr uint8_t kAck = 2;
  static constexpr uint8_t kLetsIn = 4;  ///< accepts paths
  static constexpr uint8_t kTakes = 8;   ///< messages
  static constexpr uint8_t kResolves = 16;
  static constexpr uint8_t kRevokes = 32;  ///< regions and counter keys
  static constexpr uint8_t kFences = 64;
  static constexpr uint8_t kWelcomes = 128;
  static constexpr uint8_t kAll = 255;
};

/// FuzzAction::twist of Verb::kFrame: what is wrong with the header (low half, below kOldSession
/// nothing) and with the rest (high half, below kCutBody nothing).
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
  kRevoke,
};
inline constexpr uint8_t kLocals = 19;

/// FuzzAction::what of Verb::kBecome.
enum class Become : uint8_t {
  kNextSession,
  kEarlierSession,
  kNextIncarnation,
  kEarlierIncarnation,
  kTheOther,
  kOtherPeer,
  kTheEngine,
  kHonest,  ///< only without the job key: the members of a job trust each other
};

/// The first record.
struct Setting {
  static constexpr uint8_t kJobKey = 1;       ///< the engine and the honest peer have a job key
  static constexpr uint8_t kSecondKnows = 2;  ///< the second hostile peer has it too, as the first
  static constexpr uint8_t kLossy = 4;        ///< datagrams are lost, repeated, out of order
  static constexpr uint8_t kUnordered = 8;    ///< NICs without order, replay and a local fence
  static constexpr uint8_t kAbrupt = 16;  ///< the engine is closed while everything is in flight
  static constexpr uint8_t kTwoRails = 32;
  uint8_t flags = 0;
  uint8_t seed = 0;
};

struct Script {
  Setting setting{};
  std::vector<FuzzAction> actions{};
};

/// Bytes after the last complete record, or beyond kActionsMax, are ignored.
Script decode_script(std::span<const std::byte> bytes);

/// Before the first action: peers without a session, or with sessions and paths.
enum class InitialState : uint8_t { kUnknownPeers, kSessions };

/// Plays the script and checks after every action what must hold whatever a peer sends.
void play(const Script& script, InitialState initial);

}  // namespace fabric::fuzz
