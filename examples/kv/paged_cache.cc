#include "paged_cache.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "exact_math.h"

namespace transformer {

namespace kv = fabric::kv;
using fabric::Errc;
using fabric::Result;

namespace {

struct TensorSpec {
  const char* name;
  uint32_t heads;
  uint32_t head_size;
  uint32_t parts;
  kv::Sharding sharding;
};

std::vector<TensorSpec> tensor_specs(const ModelOptions& model, const CacheOptions& cache) {
  if (model.attention == Attention::kLatent) {
    return {{"latent", 1, model.latent_size + model.rotary_size, 1, kv::Sharding::kReplicated}};
  }
  if (cache.keys_with_values) {
    return {{"kv", model.kv_heads, model.head_size, 2, kv::Sharding::kHeads}};
  }
  return {{"k", model.kv_heads, model.head_size, 1, kv::Sharding::kHeads},
          {"v", model.kv_heads, model.head_size, 1, kv::Sharding::kHeads}};
}

}  // namespace

Result<kv::Layout> cache_layout(const ModelOptions& model, const CacheOptions& cache,
                                uint32_t tp_rank, uint32_t pp_rank) {
  if (const auto good = check(model); !good) return good.error();
  if (cache.pp_size == 0 || model.layers % cache.pp_size != 0) {
    return fabric::fail(Errc::kInvalidArgument, "pp_size: divides the layers");
  }
  if (pp_rank >= cache.pp_size) return fabric::fail(Errc::kInvalidArgument, "pp_rank");
  kv::Layout layout{.model_hash = model_hash(model),
                    .tp_rank = tp_rank,
                    .tp_size = cache.tp_size,
                    .pp_rank = pp_rank,
                    .pp_size = cache.pp_size};
  kv::CacheGroup group{.name = kGroupName, .page_tokens = cache.page_tokens, .pages = cache.pages};
  const uint32_t layers = model.layers / cache.pp_size;
  for (uint32_t i = 0; i < layers; ++i) group.layers.push_back(pp_rank * layers + i);
  uint64_t end_bytes = 0;
  for (const TensorSpec& spec : tensor_specs(model, cache)) {
    kv::Tensor tensor{.name = spec.name, .dtype = "bfloat16", .element_bytes = 2};
    tensor.offset_bytes = end_bytes;
    tensor.sharding = spec.sharding;
    tensor.heads_total = spec.heads;
    tensor.head_size = spec.head_size;
    tensor.parts = spec.parts;
    const auto bytes = kv::place_tensor(tensor, {.order = cache.order,
                                                 .page_tokens = cache.page_tokens,
                                                 .tp_rank = tp_rank,
                                                 .tp_size = cache.tp_size,
                                                 .pages = cache.pages,
                                                 .layers = layers,
                                                 .layers_in_page = cache.layers_in_page});
    if (!bytes) return bytes.error();
    end_bytes += *bytes;
    group.tensors.push_back(std::move(tensor));
  }
  layout.region_bytes.push_back(end_bytes);
  layout.groups.push_back(std::move(group));
  if (const auto good = kv::check(layout); !good) return good.error();
  return layout;
}

PagedCache::PagedCache(kv::Layout layout, std::span<std::byte> memory)
    : layout_(std::move(layout)), memory_(memory) {
  heads_ = kv::heads_of(layout_, group().tensors[0])->range;
}

bool PagedCache::has_layer(uint32_t layer) const {
  return std::ranges::binary_search(group().layers, layer);
}

/// The address of kv_layout.h, without the terms of page and token.
PagedCache::Strides PagedCache::strides(uint32_t layer, Stream stream, uint32_t head) const {
  const std::vector<kv::Tensor>& tensors = group().tensors;
  const bool values = stream == Stream::kValues;
  const kv::Tensor& tensor = values ? tensors.back() : tensors.front();
  const uint64_t part = values && tensor.parts == 2 ? 1 : 0;
  const auto at = std::ranges::lower_bound(group().layers, layer) - group().layers.begin();
  const uint64_t offset =
      tensor.offset_bytes + static_cast<uint64_t>(at) * tensor.layer_stride_bytes +
      part * tensor.part_stride_bytes + (head - heads_.begin) * tensor.head_stride_bytes;
  return {.first = memory_.data() + offset,
          .page = tensor.page_stride_bytes,
          .token = tensor.token_stride_bytes,
          .elements = tensor.head_size};
}

void PagedCache::write(const Rows& rows, uint32_t position, std::span<const float> row) {
  const Strides at = strides(rows.layer, rows.stream, rows.head);
  std::byte* target = at.first + rows.pages[position / page_tokens()] * at.page +
                      position % page_tokens() * at.token;
  for (const float value : row) {
    const uint16_t bits = to_bfloat16(value);
    std::memcpy(target, &bits, sizeof(bits));
    target += sizeof(bits);
  }
}

uint32_t PagedCache::read(const Rows& rows, uint32_t count, std::vector<float>& out) const {
  const Strides at = strides(rows.layer, rows.stream, rows.head);
  out.resize(uint64_t{count} * at.elements);
  float* to = out.data();
  for (uint32_t position = 0; position < count; ++position) {
    const std::byte* source = at.first + rows.pages[position / page_tokens()] * at.page +
                              position % page_tokens() * at.token;
    for (uint32_t i = 0; i < at.elements; ++i) {
      uint16_t bits;
      std::memcpy(&bits, source + 2 * i, sizeof(bits));
      *to++ = from_bfloat16(bits);
    }
  }
  return at.elements;
}

template <class Visit>
void PagedCache::visit_rows(uint32_t page, const Visit& visit) const {
  const kv::Tensor& first = group().tensors.front();
  const bool one_stream = group().tensors.size() == 1 && first.parts == 1;
  const auto streams =
      one_stream ? std::vector{Stream::kLatent} : std::vector{Stream::kKeys, Stream::kValues};
  for (const uint32_t layer : group().layers) {
    for (const Stream stream : streams) {
      for (uint64_t h = 0; h < heads_.count; ++h) {
        const Strides at = strides(layer, stream, static_cast<uint32_t>(heads_.begin + h));
        for (uint32_t token = 0; token < page_tokens(); ++token) {
          visit(std::span(at.first + page * at.page + token * at.token, 2 * at.elements));
        }
      }
    }
  }
}

void PagedCache::fill_page(uint32_t page, std::byte value) {
  visit_rows(page, [&](std::span<std::byte> row) { std::ranges::fill(row, value); });
}

uint64_t PagedCache::bytes_other_than(uint32_t page, std::byte value) const {
  uint64_t other = 0;
  visit_rows(page, [&](std::span<const std::byte> row) {
    other += row.size() - static_cast<uint64_t>(std::ranges::count(row, value));
  });
  return other;
}

uint64_t PagedCache::page_bytes() const {
  uint64_t bytes = 0;
  visit_rows(0, [&](std::span<const std::byte> row) { bytes += row.size(); });
  return bytes;
}

ShardedCache::ShardedCache(const ModelOptions& model, const CacheOptions& options,
                           std::vector<PagedCache> ranks)
    : options_(options),
      layers_per_stage_(model.layers / options.pp_size),
      query_heads_(model.query_heads),
      ranks_(std::move(ranks)) {}

Result<ShardedCache> ShardedCache::allocate(const ModelOptions& model,
                                            const CacheOptions& options) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<PagedCache> ranks;
  for (uint32_t pp = 0; pp < options.pp_size; ++pp) {
    for (uint32_t tp = 0; tp < options.tp_size; ++tp) {
      auto layout = cache_layout(model, options, tp, pp);
      if (!layout) return layout.error();
      memory.emplace_back(layout->region_bytes[0]);
      ranks.emplace_back(*std::move(layout), memory.back());
    }
  }
  ShardedCache out(model, options, std::move(ranks));
  out.memory_ = std::move(memory);
  return out;
}

kv::Side ShardedCache::side() const {
  kv::Side side;
  for (const PagedCache& rank : ranks_) side.ranks.push_back(rank.layout());
  return side;
}

std::span<PagedCache> ShardedCache::ranks_of_layer(uint32_t layer) {
  return std::span(ranks_).subspan(layer / layers_per_stage_ * options_.tp_size, options_.tp_size);
}

const PagedCache& ShardedCache::rank_of_query(uint32_t layer, uint32_t query_head) const {
  return ranks_[layer / layers_per_stage_ * options_.tp_size +
                query_head * options_.tp_size / query_heads_];
}

}  // namespace transformer
