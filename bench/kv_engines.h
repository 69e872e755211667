#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <fabric/kv.h>

#include "bench_engines.h"

// A prefill rank and a decode rank, and the push of a layer between them.

namespace fabric::bench {

/// Both engines are on one thread with the inline runtime and on the shm network. One request with
/// kLayers layers is under way. Pages are those of BenchEngines: as many, as large, and in the same
/// order.
class KvEngines {
 public:
  static constexpr uint32_t kLayers = 32;
  static constexpr uint32_t kPages = BenchEngines::kPages;

  /// `tensors`: 1, or 2 for K and V apart.
  explicit KvEngines(uint32_t tensors) : tensors_(tensors), cache_(layout(tensors)) {
    std::vector<uint32_t> source_pages(kPages), target_pages(kPages);
    std::iota(source_pages.begin(), source_pages.end(), 0u);
    std::iota(target_pages.rbegin(), target_pages.rend(), 0u);
    const char id[] = "r";
    need(prefiller_.offer({.id = id, .prompt_tokens = kPages, .pages = {source_pages}}), "offer");
    need(decoder_.start({.id = id,
                         .prefill = need(decoder_.add_prefill(kv::Side{{cache_}}), "add_prefill"),
                         .sources = {{.rank = 0, .address = prefill_engine_.address_text()}},
                         .prompt_tokens = kPages,
                         .pages = {target_pages}}),
         "start");
    while (prefiller_.stats().accepted == 0) {
      runtime_->turn();
      (void)prefiller_.poll({});
      (void)decoder_.poll({});
    }
    const kv::PassEntry entry{.id = id, .tokens = {0, kPages}};
    steps_ = need(prefiller_.pass({&entry, 1}), "pass");
    end_ = steps_ + kLayers;
  }

  /// Stores the word of the next layer, as a GPU does.
  void push_layer() {
    need(++steps_ <= end_, "more layers than the request has");
    // Pairs with the acquire load of the watcher.
    std::atomic_ref(*prefiller_.word()).store(steps_, std::memory_order_release);
    writes_ += uint64_t{tensors_} * kPages;
  }
  void turn() { runtime_->turn(); }
  /// All layers so far are complete on both sides.
  bool is_complete() const {
    const Traffic tx = prefill_engine_.stats().tx;
    return decode_engine_.stats().rx.imms == writes_ && tx.queued + tx.posted == 0;
  }

 private:
  /// A token is a page, and an element a byte.
  static kv::Layout layout(uint32_t tensors) {
    kv::CacheGroup group{.name = "full", .page_tokens = 1, .pages = kPages};
    for (uint32_t i = 0; i < kLayers; ++i) group.layers.push_back(i);
    kv::Layout layout{.region_bytes = {0}};
    for (uint32_t i = 0; i < tensors; ++i) {
      kv::Tensor tensor{.name = i == 0 ? "k" : "v", .dtype = "bytes", .element_bytes = 1};
      tensor.heads_total = 1;
      tensor.head_size = BenchEngines::kPageBytes;
      tensor.offset_bytes = layout.region_bytes[0];
      layout.region_bytes[0] +=
          need(kv::place_tensor(tensor, {.page_tokens = 1, .pages = kPages, .layers = kLayers}),
               "place_tensor");
      group.tensors.push_back(tensor);
    }
    layout.groups = {std::move(group)};
    return layout;
  }
  static Engine open(const std::shared_ptr<InlineRuntime>& runtime) {
    Config config;
    config.networks = {{.provider = "shm"}};
    // No heartbeats during a measurement.
    config.peer_timeout = config.lost_timeout = std::chrono::hours(1);
    config.counters_max = 64;
    config.ops_max = 1024;
    config.batches_max = 64;
    return need(Engine::open(config, runtime), "open");
  }

  const uint32_t tensors_;
  const kv::Layout cache_;
  std::shared_ptr<InlineRuntime> runtime_ = std::make_shared<InlineRuntime>();
  Engine prefill_engine_ = open(runtime_), decode_engine_ = open(runtime_);
  MemoryRegion source_ =
      need(prefill_engine_.allocate({.size_bytes = cache_.region_bytes[0]}), "allocate");
  MemoryRegion target_ =
      need(decode_engine_.allocate({.size_bytes = cache_.region_bytes[0]}), "allocate");
  kv::Prefiller prefiller_ = need(kv::Prefiller::open(prefill_engine_, {.side = kv::Side{{cache_}},
                                                                        .regions = {source_.id()},
                                                                        .requests_max = 16,
                                                                        .inbox_depth = 64,
                                                                        .watch_word = true}),
                                  "prefiller");
  kv::Decoder decoder_ =
      need(kv::Decoder::open(
               decode_engine_,
               {.layout = cache_, .regions = {&target_}, .requests_max = 16, .inbox_depth = 64}),
           "decoder");
  uint64_t steps_ = 0, end_ = 0;
  uint64_t writes_ = 0;
};

}  // namespace fabric::bench
