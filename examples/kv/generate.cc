#include "generate.h"

#include <numeric>

namespace transformer {

using fabric::Errc;
using fabric::Result;

uint32_t prefill(const Transformer& model, ShardedCache& cache, Sequence& sequence,
                 uint32_t chunk_tokens) {
  uint32_t next = 0;
  while (sequence.cached < sequence.tokens.size()) {
    ForwardPass pass(model, cache, sequence, {.tokens = chunk_tokens});
    while (!pass.done()) pass.compute_layer();
    next = pass.next_token();
    sequence.cached = pass.end();
  }
  return next;
}

std::vector<uint32_t> decode(const Transformer& model, ShardedCache& cache, Sequence& sequence,
                             uint32_t first, uint32_t count) {
  std::vector<uint32_t> out{first};
  sequence.tokens.push_back(first);
  while (out.size() < count) {
    out.push_back(prefill(model, cache, sequence));
    sequence.tokens.push_back(out.back());
  }
  return out;
}

Result<std::vector<uint32_t>> generate(const Transformer& model, std::span<const uint32_t> prompt,
                                       uint32_t count) {
  const uint64_t length = prompt.size() + count;
  if (prompt.empty() || count == 0 || length > model.options().positions) {
    return fabric::fail(Errc::kInvalidArgument, "prompt: 1 to positions - count tokens");
  }
  CacheOptions options{.page_tokens = 16};
  options.pages = static_cast<uint32_t>(length + options.page_tokens - 1) / options.page_tokens;
  auto cache = ShardedCache::allocate(model.options(), options);
  if (!cache) return cache.error();
  Sequence sequence{.tokens = {prompt.begin(), prompt.end()}};
  sequence.pages.resize(options.pages);
  std::iota(sequence.pages.begin(), sequence.pages.end(), 0);
  const uint32_t first = prefill(model, *cache, sequence);
  return decode(model, *cache, sequence, first, count);
}

std::vector<uint32_t> random_tokens(const ModelOptions& model, uint64_t seed, uint32_t count) {
  SeededNumbers numbers(seed);
  std::vector<uint32_t> out(count);
  for (uint32_t& token : out) token = numbers.below(model.vocabulary);
  return out;
}

}  // namespace transformer
