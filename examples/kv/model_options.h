#pragma once

#include <cstdint>

#include <fabric/result.h>

namespace transformer {

enum class Attention : uint8_t {
  kGrouped,  ///< GQA: query heads share kv heads; the cache holds their keys and values
  kLatent,   ///< MLA: the cache holds one latent vector a token, which all heads read
};

/// A decoder-only transformer: RMSNorm, rotary positions, SwiGLU, weights from a seed. The defaults
/// take about 1.2 MFLOP a token.
struct ModelOptions {
  Attention attention = Attention::kGrouped;
  uint32_t layers = 6;
  uint32_t width = 128;  ///< of the residual stream
  uint32_t query_heads = 8;
  uint32_t kv_heads = 4;      ///< kGrouped only
  uint32_t head_size = 16;    ///< with kLatent the part of a query without position
  uint32_t latent_size = 48;  ///< kLatent only
  uint32_t rotary_size = 16;  ///< kLatent only: elements of query and cache that carry the position
  uint32_t hidden = 128;      ///< of the feed-forward part
  uint32_t vocabulary = 512;
  uint32_t positions = 1024;  ///< the longest sequence
  uint64_t seed = 1;
};

/// Fails with kInvalidArgument: a size that is 0, too large or not a multiple of what the matrix
/// product and the rotation need. Error::what names it.
fabric::Result<void> check(const ModelOptions& options);

/// Everything that decides about tokens, for kv::Layout::model_hash.
uint64_t model_hash(const ModelOptions& options);

}  // namespace transformer
