#include <algorithm>
#include <cmath>

#include "transformer.h"

// Attention of both kinds. Keys and values are always read from the paged cache, also those that
// the pass has just written: what a decoder reads after a transfer is what the prefiller read.

namespace transformer {

/// The queries of one head against its cached rows. Latent attention has the values in the
/// first elements of the keys.
struct ForwardPass::HeadQuery {
  const float* query = nullptr;  ///< [count][stride]
  uint64_t stride = 0;
  uint32_t key_size = 0;
  const float* keys = nullptr;    ///< [position][key_size]
  const float* values = nullptr;  ///< [position][value_stride]
  uint64_t value_stride = 0;
  uint32_t value_size = 0;
  float scale = 1;
  float* out = nullptr;  ///< [count][out_stride]
  uint64_t out_stride = 0;
};

/// Sums run over the positions from the first to the last, whatever the pages and chunks are.
void ForwardPass::attend(const HeadQuery& q) {
  std::vector<float> scores(end());
  for (uint32_t i = 0; i < count_; ++i) {
    const uint32_t positions = begin_ + i + 1;
    const float* query = q.query + i * q.stride;
    float largest = -INFINITY;
    for (uint32_t p = 0; p < positions; ++p) {
      scores[p] = q.scale * dot(query, q.keys + uint64_t{p} * q.key_size, q.key_size);
      largest = std::max(largest, scores[p]);
    }
    float sum = 0;
    for (uint32_t p = 0; p < positions; ++p) {
      scores[p] = exp_float(scores[p] - largest);
      sum += scores[p];
    }
    float* out = q.out + i * q.out_stride;
    for (uint32_t e = 0; e < q.value_size; e += 8) {
      Float4 left = broadcast4(0);
      Float4 right = broadcast4(0);
      for (uint32_t p = 0; p < positions; ++p) {
        const float* value = q.values + p * q.value_stride + e;
        left += broadcast4(scores[p]) * load4(value);
        right += broadcast4(scores[p]) * load4(value + 4);
      }
      store4(out + e, left / broadcast4(sum));
      store4(out + e + 4, right / broadcast4(sum));
    }
  }
}

void ForwardPass::attend_grouped(const Transformer::Layer& layer) {
  const ModelOptions& o = model_.options_;
  const uint64_t query_stride = uint64_t{o.query_heads} * o.head_size;
  const uint64_t kv_stride = uint64_t{o.kv_heads} * o.head_size;
  std::vector<float> queries(count_ * query_stride);
  std::vector<float> keys(count_ * kv_stride);
  std::vector<float> values(count_ * kv_stride);
  layer.query.multiply(normal_, queries);
  layer.key.multiply(normal_, keys);
  layer.value.multiply(normal_, values);
  for (uint32_t i = 0; i < count_; ++i) {
    for (uint32_t head = 0; head < o.query_heads; ++head) {
      model_.rotary_.turn(&queries[i * query_stride + uint64_t{head} * o.head_size], begin_ + i);
    }
    for (uint32_t head = 0; head < o.kv_heads; ++head) {
      const uint64_t at = i * kv_stride + uint64_t{head} * o.head_size;
      model_.rotary_.turn(&keys[at], begin_ + i);
      cache_row(Stream::kKeys, head, i, std::span(keys).subspan(at, o.head_size));
      cache_row(Stream::kValues, head, i, std::span(values).subspan(at, o.head_size));
    }
  }
  for (uint32_t head = 0; head < o.query_heads; ++head) {
    const uint32_t kv_head = head * o.kv_heads / o.query_heads;
    const PagedCache& rank = cache_.rank_of_query(layer_, head);
    const bool read_before = head > 0 && (head - 1) * o.kv_heads / o.query_heads == kv_head &&
                             &cache_.rank_of_query(layer_, head - 1) == &rank;
    if (!read_before) {
      PagedCache::Rows rows{.layer = layer_, .head = kv_head, .pages = sequence_.pages};
      rank.read(rows, end(), keys);
      rows.stream = Stream::kValues;
      rank.read(rows, end(), values);
    }
    attend({.query = &queries[uint64_t{head} * o.head_size],
            .stride = query_stride,
            .key_size = o.head_size,
            .keys = keys.data(),
            .values = values.data(),
            .value_stride = o.head_size,
            .value_size = o.head_size,
            .scale = 1.0f / std::sqrt(static_cast<float>(o.head_size)),
            .out = &heads_[uint64_t{head} * o.head_size],
            .out_stride = query_stride});
  }
}

/// Absorbed form: queries are projected into the latent space, and the weighted sum is projected
/// back, so the cached latent vectors are used without expansion.
void ForwardPass::attend_latent(const Transformer::Layer& layer) {
  const ModelOptions& o = model_.options_;
  const uint32_t query_size = o.head_size + o.rotary_size;
  const uint32_t row_size = o.latent_size + o.rotary_size;
  const uint64_t query_stride = uint64_t{o.query_heads} * query_size;
  std::vector<float> queries(count_ * query_stride);
  std::vector<float> rows(uint64_t{count_} * row_size);
  layer.query.multiply(normal_, queries);
  layer.latent.multiply(normal_, rows);
  for (uint32_t i = 0; i < count_; ++i) {
    const auto row = std::span(rows).subspan(uint64_t{i} * row_size, row_size);
    rms_norm(row.first(o.latent_size), row.data());
    model_.rotary_.turn(&row[o.latent_size], begin_ + i);
    cache_row(Stream::kLatent, 0, i, row);
    for (uint32_t head = 0; head < o.query_heads; ++head) {
      const uint64_t at = i * query_stride + uint64_t{head} * query_size + o.head_size;
      model_.rotary_.turn(&queries[at], begin_ + i);
    }
  }
  std::vector<float> taken(uint64_t{count_} * row_size);  // queries in the latent space
  std::vector<float> weighed(uint64_t{count_} * o.latent_size);
  const PagedCache* read_from = nullptr;
  for (uint32_t head = 0; head < o.query_heads; ++head) {
    const float* query = &queries[uint64_t{head} * query_size];
    layer.key_up[head].multiply({.x = query,
                                 .x_stride = query_stride,
                                 .y = taken.data(),
                                 .y_stride = row_size,
                                 .count = count_});
    for (uint32_t i = 0; i < count_; ++i) {
      std::copy_n(query + i * query_stride + o.head_size, o.rotary_size,
                  &taken[uint64_t{i} * row_size + o.latent_size]);
    }
    const PagedCache& rank = cache_.rank_of_query(layer_, head);
    if (read_from != &rank) {
      rank.read({.layer = layer_, .stream = Stream::kLatent, .pages = sequence_.pages}, end(),
                rows);
      read_from = &rank;
    }
    attend({.query = taken.data(),
            .stride = row_size,
            .key_size = row_size,
            .keys = rows.data(),
            .values = rows.data(),
            .value_stride = row_size,
            .value_size = o.latent_size,
            .scale = 1.0f / std::sqrt(static_cast<float>(query_size)),
            .out = weighed.data(),
            .out_stride = o.latent_size});
    layer.value_up[head].multiply({.x = weighed.data(),
                                   .x_stride = o.latent_size,
                                   .y = &heads_[uint64_t{head} * o.head_size],
                                   .y_stride = uint64_t{o.query_heads} * o.head_size,
                                   .count = count_});
  }
}

}  // namespace transformer
