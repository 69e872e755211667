#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fabric/kv.h>
#include <fabric/sim.h>

#include "harness/host.h"

// What requests in flight take beside their pages, which no heap holds: Engine::allocate() maps
// them.

namespace fabric::test::kv_memory_test {
namespace {

constexpr uint32_t kRequests = 10'000;
constexpr uint32_t kPagesEach = 32, kPageTokens = 16, kPrompt = kPagesEach * kPageTokens;
constexpr uint32_t kPages = kRequests * kPagesEach;
constexpr uint32_t kPassEntries = 500;
constexpr uint64_t kBytesMax = 64u << 20;

/// All blocks, those that malloc() maps included.
uint64_t heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

kv::Layout small_layout() {
  kv::CacheGroup group{.name = "full", .page_tokens = kPageTokens, .pages = kPages, .layers = {0}};
  kv::Tensor tensor{.name = "latent", .dtype = "u8", .element_bytes = 1};
  tensor.heads_total = tensor.head_size = 1;
  const uint64_t bytes = *kv::place_tensor(tensor, {.page_tokens = kPageTokens, .pages = kPages});
  group.tensors.push_back(tensor);
  return {.region_bytes = {bytes}, .groups = {group}};
}

std::vector<uint32_t> pages_of(uint32_t request) {
  std::vector<uint32_t> pages(kPagesEach);
  // Not a run: what is stored for each page is not saved by storing runs.
  for (uint32_t i = 0; i < kPagesEach; ++i) pages[i] = i * kRequests + request;
  return pages;
}

class KvMemory : public testing::Test {
 protected:
  // As docs/kv_lifecycle.md sizes them.
  static Config decode_config() {
    Config config = test_config();
    config.ops_max = kRequests + 64;  // an armed counter for each request, and messages
    return config;
  }
  static Config prefill_config() {
    Config config = test_config();
    config.batches_max = kRequests;
    return config;
  }
  Host host(const Config& config) {
    return open_host(world_, world_.add_node(), layout_.region_bytes[0], config);
  }
  void poll() {
    kv::DecodeEvent event;
    while (decoder_->poll({&event, 1}) == 1) {
      complete_ += event.kind == kv::DecodeEvent::Kind::kMayWrite;
      ASSERT_NE(event.kind, kv::DecodeEvent::Kind::kFailed) << event.text;
    }
    kv::PrefillEvent source;
    while (prefiller_->poll({&source, 1}) == 1) {
    }
  }
  /// Asks after each millisecond, not after each event: `done` may look at all requests.
  template <class Done>
  bool run_until(Done done) {
    for (uint32_t i = 0; i < 10'000; ++i) {
      world_.run_for(1ms);
      poll();
      if (done()) return true;
    }
    return false;
  }
  /// A chunk of every request.
  void push_chunk(kv::TokenRange tokens);

  sim::World world_;
  const kv::Layout layout_ = small_layout();
  const uint64_t before_ = heap_bytes();
  Host here_ = host(decode_config());
  const uint64_t decode_engine_ = heap_bytes() - before_;
  Host there_ = host(prefill_config());
  const uint64_t prefill_engine_ = heap_bytes() - before_ - decode_engine_;
  std::optional<kv::Decoder> decoder_;
  std::optional<kv::Prefiller> prefiller_;
  std::vector<std::string> ids_;
  uint64_t complete_ = 0;
};

void KvMemory::push_chunk(kv::TokenRange tokens) {
  for (uint32_t first = 0; first < kRequests; first += kPassEntries) {
    std::vector<kv::PassEntry> entries;
    for (uint32_t i = first; i < first + kPassEntries; ++i) {
      entries.push_back({.id = ids_[i], .tokens = tokens});
    }
    const auto begin = prefiller_->pass(entries);
    ASSERT_TRUE(begin) << begin.error().what;
    const uint64_t pushed = prefiller_->stats().layers_pushed + kPassEntries;
    ASSERT_TRUE(prefiller_->layer_done(*begin + 1));
    ASSERT_TRUE(run_until([&] { return prefiller_->stats().layers_pushed == pushed; }));
  }
}

TEST_F(KvMemory, OfTenThousandRequestsInFlightIsBelow64MiB) {
  for (uint32_t i = 0; i < kRequests; ++i) ids_.push_back("request-" + std::to_string(i));
  const uint64_t before = heap_bytes();
  decoder_ = *kv::Decoder::open(here_.engine, {.layout = layout_, .regions = {&here_.memory}});
  prefiller_ = *kv::Prefiller::open(
      there_.engine,
      {.side = kv::Side{{layout_}}, .regions = {there_.memory.id()}, .requests_max = kRequests});
  const uint32_t prefill = *decoder_->add_prefill(kv::Side{{layout_}});
  for (uint32_t i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(
        prefiller_->offer({.id = ids_[i], .prompt_tokens = kPrompt, .pages = {pages_of(i)}}));
    const auto started =
        decoder_->start({.id = ids_[i],
                         .prefill = prefill,
                         .sources = {{.rank = 0, .address = there_.engine.address_text()}},
                         .prompt_tokens = kPrompt,
                         .pages = {pages_of(i)}});
    ASSERT_TRUE(started) << started.error().what;
  }
  ASSERT_TRUE(run_until([&] {
    return decoder_->stats().in_flight == kRequests && prefiller_->stats().accepted == kRequests;
  }));
  const uint64_t accepted = heap_bytes() - before;
  push_chunk({0, kPrompt / 2});
  ASSERT_EQ(decoder_->stats().in_flight, kRequests);
  // Each holds the page lists of its chunk until the next one.
  const uint64_t half_sent = heap_bytes() - before;
  const uint64_t engine = std::max(decode_engine_, prefill_engine_);
  RecordProperty("accepted", std::to_string(accepted));
  RecordProperty("half_sent", std::to_string(half_sent));
  RecordProperty("engine", std::to_string(engine));
  EXPECT_LT(accepted, half_sent);
  // Both sides of the requests, and one of the engines: more than either process needs.
  EXPECT_LT(half_sent + engine, kBytesMax) << half_sent << " and the engine " << engine;
  push_chunk({kPrompt / 2, kPrompt});
  for (const std::string& id : ids_) ASSERT_TRUE(prefiller_->finish(id, 0));
  ASSERT_TRUE(run_until([&] { return complete_ == kRequests; }));
  EXPECT_EQ(decoder_->stats().pages_leased, 0u);
}

}  // namespace
}  // namespace fabric::test::kv_memory_test
