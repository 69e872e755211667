#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "generate.h"
#include "paged_cache.h"

// What is served: the model, the caches of both sides and the prompts. All processes make the same
// from the same options, as processes of a deployment read the same configuration.

namespace demo {

struct Workload {
  transformer::ModelOptions model{};
  /// The sides differ on purpose: tensor parallel 2 to 1, pages of 16 to 32 tokens.
  transformer::CacheOptions prefill{.page_tokens = 16, .pages = 192, .tp_size = 2};
  transformer::CacheOptions decode{.page_tokens = 32, .pages = 128};
  uint32_t new_tokens = 16;    ///< of every answer
  uint32_t chunk_tokens = 64;  ///< of a pass
};

Workload make_workload(transformer::Attention attention);

/// Prompts of 96 to 160 tokens. Groups of eight have the same first 64 tokens, as conversations
/// with one system prompt do. More prompts than the caches hold: the common beginnings stay cached,
/// the rest has been evicted when a prompt comes again.
constexpr uint32_t kPrompts = 80;
constexpr uint32_t kGroup = 8;
constexpr uint32_t kCommonTokens = 64;
/// The prompt of a request. A stride that has no divisor in common with the number of prompts: all
/// of them, in an order that changes the common beginning each time.
inline uint32_t prompt_of(uint64_t request) {
  return static_cast<uint32_t>(request * 11 % kPrompts);
}
std::vector<uint32_t> make_prompt(const Workload& workload, uint32_t number);

/// Bytes of the cache that a prompt fills, over all layers.
uint64_t cache_bytes(const Workload& workload, uint32_t tokens);

}  // namespace demo
