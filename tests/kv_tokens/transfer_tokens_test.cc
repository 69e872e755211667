#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "generate.h"
#include "kv/disaggregated_run.h"
#include "page_pool.h"
#include "prefix_index.h"

// Tokens that are generated from a cache which came through a plan equal those of one process, for
// every pair of layouts.

namespace fabric::test::transfer_tokens_test {
namespace {

using kv::PageOrder;
using kv::test::DisaggregatedRun;
using transformer::Attention;
using transformer::CacheOptions;
using transformer::ForwardPass;
using transformer::ModelOptions;
using transformer::PagePool;
using transformer::Sequence;
using transformer::ShardedCache;
using transformer::Transformer;

constexpr uint32_t kNewTokens = 8;
constexpr uint32_t kPromptTokens = 45;  // ends inside a page of every size that is used

enum class ModelKind { kFourHeads, kTwoHeads, kLatent };

const char* to_string(ModelKind kind) {
  return kind == ModelKind::kFourHeads  ? "FourHeads"
         : kind == ModelKind::kTwoHeads ? "TwoHeads"
                                        : "Latent";
}

const Transformer& model_of(ModelKind kind) {
  const auto make = [](Attention attention, uint32_t kv_heads) {
    return *Transformer::make({.attention = attention,
                               .layers = 4,
                               .width = 64,
                               .kv_heads = kv_heads,
                               .head_size = 8,
                               .latent_size = 24,
                               .rotary_size = 8,
                               .hidden = 64,
                               .vocabulary = 256,
                               .positions = 128,
                               .seed = 24});
  };
  static const Transformer four = make(Attention::kGrouped, 4);
  static const Transformer two = make(Attention::kGrouped, 2);
  static const Transformer latent = make(Attention::kLatent, 4);
  return kind == ModelKind::kFourHeads ? four : kind == ModelKind::kTwoHeads ? two : latent;
}

/// Pages in no particular order, so that an index that is a position by mistake shows.
std::vector<uint32_t> take_scattered(PagePool& pool, uint32_t count, uint64_t seed) {
  auto pages = pool.take(std::min(pool.free(), 3 * count));
  transformer::SeededNumbers numbers(seed);
  for (uint32_t i = 0; i < count; ++i) {
    std::swap((*pages)[i], (*pages)[i + numbers.below(static_cast<uint32_t>(pages->size()) - i)]);
  }
  pool.give_back(std::span(*pages).subspan(count));
  pages->resize(count);
  return *pages;
}

std::vector<DisaggregatedRun::RankMemory> memory_of(const ShardedCache& cache) {
  std::vector<DisaggregatedRun::RankMemory> out;
  for (const transformer::PagedCache& rank : cache.ranks()) out.push_back({rank.memory()});
  return out;
}

struct RunOptions {
  CacheOptions prefill{};
  CacheOptions decode{};
  uint32_t chunk_tokens = UINT32_MAX;
  uint32_t decoder_has = 0;    ///< tokens of the prompt, whole pages
  uint32_t prefiller_has = 0;  ///< tokens of the prompt, whole pages
};

/// A prefill side and a decode side with a plan between them.
class TwoSides {
 public:
  /// Called for each layer of the source before it is sent.
  using Damage = std::function<void(ShardedCache&, uint32_t layer)>;

  TwoSides(const Transformer& model, const RunOptions& options, Damage damage = {})
      : model_(model),
        options_(options),
        prompt_(transformer::random_tokens(model.options(), 1, kPromptTokens)),
        source_(*ShardedCache::allocate(model.options(), with_pages(options.prefill))),
        target_(*ShardedCache::allocate(model.options(), with_pages(options.decode))),
        damage_(std::move(damage)) {}

  /// Staged where the plan is refused without. False: refused with staging, too.
  bool has_plan() {
    kv::Refusal refusal;
    auto plan = kv::plan(source_.side(), target_.side(), {}, &refusal);
    staged_ = !plan;
    if (!staged_) return true;
    EXPECT_EQ(refusal.code, kv::RefusalCode::kPerTokenWrites) << refusal.reason;
    plan = kv::plan(source_.side(), target_.side(), {.staging = true}, &refusal);
    EXPECT_TRUE(plan) << refusal.reason;
    return plan.has_value();
  }
  bool staged() const { return staged_; }
  const std::vector<uint32_t>& prompt() const { return prompt_; }

