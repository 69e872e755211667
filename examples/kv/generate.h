#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transformer.h"

namespace transformer {

/// Computes what is not cached of a sequence, in chunks, and returns the token after it.
uint32_t prefill(const Transformer& model, ShardedCache& cache, Sequence& sequence,
                 uint32_t chunk_tokens = UINT32_MAX);

/// Appends `first` and the `count - 1` tokens after it, greedily: the most probable each time.
/// Returns all of them. The last one is appended and not computed.
std::vector<uint32_t> decode(const Transformer& model, ShardedCache& cache, Sequence& sequence,
                             uint32_t first, uint32_t count);

/// The same in one process with a cache of its own: what every other run is compared with.
///
/// Fails as check(ModelOptions) does, and with kInvalidArgument when the sequence would be longer
/// than ModelOptions::positions.
fabric::Result<std::vector<uint32_t>> generate(const Transformer& model,
                                               std::span<const uint32_t> prompt, uint32_t count);

/// A prompt from a seed.
std::vector<uint32_t> random_tokens(const ModelOptions& model, uint64_t seed, uint32_t count);

}  // namespace transformer
