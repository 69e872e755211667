#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// The input of shm_connection_fuzz: a script of up to 64 actions against one shm network.

namespace fabric::fuzz {

enum class ShmVerb : uint8_t {
  kConnect,
  kGreet,  ///< what: whose address; n: descriptor kinds of slots and header; value: connection
  kSend,   ///< what: the frame; n: descriptors and their kind; value: its numbers
  kFlood,  ///< kSend repeated
  kDisconnect,
  kReceive,  ///< reads the frames of the victim
  kTurn,     ///< of the two honest networks; n: how many
  kTraffic,  ///< the honest networks write to each other
  kPathIn,   ///< the victim accepts; n: the path's number
  kPathOut,  ///< the victim opens and starts
  kShowRing,
  kShowRkey,  ///< what: its kind; n: index and block; value: its numbers
  kBlock,     ///< n: number and descriptor kind; value: the claimed size
  kPost,      ///< the victim writes; what: by which path; n: which rkey; value: how much and where
  kScribbleRing,  ///< what: which word; n: where; value: what
  kScribbleHeader,
  kScribbleSlots,
  kClosePath,
  kRevoke,  ///< the victim deregisters memory that the hostile processes may write to
  kCount,
};

struct ShmAction {
  ShmVerb verb = ShmVerb::kTurn;
  uint8_t who = 0;
  uint8_t what = 0;
  uint8_t n = 0;
  uint32_t value = 0;
};
inline constexpr size_t kShmActionBytes = 8;
inline constexpr size_t kShmActionsMax = 64;

using ShmScript = std::vector<ShmAction>;

inline ShmScript operator+(ShmScript first, const ShmScript& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// The hostile process is the sender of a path to the victim.
inline std::map<std::string, ShmScript> shm_sender_scripts() {
  using V = ShmVerb;
  const ShmScript in{{V::kConnect},         {V::kGreet},         {V::kTurn, 0, 0, 3},
                     {V::kPathIn, 0, 0, 1}, {V::kTurn, 0, 0, 3}, {V::kSend, 0, 8},
                     {V::kTurn, 0, 0, 3},   {V::kReceive}};
  return {
      {"greetings",
       {{V::kConnect},
        {V::kGreet, 0, 0, 0x11},
        {V::kTurn},
        {V::kConnect, 1},
        {V::kGreet, 1, 1},
        {V::kTraffic},
        {V::kTurn},
        {V::kConnect, 2},
        {V::kGreet, 2, 0, 0x50, 9},
        {V::kTurn}}},
      {"frames", in + ShmScript{{V::kSend, 0, 9, 3, 77},
                                {V::kTurn},
                                {V::kConnect},
                                {V::kGreet},
                                {V::kSend, 0, 3, 1},
                                {V::kSend, 0, 5, 1, 4},
                                {V::kSend, 0, 4, 0, 1},
                                {V::kSend, 0, 7},
                                {V::kTurn}}},
      {"floods",
       in + ShmScript{{V::kFlood, 0, 1, 90}, {V::kTraffic}, {V::kFlood, 0, 4}, {V::kTurn}}},
      {"imms", in + ShmScript{{V::kScribbleRing, 0, 1, 0, 3},
                              {V::kTurn},
                              {V::kScribbleRing, 0, 0, 1, 9},
                              {V::kScribbleRing, 0, 2, 0, 0x80000001},
                              {V::kTurn},
                              {V::kClosePath}}},
      {"pulls", in + ShmScript{{V::kScribbleRing, 0, 4},
                               {V::kScribbleRing, 0, 7, 0, 64},
                               {V::kScribbleRing, 0, 9, 0, 3},
                               {V::kScribbleRing, 0, 3, 0, 1},
                               {V::kTurn},
                               {V::kScribbleRing, 0, 7, 1, 0},
                               {V::kScribbleRing, 0, 3, 1, 1},
                               {V::kTurn}}},
      {"noise", in + ShmScript{{V::kScribbleSlots, 0, 0, 0, 0xffffffff},
                               {V::kScribbleSlots, 0, 1, 0, 1},
                               {V::kRevoke},
                               {V::kTurn},
                               {V::kScribbleSlots, 0, 3, 0, 0x4000001e},
                               {V::kTurn},
                               {V::kScribbleHeader, 0, 3, 2, 0xffffffff},
                               {V::kTurn},
                               {V::kClosePath}}},
  };
}

/// The hostile process is the target of a path from the victim.
inline std::map<std::string, ShmScript> shm_target_scripts() {
  using V = ShmVerb;
  const ShmScript out{{V::kConnect},           {V::kGreet},
                      {V::kTurn, 0, 0, 3},     {V::kPathOut},
                      {V::kShowRing, 0, 0, 1}, {V::kTurn, 0, 0, 3}};
  return {
      {"target", out + ShmScript{{V::kShowRkey, 0, 1, 0x10, 4096},
                                 {V::kPost, 0, 0, 0, 200},
                                 {V::kTurn},
                                 {V::kBlock, 0, 0, 1, 4096},
                                 {V::kTurn, 0, 0, 3},
                                 {V::kPost, 0, 0, 0, 200},
                                 {V::kTurn},
                                 {V::kScribbleHeader, 0, 0, 0, 1},
                                 {V::kPost},
                                 {V::kTraffic}}},
      {"pulling_target", out + ShmScript{{V::kShowRkey, 0, 2, 0x11, 4096},
                                         {V::kPost, 0, 0, 1, 200},
                                         {V::kPost, 0, 0, 1, 99},
                                         {V::kTurn},
                                         {V::kScribbleRing, 0, 3, 0, 2},
                                         {V::kTurn},
                                         {V::kDisconnect},
                                         {V::kTurn}}},
      {"bouncing_target",
       {{V::kConnect},
        {V::kGreet},
        {V::kTurn, 0, 0, 3},
        {V::kPathOut},
        {V::kShowRing},
        {V::kShowRkey, 0, 2, 0x11, 4096},
        {V::kTurn},
        {V::kPost, 0, 0, 1, 200},
        {V::kTurn},
        {V::kScribbleRing, 0, 3, 0, 3},
        {V::kTurn},
        {V::kClosePath}}},
  };
}

/// Seeds. Written to tests/fuzz/corpus by the corpus test.
inline std::map<std::string, std::vector<std::byte>> shm_connection_seeds() {
  std::map<std::string, std::vector<std::byte>> files;
  std::map<std::string, ShmScript> scripts = shm_sender_scripts();
  scripts.merge(shm_target_scripts());
  for (const auto& [name, script] : scripts) {
    std::vector<std::byte>& bytes = files["shm_connection/" + name];
    const auto put = [&](uint32_t byte) { bytes.push_back(static_cast<std::byte>(byte)); };
    for (const ShmAction& action : script) {
      for (const uint8_t byte :
           {static_cast<uint8_t>(action.verb), action.who, action.what, action.n}) {
        put(byte);
      }
      for (uint32_t shift = 0; shift < 32; shift += 8) put(action.value >> shift);
    }
  }
  return files;
}

}  // namespace fabric::fuzz