  /// Prefill at the source, layer by layer into the target, and the tokens that the target decodes.
  std::vector<uint32_t> run() {
    PagePool source_pool(source_);
    PagePool target_pool(target_);
    Sequence sent{.tokens = prompt_};
    sent.pages = take_scattered(source_pool, source_.pages_for(kPromptTokens), 5);
    Sequence received{.tokens = prompt_};
    received.pages = take_scattered(target_pool, target_.pages_for(kPromptTokens + kNewTokens), 6);
    compute_prefix(source_, sent, options_.prefiller_has);
    compute_prefix(target_, received, options_.decoder_has);
    const auto sources = memory_of(source_), targets = memory_of(target_);
    DisaggregatedRun run(source_.side(), sources, target_.side(), targets,
                         {.plan = {.staging = staged_}});
    run.start({.prompt_tokens = kPromptTokens,
               .groups = {{transformer::kGroupName,
                           {.cached_tokens = options_.decoder_has,
                            .source_pages = sent.pages,
                            .target_pages = received.pages}}}});
    uint32_t first = 0;
    uint32_t pushed = 0;  // the first chunk begins at 0, whatever the prefiller has
    while (sent.cached < kPromptTokens) {
      ForwardPass pass(model_, source_, sent, {.tokens = options_.chunk_tokens});
      run.begin_pass({pushed, pass.end()});
      while (!pass.done()) {
        const uint32_t layer = pass.compute_layer();
        if (damage_) damage_(source_, layer);
        run.layer_done(layer);
      }
      first = pass.next_token();
      sent.cached = pushed = pass.end();
    }
    run.finish();
    target_pool.check_free_pages();
    EXPECT_EQ(target_pool.touched(), 0u) << "pages of other requests were written";
    received.cached = kPromptTokens;
    return transformer::decode(model_, target_, received, first, kNewTokens);
  }

 private:
  static CacheOptions with_pages(CacheOptions options) {
    options.pages = 3 * (kPromptTokens + kNewTokens + options.page_tokens) / options.page_tokens;
    return options;
  }

  /// As an earlier request with the same beginning would have left it.
  void compute_prefix(ShardedCache& cache, Sequence& sequence, uint32_t tokens) {
    if (tokens == 0) return;
    Sequence prefix{.tokens = {prompt_.begin(), prompt_.begin() + tokens}, .pages = sequence.pages};
    transformer::prefill(model_, cache, prefix);
    sequence.cached = tokens;
  }

  const Transformer& model_;
  RunOptions options_;
  std::vector<uint32_t> prompt_;
  ShardedCache source_;
  ShardedCache target_;
  bool staged_ = false;
  Damage damage_{};
};

struct LayoutPair {
  ModelKind model = ModelKind::kFourHeads;
  uint32_t prefill_tp = 1;
  uint32_t decode_tp = 1;
};

class TransferTokens : public testing::TestWithParam<LayoutPair> {
 protected:
  void run_and_compare(const RunOptions& options) {
    const Transformer& model = model_of(GetParam().model);
    TwoSides sides(model, options);
    ASSERT_TRUE(sides.has_plan());
    staged_ += sides.staged();
    EXPECT_EQ(sides.run(), expected_tokens());
  }

  /// Of one process. All runs of a test have the same prompt.
  const std::vector<uint32_t>& expected_tokens() {
    if (expected_.empty()) {
      const Transformer& model = model_of(GetParam().model);
      const auto prompt = transformer::random_tokens(model.options(), 1, kPromptTokens);
      expected_ = *transformer::generate(model, prompt, kNewTokens);
    }
    return expected_;
  }

  RunOptions options(PageOrder prefill, PageOrder decode) const {
    return {.prefill = {.order = prefill, .tp_size = GetParam().prefill_tp},
            .decode = {.order = decode, .tp_size = GetParam().decode_tp}};
  }

