#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <fabric/kv_layout.h>
#include <fabric/result.h>

#include "model_options.h"

// The KV cache as the library describes it: kv::Layout says where every element is, and PagedCache
// reads and writes rows there. Elements are bfloat16.

namespace transformer {

struct CacheOptions {
  fabric::kv::PageOrder order = fabric::kv::PageOrder::kHND;
  uint32_t page_tokens = 16;
  uint32_t pages = 0;
  uint32_t tp_size = 1;
  uint32_t pp_size = 1;
  bool keys_with_values = false;  ///< one tensor "kv" of two parts, not "k" and "v"
  bool layers_in_page = false;    ///< memory is [page][layer], not [layer][page]
};

constexpr const char* kGroupName = "attention";

/// The layout of one rank: one region that holds everything.
///
/// Fails as check(ModelOptions) and kv::check() do; with kInvalidArgument when pp_size does not
/// divide the layers.
fabric::Result<fabric::kv::Layout> cache_layout(const ModelOptions& model,
                                                const CacheOptions& cache, uint32_t tp_rank,
                                                uint32_t pp_rank);

/// What is cached of a token: rows of head_size elements, or one latent vector.
enum class Stream : uint8_t { kKeys, kValues, kLatent };

/// The cache of one rank. Does not own the memory.
///
/// Threads: rows of different pages may be used at the same time.
class PagedCache {
 public:
  /// `memory` has layout.region_bytes[0] bytes. `layout` comes from cache_layout().
  PagedCache(fabric::kv::Layout layout, std::span<std::byte> memory);

  const fabric::kv::Layout& layout() const { return layout_; }
  std::span<std::byte> memory() const { return memory_; }
  uint32_t page_tokens() const { return group().page_tokens; }
  uint32_t pages() const { return group().pages; }
  bool has_layer(uint32_t layer) const;
  /// The heads of the model that this rank caches.
  fabric::layout::IndexRange heads() const { return heads_; }

  /// The rows of one layer, stream and head of the model. `pages` are those of the sequence.
  struct Rows {
    uint32_t layer = 0;
    Stream stream = Stream::kKeys;
    uint32_t head = 0;
    std::span<const uint32_t> pages{};
  };
  void write(const Rows& rows, uint32_t position, std::span<const float> row);
  /// Rows 0 to count - 1, one after the other. Returns the elements of a row.
  uint32_t read(const Rows& rows, uint32_t count, std::vector<float>& out) const;

  /// Fills all rows of a page with one byte, and counts the bytes that are not it.
  void fill_page(uint32_t page, std::byte value);
  uint64_t bytes_other_than(uint32_t page, std::byte value) const;
  /// Of all layers and streams of a page.
  uint64_t page_bytes() const;

 private:
  const fabric::kv::CacheGroup& group() const { return layout_.groups[0]; }
  struct Strides {
    std::byte* first = nullptr;  ///< of page 0, token 0
    uint64_t page = 0;
    uint64_t token = 0;
    uint32_t elements = 0;
  };
  Strides strides(uint32_t layer, Stream stream, uint32_t head) const;
  template <class Visit>
  void visit_rows(uint32_t page, const Visit& visit) const;

  fabric::kv::Layout layout_;
  std::span<std::byte> memory_;
  fabric::layout::IndexRange heads_{};
};

/// The caches of all ranks of a side. Page ids are the same on every rank, as in an engine whose
/// scheduler hands out the pages for all its workers.
class ShardedCache {
 public:
  ShardedCache(const ModelOptions& model, const CacheOptions& options,
               std::vector<PagedCache> ranks);
  ShardedCache(ShardedCache&&) = default;
  ShardedCache(const ShardedCache&) = delete;  // the ranks point into memory_
  /// With memory of its own, zeroed. Fails as cache_layout() does.
  static fabric::Result<ShardedCache> allocate(const ModelOptions& model,
                                               const CacheOptions& options);

  const CacheOptions& options() const { return options_; }
  fabric::kv::Side side() const;
  std::span<PagedCache> ranks() { return ranks_; }
  std::span<const PagedCache> ranks() const { return ranks_; }
  /// The ranks of the pipeline stage that has the layer.
  std::span<PagedCache> ranks_of_layer(uint32_t layer);
  /// The rank that computes a query head: it reads only its own cache, also where others have
  /// copies of the same kv head.
  const PagedCache& rank_of_query(uint32_t layer, uint32_t query_head) const;
  uint32_t pages_for(uint32_t tokens) const {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }

 private:
  CacheOptions options_;
  uint32_t layers_per_stage_;
  uint32_t query_heads_;
  std::vector<std::vector<std::byte>> memory_{};  ///< of allocate()
  std::vector<PagedCache> ranks_;
};

}  // namespace transformer
