// Plans against an element-by-element model (plan_model.h): every word arrives once, from the right
// element, and the counts are exact.

#include <fabric/kv_plan.h>

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "kv/plan_model.h"

namespace fabric::kv::test::plan_property_test {
namespace {

/// Both sides of one case.
struct Case {
  SideSpec prefill{};
  SideSpec decode{};
  uint32_t cached_pages = 0;  ///< of the decoder, in every group that has tokens
};

/// The largest prompt of these tests, and pools that hold it.
constexpr uint32_t kPromptMax = 80;

uint32_t pool_for(uint32_t page_tokens) { return (kPromptMax + page_tokens - 1) / page_tokens + 3; }

GroupSpec full_group(uint32_t page_tokens, std::vector<TensorSpec> tensors) {
  return {.page_tokens = page_tokens,
          .pages = pool_for(page_tokens),
          .layers = {3, 8},
          .tensors = std::move(tensors)};
}

RequestTokens draw_tokens(const TransferPlan& plan, uint32_t cached_pages, Rng& rng) {
  RequestTokens tokens{.prompt_tokens = static_cast<uint32_t>(rng.between(40, kPromptMax)),
                       .seed = rng.next()};
  for (const GroupPlan& group : plan.groups) {
    tokens.cached_tokens.push_back(cached_pages * group.target_page_tokens);
  }
  return tokens;
}

/// "" when the plan moves a random request as the model says.
std::string wrong_with(const Case& one, const PlanOptions& options, Rng& rng) {
  const Side prefill = make_side(one.prefill);
  const Side decode = make_side(one.decode);
  Refusal refusal;
  const auto made = plan(prefill, decode, options, &refusal);
  if (!made) return fmt::format("refused, {}: {}", to_string(refusal.code), refusal.reason);
  const auto tokens = draw_tokens(*made, one.cached_pages, rng);
  const auto request = draw_request(*made, prefill, decode, tokens, rng);
  return compare_with_model(*made, prefill, decode, request, rng);
}

/// Whether some token of NHD pages would have to be written alone, from the documents and not from
/// strides: each NHD side must have one head a rank, or both sides NHD with the same heads.
bool cuts_tokens(const Case& one, uint32_t heads) {
  const uint32_t source = std::max(1u, heads / one.prefill.tp);
  const uint32_t target = std::max(1u, heads / one.decode.tp);
  const bool from_nhd = one.prefill.order == PageOrder::kNHD;
  const bool to_nhd = one.decode.order == PageOrder::kNHD;
  if (from_nhd && to_nhd && source == target) return false;
  return (from_nhd && source > 1) || (to_nhd && target > 1);
}

TEST(KvPlan, MovesEveryElementOnceForAllPairsOfLayouts) {
  Rng rng(24);
  int cases = 0;
  int cut = 0;
  const std::pair<uint32_t, uint32_t> pages[] = {{16, 16}, {16, 32}, {32, 8}, {24, 16}};
  const auto check_case = [&](const Case& one, uint32_t heads) {
    ++cases;
    const std::string name = fmt::format(
        "tp {} -> {}, {} heads, {} -> {}, pages {} -> {}, cached {}", one.prefill.tp, one.decode.tp,
        heads, to_string(one.prefill.order), to_string(one.decode.order),
        one.prefill.groups[0].page_tokens, one.decode.groups[0].page_tokens, one.cached_pages);
    if (!cuts_tokens(one, heads)) {
      ASSERT_EQ(wrong_with(one, {}, rng), "") << name;
      return;
    }
    ++cut;
    Refusal refusal;
    const auto made = plan(make_side(one.prefill), make_side(one.decode), {}, &refusal);
    ASSERT_FALSE(made) << name;
    ASSERT_EQ(refusal.code, RefusalCode::kPerTokenWrites) << name;
    ASSERT_EQ(wrong_with(one, {.staging = true}, rng), "") << name;
    ASSERT_EQ(wrong_with(one, {.per_token_writes = true}, rng), "") << name;
  };
  for (uint32_t p = 1; p <= 8; p *= 2) {
    for (uint32_t d = 1; d <= 8; d *= 2) {
      for (const auto& [from, to] : pages) {
        for (uint32_t variant = 0; variant < 8; ++variant) {
          Case one{{.tp = p, .order = static_cast<PageOrder>(variant & 1)},
                   {.tp = d, .order = static_cast<PageOrder>(variant >> 1 & 1)},
                   variant >> 2};
          const auto set = [&one, source_tokens = from,
                            target_tokens = to](const std::vector<TensorSpec>& tensors) {
            one.prefill.groups = {full_group(source_tokens, tensors)};
            one.decode.groups = {full_group(target_tokens, tensors)};
          };
          for (uint32_t heads = 1; heads <= 8; heads *= 2) {
            set({{.name = "k", .heads = heads}, {.name = "v", .heads = heads}});
            check_case(one, heads);
            set({{.name = "kv", .heads = heads, .parts = 2}});
            check_case(one, heads);
          }
          set({{.name = "latent", .head_size = 5, .sharding = Sharding::kReplicated}});
          check_case(one, 1);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  EXPECT_EQ(cases, 4608);
  EXPECT_GT(cut, 500);
}

template <class T>
void shuffle(std::vector<T>& items, Rng& rng) {
  for (size_t n = items.size(); n > 1; --n) std::swap(items[n - 1], items[rng.below(n)]);
}

/// Everything else that a side may be, drawn at random.
SideSpec draw_side(Rng& rng, PageOrder order) {
  return {.tp = 1u << rng.below(4),
          .pp = static_cast<uint32_t>(rng.between(1, 3)),
          .order = order,
          .parts_in_page = rng.chance(0.5),
          .layers_in_page = rng.chance(0.3),
          .region_per_layer = rng.chance(0.5),
          .page_align_bytes = rng.chance(0.3) ? 1024u : 4u};
}

TEST(KvPlan, MovesHybridModelsWithStagesScalesWindowsAndStates) {
  Rng rng(25);
  const uint32_t sizes[] = {1, 2, 8, 12, 16, 24, 32};
  for (int n = 0; n < 300; ++n) {
    const bool staging = rng.chance(0.5);
    const auto order = [&] {
      return staging && rng.chance(0.5) ? PageOrder::kNHD : PageOrder::kHND;
    };
    Case one{draw_side(rng, order()), draw_side(rng, order())};
    const auto heads = uint32_t{1} << rng.below(4);
    const std::vector<TensorSpec> attention = {
        {.name = "kv", .heads = heads, .parts = 2},
        {.name = "kv_scale", .heads = heads, .head_size = 1, .parts = 2},
        {.name = "indexer", .head_size = 3, .sharding = Sharding::kReplicated}};
    const std::vector<StateSpec> conv = {
        {.name = "x", .groups = 16, .width = 3, .rows = 3},
        {.name = "B", .groups = heads, .width = 2, .rows = 3},
        {.name = "C", .groups = heads, .width = 2, .rows = 3},
        {.name = "gate", .groups = 2, .width = 1, .rows = 3, .sharded = false}};
    const std::vector<StateSpec> ssm = {{.name = "h", .groups = 8, .width = 4, .rows = 5}};
    const auto window = static_cast<uint32_t>(rng.between(1, 60));
    one.cached_pages = static_cast<uint32_t>(rng.below(2));
    for (SideSpec* side : {&one.prefill, &one.decode}) {
      const uint32_t page = sizes[rng.below(std::size(sizes))];
      const uint32_t window_page = sizes[rng.below(std::size(sizes))];
      const auto padding = static_cast<uint32_t>(rng.below(6));
      const bool rows_first = rng.chance(0.5);
      GroupSpec full = full_group(page, attention);
      full.layers = {0, 2, 4, 6, 40};
      GroupSpec sliding = full_group(window_page, attention);
      sliding.name = "sliding";
      sliding.kind = GroupKind::kWindow;
      sliding.window = window;
      sliding.layers = {1, 3, 5};
      GroupSpec state{.name = "mamba",
                      .kind = GroupKind::kState,
                      .page_tokens = 0,
                      .pages = 3,
                      .layers = {0, 7},
                      .tensors = {{.name = "conv",
                                   .blocks = conv,
                                   .rows_first = rows_first,
                                   .state_padding_words = padding},
                                  {.name = "ssm", .blocks = ssm}}};
      side->groups = {state, full, sliding};
      // Things are paired by name: each side lists them in an order of its own.
      shuffle(side->groups, rng);
      for (GroupSpec& group : side->groups) {
        shuffle(group.tensors, rng);
        for (TensorSpec& tensor : group.tensors) shuffle(tensor.blocks, rng);
      }
    }
    // Token-by-token writes where that is not staged: small pages against large HND ones.
    const PlanOptions options{.staging = staging, .per_token_writes = !staging};
    ASSERT_EQ(wrong_with(one, options, rng), "")
        << "case " << n << ": tp " << one.prefill.tp << " pp " << one.prefill.pp << " -> tp "
        << one.decode.tp << " pp " << one.decode.pp << (staging ? ", staged" : "");
  }
}

TEST(KvPlan, MovesOpaquePagesAsTheyAre) {
  Rng rng(26);
  for (const uint32_t tp : {1u, 2u, 4u}) {
    Case one{{.tp = tp}, {.tp = tp}};
    // 4 heads, 16 tokens, 2 words: the whole of a page on this rank.
    const std::vector<TensorSpec> tensors = {
        {.name = "kv", .heads = 4, .opaque_page_bytes = 4ull / tp * 16 * 2 * kWordBytes}};
    one.prefill.groups = {full_group(16, tensors)};
    one.decode.groups = {full_group(16, tensors)};
    one.decode.layers_in_page = true;
    EXPECT_EQ(wrong_with(one, {}, rng), "") << tp;
  }
}

TEST(KvPlan, DealsReplicasOutEvenly) {
  // Latents on 8 prefill ranks to 2 decode ranks: every source sends an eighth, and the two targets
  // begin with different ones.
  Case one{{.tp = 8}, {.tp = 2}};
  const std::vector<TensorSpec> tensors = {{.name = "latent", .sharding = Sharding::kReplicated}};
  one.prefill.groups = {full_group(1, tensors)};
  one.decode.groups = {full_group(1, tensors)};
  const auto made = plan(make_side(one.prefill), make_side(one.decode));
  ASSERT_TRUE(made);
  ASSERT_EQ(made->pairs.size(), 16u);
  const RequestTokens tokens{.prompt_tokens = 64, .seed = request_seed("request-1")};
  for (const PairPlan& pair : made->pairs) {
    EXPECT_EQ(counts(*made, pair, tokens)->total, 8u * 2u);
  }
  const RequestTokens one_token{.prompt_tokens = 1, .seed = tokens.seed};
  std::vector<uint32_t> first(2, 99);
  for (const PairPlan& pair : made->pairs) {
    if (counts(*made, pair, one_token)->total > 0) first[pair.target] = pair.source;
  }
  EXPECT_LT(first[0], 8u);
  EXPECT_LT(first[1], 8u);
  EXPECT_NE(first[0], first[1]);
}

TEST(KvPlan, ConsecutiveRanksHoldTheSameHead) {
  // 2 heads on 8 ranks: ranks 0 to 3 have head 0. With modulo they would alternate, and decode rank
  // 0 of 2 would draw from the odd ranks too.
  Case one{{.tp = 8}, {.tp = 2}};
  const std::vector<TensorSpec> tensors = {{.name = "k", .heads = 2}};
  one.prefill.groups = {full_group(16, tensors)};
  one.decode.groups = {full_group(16, tensors)};
  const auto made = plan(make_side(one.prefill), make_side(one.decode));
  ASSERT_TRUE(made);
  std::vector<std::vector<uint32_t>> sources(2);
  for (const PairPlan& pair : made->pairs) sources[pair.target].push_back(pair.source);
  EXPECT_EQ(sources[0], (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(sources[1], (std::vector<uint32_t>{4, 5, 6, 7}));
}

}  // namespace
}  // namespace fabric::kv::test::plan_property_test
