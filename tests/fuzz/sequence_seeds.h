#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/sequence.h"

// Seeds of handshake_fuzz and session_fuzz. The test of the corpora writes them to
// tests/fuzz/corpus.

namespace fabric::fuzz {

/// What decode_script() reads.
inline std::vector<std::byte> encode_script(const Script& script) {
  std::vector<std::byte> out;
  const auto put = [&](auto... values) { (out.push_back(static_cast<std::byte>(values)), ...); };
  put(script.setting.flags, script.setting.seed, 0, 0, 0, 0, 0, 0);
  for (const FuzzAction& action : script.actions) {
    put(static_cast<uint8_t>(action.verb), action.who, action.what, action.twist, action.a,
        action.b, action.n & 0xff, action.n >> 8);
  }
  return out;
}

using Sequence = std::vector<FuzzAction>;

inline Sequence operator+(Sequence first, const Sequence& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

inline Sequence frame(MessageType type, FuzzAction how = {}) {
  const auto kind = std::ranges::find(kFrameKinds, type) - kFrameKinds.begin();
  how.verb = Verb::kFrame;
  how.what = static_cast<uint8_t>(kind);
  return {how};
}
/// The parts of one message, and of one that is withdrawn.
inline Sequence message_parts() {
  Sequence parts;
  for (uint16_t i = 0; i < 8; ++i) {
    const uint8_t ref = i < 5 ? 1 : 2, channel = i < 7 ? 1 : 0xf1;
    const FuzzAction how{.a = ref, .b = channel, .n = static_cast<uint16_t>(i % 5)};
    parts = parts + frame(MessageType::kMessagePart, how);
  }
  return parts;
}
inline Sequence local(Local call, FuzzAction how = {}) {
  how.verb = Verb::kLocal;
  how.what = static_cast<uint8_t>(call);
  how.b = how.b == 0 ? 6 : how.b;  // 64 ms
  return {how};
}
inline Sequence become(Become whom, FuzzAction how = {}) {
  how.verb = Verb::kBecome;
  how.what = static_cast<uint8_t>(whom);
  return {how};
}
/// 2^log_us microseconds, in four parts.
inline Sequence pass(uint8_t log_us, uint8_t answers = Answers::kAll) {
  return {{.verb = Verb::kPass, .what = log_us, .twist = answers, .a = answers, .n = 3}};
}
inline Sequence honest() { return {{.verb = Verb::kHonest}}; }
inline Sequence write(uint8_t who, uint8_t what = 1) {
  return {{.verb = Verb::kWrite, .who = who, .what = what, .a = 16, .b = 2, .n = 9}};
}
inline Sequence replay(uint8_t back, uint8_t twist = 0) {
  return {{.verb = Verb::kReplay, .twist = twist, .a = back, .n = 40}};
}
inline Sequence fault(uint8_t what) { return {{.verb = Verb::kFault, .what = what}}; }

inline std::map<std::string, Script> handshake_seeds() {
  using M = MessageType;
  const Sequence hello = frame(M::kHello) + pass(6), second_hello = frame(M::kHello, {.who = 1});
  const Sequence connect = local(Local::kConnect);
  Sequence strange, many_peers;
  for (uint8_t b = 0; b < 16; ++b) {
    strange =
        strange + frame(M::kHello, {.b = b, .n = 700}) + become(Become::kNextSession) + pass(4);
    many_peers = many_peers + become(Become::kOtherPeer, {.n = b}) + frame(M::kHello) + pass(3, 0);
  }
  return {
      {"hello", {{}, hello + honest() + pass(14)}},
      {"connect", {{}, connect + pass(6) + local(Local::kSend) + pass(10) + honest()}},
      {"both_at_once", {{}, connect + frame(M::kHello) + pass(6) + honest() + pass(14)}},
      {"restart", {{}, hello + become(Become::kNextIncarnation) + hello + honest() + pass(14)}},
      {"restart_under_connect", {{}, connect + become(Become::kNextIncarnation) + hello + connect}},
      {"late_hello", {{}, hello + become(Become::kNextSession) + hello + replay(9) + pass(8)}},
      {"earlier_life",
       {{}, hello + become(Become::kEarlierIncarnation) + hello + connect + pass(8)}},
      {"rejected", {{}, connect + pass(3, 0) + frame(M::kReject, {.b = 4}) + pass(6) + connect}},
      {"bye_and_again",
       {{}, hello + frame(M::kBye) + pass(4) + hello + become(Become::kNextSession) + hello}},
      {"no_answer", {{}, connect + local(Local::kSend) + pass(19, 0) + pass(19, 0)}},
      {"welcome_to_nobody", {{}, frame(M::kWelcome) + frame(M::kReady) + frame(M::kAck) + pass(6)}},
      {"strange_hellos", {{}, strange}},
      {"a_crowd", {{}, many_peers + honest() + connect + pass(19, 0)}},
      {"under_one_name",
       {{}, hello + become(Become::kTheOther) + hello + second_hello + pass(6) + honest()}},
      {"under_the_engines_name", {{}, become(Become::kTheEngine) + hello + connect + pass(6)}},
      {"another_job",
       {{.flags = Setting::kJobKey, .seed = 1},
        second_hello + local(Local::kConnect, {.who = 1}) + pass(8) + hello + honest()}},
      {"without_the_key",
       {{.flags = Setting::kJobKey},
        become(Become::kHonest, {.who = 1}) + second_hello + pass(6) + replay(0, 2) + honest()}},
      {"lossy", {{.flags = Setting::kLossy, .seed = 3}, connect + hello + hello + honest()}},
  };
}

/// Writes under two grants, before and after each is revoked alone.
inline std::map<std::string, Script> revoke_seeds() {
  const Sequence grants = local(Local::kGrant) + local(Local::kGrant) + write(0, 5) + pass(3);
  const Sequence revoked = local(Local::kRevoke) + write(0, 5) + local(Local::kRevoke, {.n = 1}) +
                           write(0, 4) + pass(12) + write(0, 5) + write(0, 1);
  return {
      {"revoked",
       {{}, grants + revoked + frame(MessageType::kRegionRevoked) + pass(10) + honest()}},
      {"revoked_in_silence", {{}, grants + pass(3, 0) + revoked + pass(19, 0) + honest()}},
      {"revoked_unordered",
       {{.flags = Setting::kUnordered}, grants + revoked + pass(19, 0) + write(0, 5) + honest()}},
  };
}

inline std::map<std::string, Script> session_seeds() {
  using M = MessageType;
  const uint8_t flood = Twist::of(Twist::kFlood);
  Sequence all_calls, all_kinds, damaged, paths, faults, messages, sends;
  for (uint8_t i = 0; i < kLocals; ++i) {
    all_calls = all_calls + local(static_cast<Local>(i), {.a = 1, .n = 300}) + pass(5);
  }
  for (const MessageType type : kFrameKinds) {
    all_kinds = all_kinds + frame(type, {.who = 1, .n = 1}) + pass(4);
  }
  for (uint8_t i = 0; i < kFrameKinds.size(); ++i) {
    const auto twist = static_cast<uint8_t>((8 + i % 8) | (10 + i % 6) << 4);
    damaged = damaged + frame(kFrameKinds[i], {.who = 3, .twist = twist, .b = i, .n = 5});
  }
  for (uint8_t b = 0; b < 8; ++b) {
    paths = paths + frame(M::kPathOpen, {.b = b, .n = 1}) + pass(5) + write(0) +
            frame(M::kPathClose, {.a = b}) + frame(M::kPathDrained, {.a = b, .b = b, .n = 2});
  }
  for (uint8_t i = 0; i < 10; ++i) {
    faults = faults + local(Local::kWrite, {.a = 9, .n = 500}) + write(0) + fault(i) + pass(12);
  }
  for (int i = 0; i < 20; ++i) {
    messages = messages + frame(M::kMessage, {.twist = flood, .a = 200, .b = 1, .n = 68}) + pass(4);
  }
  for (int i = 0; i < 6; ++i) sends = sends + local(Local::kSend, {.n = 9});
  const Sequence ask =
      local(Local::kSend) + local(Local::kResolve) + local(Local::kFence) + pass(4, 2);
  Sequence wrong_kind;
  for (const MessageType type : {M::kMessageDone, M::kResolved, M::kFenced, M::kKeyRevoked}) {
    for (uint8_t a = 0xc0; a < 0xc4; ++a) wrong_kind = wrong_kind + frame(type, {.a = a});
  }
  const Sequence names = frame(M::kResolve, {.a = 3, .n = 1}) + pass(4) + write(0, 3) +
                         local(Local::kNamed, {.a = 1}) + pass(4);
  const Sequence fenced =
      write(0) + local(Local::kFence) + write(0) + pass(13) + write(0) + pass(6);
  const Sequence dereg = write(1) + local(Local::kDeregister, {.who = 1}) + write(1) + pass(12);
  std::map<std::string, Script> seeds{
      {"all_calls", {{}, all_calls + honest()}},
      {"all_calls_unordered", {{.flags = Setting::kUnordered}, all_calls + honest()}},
      {"all_calls_then_closed", {{.flags = Setting::kAbrupt}, all_calls + honest()}},
      {"all_kinds", {{}, all_kinds + honest()}},
      {"all_kinds_with_a_key",
       {{.flags = Setting::kJobKey | Setting::kSecondKnows}, all_kinds + honest()}},
      {"all_kinds_without_a_key", {{.flags = Setting::kJobKey}, all_kinds + honest()}},
      {"damaged", {{}, damaged + pass(10) + honest()}},
      {"paths", {{}, paths + honest()}},
      {"paths_two_rails", {{.flags = Setting::kTwoRails}, paths + all_calls}},
      {"faults", {{}, faults + honest() + pass(19)}},
      {"faults_unordered", {{.flags = Setting::kUnordered}, faults + honest() + pass(19)}},
      {"wrong_kind", {{}, ask + wrong_kind + pass(18) + honest()}},
      {"names",
       {{}, names + frame(M::kAbortKey, {.a = 0}) + local(Local::kCloseCounter) + pass(8)}},
      {"names_flood", {{}, frame(M::kResolve, {.twist = flood, .a = 0xf0, .n = 30}) + pass(10)}},
      {"fenced", {{}, fenced + frame(M::kHello) + pass(10) + honest()}},
      {"deregistered", {{}, dereg + dereg + honest()}},
      {"credit", {{}, local(Local::kListen, {.a = 1}) + messages + honest()}},
      {"message_parts",
       {{}, local(Local::kListen, {.a = 1}) + message_parts() + pass(6) + honest()}},
      {"sends_beyond_credit", {{}, sends + pass(4, Answers::kAck) + frame(M::kBye) + pass(12)}},
      {"fence_cancelled",
       {{}, local(Local::kFence) + pass(3, Answers::kAck) + local(Local::kCancel) + pass(16)}},
      {"silence", {{}, honest() + pass(17, 0) + pass(17, 0) + honest() + pass(19, 0) + honest()}},
      {"restart", {{}, all_calls + become(Become::kNextIncarnation) + frame(M::kHello) + pass(8)}},
      {"lossy", {{.flags = Setting::kLossy, .seed = 5}, all_calls + paths}},
  };
  seeds.merge(revoke_seeds());
  return seeds;
}

}  // namespace fabric::fuzz
