#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// What shm_line_fuzz plays: a story of up to 64 actions against one network of this host.

namespace fabric::fuzz {

enum class ShmVerb : uint8_t {
  kConnect,
  kGreet,  ///< what: by whose name; n: cards and front, a descriptor kind each; value: line
  kSay,    ///< what: the frame; n: descriptors and their kind; value: its numbers
  kFlood,  ///< the same again and again
  kHangUp,
  kListen,   ///< reads what the victim sent
  kTurn,     ///< of the honest two; n: how many
  kTraffic,  ///< the honest two write to each other
  kPathIn,   ///< the victim accepts; n: the path's number
  kPathOut,  ///< the victim opens and starts
  kShowRing,
  kShowKey,  ///< what: its kind; n: index and block; value: its numbers
  kBlock,    ///< n: number and descriptor kind; value: the size that it says
  kPost,     ///< the victim writes; what: by which path; n: which key; value: how much and where
  kScribbleRing,  ///< what: which word; n: where; value: what
  kScribbleFront,
  kScribbleCards,
  kClosePath,
  kRevoke,  ///< the victim takes memory back, which the hostile ones may write to
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

using ShmStory = std::vector<ShmAction>;

inline ShmStory operator+(ShmStory first, const ShmStory& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// The hostile one sends: a path leads from it to the victim.
inline std::map<std::string, ShmStory> shm_sender_stories() {
  using V = ShmVerb;
  const ShmStory in{{V::kConnect},         {V::kGreet},         {V::kTurn, 0, 0, 3},
                    {V::kPathIn, 0, 0, 1}, {V::kTurn, 0, 0, 3}, {V::kSay, 0, 8},
                    {V::kTurn, 0, 0, 3},   {V::kListen}};
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
      {"frames", in + ShmStory{{V::kSay, 0, 9, 3, 77},
                               {V::kTurn},
                               {V::kConnect},
                               {V::kGreet},
                               {V::kSay, 0, 3, 1},
                               {V::kSay, 0, 5, 1, 4},
                               {V::kSay, 0, 4, 0, 1},
                               {V::kSay, 0, 7},
                               {V::kTurn}}},
      {"floods",
       in + ShmStory{{V::kFlood, 0, 1, 90}, {V::kTraffic}, {V::kFlood, 0, 4}, {V::kTurn}}},
      {"counts", in + ShmStory{{V::kScribbleRing, 0, 1, 0, 3},
                               {V::kTurn},
                               {V::kScribbleRing, 0, 0, 1, 9},
                               {V::kScribbleRing, 0, 2, 0, 0x80000001},
                               {V::kTurn},
                               {V::kClosePath}}},
      {"orders", in + ShmStory{{V::kScribbleRing, 0, 4},
                               {V::kScribbleRing, 0, 7, 0, 64},
                               {V::kScribbleRing, 0, 9, 0, 3},
                               {V::kScribbleRing, 0, 3, 0, 1},
                               {V::kTurn},
                               {V::kScribbleRing, 0, 7, 1, 0},
                               {V::kScribbleRing, 0, 3, 1, 1},
                               {V::kTurn}}},
      {"noise", in + ShmStory{{V::kScribbleCards, 0, 0, 0, 0xffffffff},
                              {V::kScribbleCards, 0, 1, 0, 1},
                              {V::kRevoke},
                              {V::kTurn},
                              {V::kScribbleCards, 0, 3, 0, 0x4000001e},
                              {V::kTurn},
                              {V::kScribbleFront, 0, 3, 2, 0xffffffff},
                              {V::kTurn},
                              {V::kClosePath}}},
  };
}

/// The hostile one is written to.
inline std::map<std::string, ShmStory> shm_target_stories() {
  using V = ShmVerb;
  const ShmStory out{{V::kConnect},           {V::kGreet},
                     {V::kTurn, 0, 0, 3},     {V::kPathOut},
                     {V::kShowRing, 0, 0, 1}, {V::kTurn, 0, 0, 3}};
  return {
      {"target", out + ShmStory{{V::kShowKey, 0, 1, 0x10, 4096},
                                {V::kPost, 0, 0, 0, 200},
                                {V::kTurn},
                                {V::kBlock, 0, 0, 1, 4096},
                                {V::kTurn, 0, 0, 3},
                                {V::kPost, 0, 0, 0, 200},
                                {V::kTurn},
                                {V::kScribbleFront, 0, 0, 0, 1},
                                {V::kPost},
                                {V::kTraffic}}},
      {"fetching_target", out + ShmStory{{V::kShowKey, 0, 2, 0x11, 4096},
                                         {V::kPost, 0, 0, 1, 200},
                                         {V::kPost, 0, 0, 1, 99},
                                         {V::kTurn},
                                         {V::kScribbleRing, 0, 3, 0, 2},
                                         {V::kTurn},
                                         {V::kHangUp},
                                         {V::kTurn}}},
      {"bouncing_target",
       {{V::kConnect},
        {V::kGreet},
        {V::kTurn, 0, 0, 3},
        {V::kPathOut},
        {V::kShowRing},
        {V::kShowKey, 0, 2, 0x11, 4096},
        {V::kTurn},
        {V::kPost, 0, 0, 1, 200},
        {V::kTurn},
        {V::kScribbleRing, 0, 3, 0, 3},
        {V::kTurn},
        {V::kClosePath}}},
  };
}

/// Stories to begin with. Written to tests/fuzz/corpus by the test of the corpora.
inline std::map<std::string, std::vector<std::byte>> shm_line_seeds() {
  std::map<std::string, std::vector<std::byte>> files;
  std::map<std::string, ShmStory> stories = shm_sender_stories();
  stories.merge(shm_target_stories());
  for (const auto& [name, story] : stories) {
    std::vector<std::byte>& bytes = files["shm_line/" + name];
    const auto put = [&](uint32_t byte) { bytes.push_back(static_cast<std::byte>(byte)); };
    for (const ShmAction& action : story) {
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
