#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <fabric/result.h>

#include "matrix.h"
#include "model_options.h"
#include "paged_cache.h"
#include "rotary.h"

namespace transformer {

/// The model: weights and the tables of the rotation, made from the seed.
///
/// Tensor parallel ranks divide the cache and the heads that read it: a query head reads the cache
/// of its rank only. All ranks of a side are computed in one process, and the projection after the
/// heads sums over them in the order of the heads, not in the order of the ranks. So the bits of a
/// token do not depend on how a side is divided, which is what lets tests compare tokens.
///
/// Threads: const after construction; share it.
class Transformer {
 public:
  /// Fails as check(ModelOptions) does.
  static fabric::Result<Transformer> make(const ModelOptions& options);

  const ModelOptions& options() const { return options_; }

 private:
  friend class ForwardPass;
  struct Layer {
    Matrix query{};
    Matrix key{};                    ///< kGrouped
    Matrix value{};                  ///< kGrouped
    Matrix latent{};                 ///< kLatent: what is cached
    std::vector<Matrix> key_up{};    ///< kLatent, per query head: head to latent
    std::vector<Matrix> value_up{};  ///< kLatent, per query head: latent to head
    Matrix output{};
    Matrix gate{};
    Matrix up{};
    Matrix down{};
  };
  explicit Transformer(const ModelOptions& options);
  Layer make_layer(SeededNumbers& numbers) const;

  ModelOptions options_;
  Rotary rotary_;
  std::vector<float> embedding_{};  ///< [vocabulary][width]
  std::vector<Layer> layers_{};
  Matrix head_{};  ///< width to vocabulary
};

/// A sequence in a cache. `pages` covers all positions that are computed.
struct Sequence {
  std::vector<uint32_t> tokens{};
  std::vector<uint32_t> pages{};
  uint32_t cached = 0;  ///< tokens whose rows are in the cache, from the first
};

/// One pass of some tokens through the model, layer by layer:
///
///     ForwardPass pass(model, cache, sequence, {.tokens = 64});
///     while (!pass.done()) prefiller.layer_done(pass.compute_layer());
///     sequence.cached = pass.end();
///
/// When compute_layer() returns, the rows of that layer are in the cache.
///
/// Lifetime: model, cache and sequence outlive it.
class ForwardPass {
 public:
  struct Chunk {
    uint32_t tokens = UINT32_MAX;  ///< at most; from sequence.cached on
  };
  ForwardPass(const Transformer& model, ShardedCache& cache, const Sequence& sequence,
              const Chunk& chunk);

  uint32_t begin() const { return begin_; }
  uint32_t end() const { return begin_ + count_; }
  bool done() const { return layer_ == model_.layers_.size(); }
  uint32_t compute_layer();  ///< returns the id of the layer
  /// The most probable token after the last one of the pass. Call it when done().
  uint32_t next_token() const;

 private:
  void attend_grouped(const Transformer::Layer& layer);
  void attend_latent(const Transformer::Layer& layer);
  void feed_forward(const Transformer::Layer& layer);
  void normalise();
  void cache_row(Stream stream, uint32_t head, uint32_t index, std::span<const float> row);
  struct HeadQuery;
  void attend(const HeadQuery& query);

  const Transformer& model_;
  ShardedCache& cache_;
  const Sequence& sequence_;
  uint32_t begin_;
  uint32_t count_;
  uint32_t layer_ = 0;
  std::vector<float> stream_{};  ///< [count][width], the residual stream
  std::vector<float> normal_{};  ///< [count][width]
  std::vector<float> heads_{};   ///< [count][query_heads * head_size], what the heads return
};

}  // namespace transformer