  int staged_ = 0;
  std::vector<uint32_t> expected_{};
};

struct PageSizes {
  uint32_t prefill = 0;
  uint32_t decode = 0;
};
constexpr PageSizes kPageSizes[] = {{8, 8}, {8, 16}, {16, 8}, {24, 16}};

TEST_P(TransferTokens, EqualThoseOfOneProcessForEveryPageSizeAndOrder) {
  for (const PageOrder prefill : {PageOrder::kHND, PageOrder::kNHD}) {
    for (const PageOrder decode : {PageOrder::kHND, PageOrder::kNHD}) {
      for (const PageSizes& sizes : kPageSizes) {
        SCOPED_TRACE(testing::Message() << kv::to_string(prefill) << sizes.prefill << " to "
                                        << kv::to_string(decode) << sizes.decode);
        RunOptions run = options(prefill, decode);
        run.prefill.page_tokens = sizes.prefill;
        run.decode.page_tokens = sizes.decode;
        run_and_compare(run);
      }
    }
  }
  // Whole pages of latents need no staging; heads of another order do, if a rank has several.
  const bool latent = GetParam().model == ModelKind::kLatent;
  EXPECT_TRUE(!latent || staged_ == 0);
  const uint32_t heads = GetParam().model == ModelKind::kFourHeads ? 4 : 2;
  const bool one_head_each = std::min(GetParam().prefill_tp, GetParam().decode_tp) >= heads;
  EXPECT_TRUE(latent || one_head_each || staged_ > 0);
}

TEST_P(TransferTokens, EqualThoseOfOneProcessWithChunksAndPrefixes) {
  for (const PageOrder order : {PageOrder::kHND, PageOrder::kNHD}) {
    for (const PageSizes& sizes : kPageSizes) {
      SCOPED_TRACE(testing::Message() << kv::to_string(order) << sizes.prefill << " to "
                                      << kv::to_string(order) << sizes.decode);
      RunOptions run = options(order, order);
      run.prefill.page_tokens = sizes.prefill;
      run.decode.page_tokens = sizes.decode;
      run.chunk_tokens = 13;
      run_and_compare(run);
      run.decoder_has = 2 * sizes.decode;
      run_and_compare(run);
      run.prefiller_has = sizes.prefill;
      run_and_compare(run);
    }
  }
}

TEST_P(TransferTokens, EqualThoseOfOneProcessWithOtherPlacements) {
  RunOptions run = options(PageOrder::kHND, PageOrder::kHND);
  run.prefill.keys_with_values = run.decode.keys_with_values = true;
  run_and_compare(run);
  run.decode.layers_in_page = true;
  run_and_compare(run);
  run.prefill.pp_size = 2;
  run.decode.pp_size = 4;
  run_and_compare(run);
}

std::vector<LayoutPair> all_layout_pairs() {
  std::vector<LayoutPair> out;
  for (const ModelKind model : {ModelKind::kFourHeads, ModelKind::kTwoHeads, ModelKind::kLatent}) {
    for (const uint32_t prefill : {1, 2, 4}) {
      for (const uint32_t decode : {1, 2, 4}) out.push_back({model, prefill, decode});
    }
  }
  return out;
}

std::string name_of(const testing::TestParamInfo<LayoutPair>& info) {
  return std::string(to_string(info.param.model)) + std::to_string(info.param.prefill_tp) + "To" +
         std::to_string(info.param.decode_tp);
}

INSTANTIATE_TEST_SUITE_P(LayoutPairs, TransferTokens, testing::ValuesIn(all_layout_pairs()),
                         name_of);

/// The bytes of one layer and tensor in the memory of a rank.
std::span<std::byte> layer_bytes(transformer::PagedCache& rank, uint32_t layer, uint32_t tensor) {
  const kv::Tensor& at = rank.layout().groups[0].tensors[tensor];
  return rank.memory().subspan(at.offset_bytes + layer * at.layer_stride_bytes,
                               at.layer_stride_bytes);
}

// What a planner would do that takes the heads of two ranks for each other: the heads arrive in
// each other's place.
TEST(PlantedInTheTransfer, TwoHeadsSwappedInAnyLayerChangeTokens) {
  const Transformer& model = model_of(ModelKind::kFourHeads);
  const RunOptions options{.prefill = {.tp_size = 4}, .decode = {.tp_size = 1}};
  TwoSides whole(model, options);
  const auto expected = transformer::generate(model, whole.prompt(), kNewTokens);
  ASSERT_EQ(whole.run(), *expected);
  for (uint32_t swapped = 0; swapped < model.options().layers; ++swapped) {
    for (const uint32_t tensor : {0, 1}) {  // keys, values
      TwoSides sides(model, options, [&](ShardedCache& source, uint32_t layer) {
        if (layer != swapped) return;
        std::ranges::swap_ranges(layer_bytes(source.ranks()[0], layer, tensor),
                                 layer_bytes(source.ranks()[1], layer, tensor));
      });
      EXPECT_NE(sides.run(), *expected) << "layer " << swapped << ", tensor " << tensor;
    }
  }
}

// What a planner would do that takes a latent for half as long: the target keeps what it had.
TEST(PlantedInTheTransfer, HalfAPageOfLatentsInAnyLayerChangesTokens) {
  const Transformer& model = model_of(ModelKind::kLatent);
  TwoSides whole(model, {});
  const auto expected = transformer::generate(model, whole.prompt(), kNewTokens);
  ASSERT_EQ(whole.run(), *expected);
  for (uint32_t cut = 0; cut < model.options().layers; ++cut) {
    TwoSides sides(model, {}, [&](ShardedCache& source, uint32_t layer) {
      if (layer != cut) return;
      const uint64_t page = source.ranks()[0].layout().groups[0].tensors[0].page_stride_bytes;
      auto bytes = layer_bytes(source.ranks()[0], layer, 0);
      for (; !bytes.empty(); bytes = bytes.subspan(page)) {
        std::ranges::fill(bytes.subspan(page / 2, page / 2), PagePool::kCanary);
      }
    });
    EXPECT_NE(sides.run(), *expected) << "layer " << cut;
  }
}

}  // namespace
}  // namespace fabric::test::transfer_tokens_test
