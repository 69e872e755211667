#include "transformer.h"

#include <algorithm>
#include <cmath>

namespace transformer {

using fabric::Result;

namespace {

/// Uniform weights in [-scale, scale) with the variance gain^2 / rows.
float weight_scale(float gain, uint32_t rows) {
  return gain * std::sqrt(3.0f / static_cast<float>(rows));
}

/// Random weights make attention nearly uniform, so that a wrong key would hardly show. A gain
/// well above 1 makes the softmax choose few tokens, as trained models do.
constexpr float kScoreGain = 2.0f;

}  // namespace

Result<Transformer> Transformer::make(const ModelOptions& options) {
  if (const auto good = check(options); !good) return good.error();
  return Transformer(options);
}

Transformer::Transformer(const ModelOptions& options)
    : options_(options),
      rotary_(options.attention == Attention::kLatent ? options.rotary_size : options.head_size,
              options.positions) {
  SeededNumbers numbers(options.seed);
  embedding_.resize(uint64_t{options.vocabulary} * options.width);
  for (float& value : embedding_) value = numbers.uniform();
  for (uint32_t i = 0; i < options.layers; ++i) layers_.push_back(make_layer(numbers));
  head_ = Matrix(options.width, options.vocabulary, weight_scale(1, options.width), numbers);
}

Transformer::Layer Transformer::make_layer(SeededNumbers& numbers) const {
  const ModelOptions& o = options_;
  const auto matrix = [&](uint32_t rows, uint32_t columns, float gain) {
    return Matrix(rows, columns, weight_scale(gain, rows), numbers);
  };
  Layer layer;
  if (o.attention == Attention::kGrouped) {
    layer.query = matrix(o.width, o.query_heads * o.head_size, kScoreGain);
    layer.key = matrix(o.width, o.kv_heads * o.head_size, kScoreGain);
    layer.value = matrix(o.width, o.kv_heads * o.head_size, 1);
  } else {
    layer.query = matrix(o.width, o.query_heads * (o.head_size + o.rotary_size), kScoreGain);
    layer.latent = matrix(o.width, o.latent_size + o.rotary_size, 1);
    for (uint32_t head = 0; head < o.query_heads; ++head) {
      layer.key_up.push_back(matrix(o.head_size, o.latent_size, kScoreGain));
      layer.value_up.push_back(matrix(o.latent_size, o.head_size, 1));
    }
  }
  layer.output = matrix(o.query_heads * o.head_size, o.width, 1);
  layer.gate = matrix(o.width, o.hidden, 1);
  layer.up = matrix(o.width, o.hidden, 1);
  layer.down = matrix(o.hidden, o.width, 1);
  return layer;
}

ForwardPass::ForwardPass(const Transformer& model, ShardedCache& cache, const Sequence& sequence,
                         const Chunk& chunk)
    : model_(model),
      cache_(cache),
      sequence_(sequence),
      begin_(sequence.cached),
      count_(std::min<uint32_t>(chunk.tokens,
                                static_cast<uint32_t>(sequence.tokens.size()) - begin_)) {
  const ModelOptions& o = model.options_;
  stream_.resize(uint64_t{count_} * o.width);
  normal_.resize(stream_.size());
  heads_.resize(uint64_t{count_} * o.query_heads * o.head_size);
  for (uint32_t i = 0; i < count_; ++i) {
    const uint64_t token = sequence.tokens[begin_ + i] % o.vocabulary;
    std::copy_n(model.embedding_.begin() + static_cast<int64_t>(token * o.width), o.width,
                stream_.begin() + static_cast<int64_t>(uint64_t{i} * o.width));
  }
}

uint32_t ForwardPass::compute_layer() {
  const Transformer::Layer& layer = model_.layers_[layer_];
  normalise();
  if (model_.options_.attention == Attention::kGrouped) {
    attend_grouped(layer);
  } else {
    attend_latent(layer);
  }
  std::vector<float> change(stream_.size());
  layer.output.multiply(heads_, change);
  for (size_t i = 0; i < stream_.size(); ++i) stream_[i] += change[i];
  feed_forward(layer);
  return layer_++;
}

uint32_t ForwardPass::next_token() const {
  const uint32_t width = model_.options_.width;
  std::vector<float> last(width);
  std::vector<float> scores(model_.options_.vocabulary);
  rms_norm(std::span(stream_).last(width), last.data());
  model_.head_.multiply(last, scores);
  // The lowest token id on a tie.
  return static_cast<uint32_t>(std::ranges::max_element(scores) - scores.begin());
}

void ForwardPass::normalise() {
  const uint32_t width = model_.options_.width;
  for (uint32_t i = 0; i < count_; ++i) {
    rms_norm(std::span(stream_).subspan(uint64_t{i} * width, width),
             normal_.data() + uint64_t{i} * width);
  }
}

void ForwardPass::feed_forward(const Transformer::Layer& layer) {
  normalise();
  std::vector<float> gate(uint64_t{count_} * model_.options_.hidden);
  std::vector<float> up(gate.size());
  layer.gate.multiply(normal_, gate);
  layer.up.multiply(normal_, up);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = silu(gate[i]) * up[i];
  std::vector<float> change(stream_.size());
  layer.down.multiply(gate, change);
  for (size_t i = 0; i < stream_.size(); ++i) stream_[i] += change[i];
}

/// To every rank that has the head: replicas hold the same rows.
void ForwardPass::cache_row(Stream stream, uint32_t head, uint32_t index,
                            std::span<const float> row) {
  for (PagedCache& rank : cache_.ranks_of_layer(layer_)) {
    const auto heads = rank.heads();
    if (head < heads.begin || head >= heads.begin + heads.count) continue;
    rank.write({.layer = layer_, .stream = stream, .head = head, .pages = sequence_.pages},
               begin_ + index, row);
  }
}

}  // namespace transformer
