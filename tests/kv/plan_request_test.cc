// From a request to units, indices and counts.

#include <fabric/kv_plan.h>

#include <gtest/gtest.h>

#include "kv/plan_model.h"

namespace fabric::kv::test::plan_request_test {
namespace {

/// "full", "sliding" with a window of 100 tokens, "state"; pages of 32 here and 48 there, so units
/// of 16.
TransferPlan sample_plan() {
  const auto side = [](uint32_t page_tokens) {
    const std::vector<TensorSpec> tensors = {{.name = "k", .heads = 2}};
    SideSpec spec;
    spec.groups = {{.page_tokens = page_tokens, .pages = 30, .tensors = tensors},
                   {.name = "sliding",
                    .kind = GroupKind::kWindow,
                    .window = 100,
                    .page_tokens = page_tokens,
                    .pages = 30,
                    .layers = {2},
                    .tensors = tensors},
                   {.name = "state",
                    .kind = GroupKind::kState,
                    .page_tokens = 0,
                    .layers = {0, 3},
                    .tensors = {{.name = "conv", .blocks = {{.name = "x", .groups = 4}}}}}};
    return make_side(spec);
  };
  return *plan(side(32), side(48));
}

TEST(KvRequest, UnitsOfPromptsWindowsAndStates) {
  const TransferPlan plan = sample_plan();
  ASSERT_EQ(plan.groups[0].unit_tokens, 16u);
  const auto units = [&](uint32_t group, uint32_t prompt, uint32_t cached) {
    RequestTokens tokens{.prompt_tokens = prompt, .cached_tokens = {0, 0, 0}};
    tokens.cached_tokens[group] = cached;
    return *request_units(plan, group, tokens);
  };
  EXPECT_EQ(units(0, 1, 0), (UnitRange{0, 1}));
  EXPECT_EQ(units(0, 16, 0), (UnitRange{0, 1}));
  EXPECT_EQ(units(0, 17, 0), (UnitRange{0, 2}));
  EXPECT_EQ(units(0, 200, 48), (UnitRange{3, 13}));
  EXPECT_EQ(units(0, 200, 64), (UnitRange{4, 13}));
  EXPECT_EQ(units(0, 200, 200).size(), 0u);
  EXPECT_EQ(units(1, 90, 0), (UnitRange{0, 6}));
  EXPECT_EQ(units(1, 200, 0), (UnitRange{6, 13}));  // token 100 is in unit 6
  EXPECT_EQ(units(1, 212, 0), (UnitRange{7, 14}));  // token 112 begins unit 7
  EXPECT_EQ(units(1, 200, 144), (UnitRange{9, 13}));
  EXPECT_EQ(units(2, 200, 0), (UnitRange{0, 1}));
  EXPECT_EQ(units(2, 200, 200).size(), 0u);
}

TEST(KvRequest, ChunksDivideTheUnits) {
  const TransferPlan plan = sample_plan();
  const RequestTokens tokens{.prompt_tokens = 100};
  EXPECT_EQ(*chunk_units(plan, 0, tokens, {0, 40}), (UnitRange{0, 2}));
  EXPECT_EQ(*chunk_units(plan, 0, tokens, {40, 48}), (UnitRange{2, 3}));
  EXPECT_EQ(chunk_units(plan, 0, tokens, {48, 63})->size(), 0u);
  EXPECT_EQ(*chunk_units(plan, 0, tokens, {63, 100}), (UnitRange{3, 7}));
  EXPECT_EQ(chunk_units(plan, 2, tokens, {0, 99})->size(), 0u);
  EXPECT_EQ(chunk_units(plan, 2, tokens, {99, 100})->size(), 1u);
  EXPECT_EQ(chunk_units(plan, 0, tokens, {4, 4}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(chunk_units(plan, 0, tokens, {0, 101}).error().code, Errc::kInvalidArgument);
  const auto whole_request = counts(plan, plan.pairs[0], tokens);
  const auto a = chunk_counts(plan, plan.pairs[0], tokens, {0, 40});
  const auto b = chunk_counts(plan, plan.pairs[0], tokens, {40, 100});
  ASSERT_TRUE(whole_request && a && b);
  EXPECT_EQ(a->total + b->total, whole_request->total);
  // 7 units in layers 0 and 1 with one loop of 2 heads each, 7 in layer 2; the state in 0 and 3.
  EXPECT_EQ(whole_request->layers, (std::vector<LayerCount>{{0, 15}, {1, 14}, {2, 14}, {3, 1}}));
  EXPECT_EQ(whole_request->total, 44u);
}

TEST(KvRequest, RefusesWhatDoesNotFit) {
  const TransferPlan plan = sample_plan();
  const auto code = [&](uint32_t group, RequestTokens tokens) {
    return request_units(plan, group, tokens).error();
  };
  EXPECT_EQ(code(0, {.prompt_tokens = 0}).code, Errc::kInvalidArgument);
  EXPECT_EQ(code(0, {.prompt_tokens = kPromptTokensMax + 1}).code, Errc::kInvalidArgument);
  EXPECT_EQ(code(9, {.prompt_tokens = 1}).code, Errc::kInvalidArgument);
  EXPECT_EQ(code(0, {.prompt_tokens = 9, .cached_tokens = {0}}).native, 3);
  EXPECT_EQ(code(0, {.prompt_tokens = 90, .cached_tokens = {20, 0, 0}}).native, 16);
  EXPECT_EQ(code(0, {.prompt_tokens = 90, .cached_tokens = {96, 0, 0}}).code,
            Errc::kInvalidArgument);
  EXPECT_EQ(code(2, {.prompt_tokens = 90, .cached_tokens = {0, 0, 16}}).code,
            Errc::kInvalidArgument);
  EXPECT_EQ(find_group(plan, "nothing").error().code, Errc::kNotFound);
  EXPECT_EQ(*find_group(plan, "state"), 2u);
  EXPECT_EQ(find_pair(plan, 0, 1).error().code, Errc::kNotFound);
  EXPECT_EQ(*find_pair(plan, 0, 0), 0u);
}

TEST(KvRequest, IndicesAreWithinThePools) {
  const TransferPlan plan = sample_plan();
  const PairPlan& pair = plan.pairs[0];
  const PairGroup& group = pair.groups[0];
  const auto error = [&](std::vector<uint32_t> source, std::vector<uint32_t> target,
                         uint32_t list = 0) {
    return unit_indices(plan, pair, group, list, {0, 4}, 0, {source, target}).error();
  };
  EXPECT_EQ(error({0, 1}, {0, 1}).code, Errc::kOk);
  EXPECT_EQ(error({0}, {0, 1}).code, Errc::kOutOfBounds);
  EXPECT_EQ(error({0, 1}, {0}).code, Errc::kOutOfBounds);
  EXPECT_EQ(error({0, 30}, {0, 1}).native, 30);
  EXPECT_EQ(error({0, 1}, {0, UINT32_MAX}).code, Errc::kOutOfBounds);
  EXPECT_EQ(error({0, 1}, {0, 1}, 1).code, Errc::kInvalidArgument);
  // A null page before a window is never looked at.
  const PairGroup& sliding = pair.groups[1];
  const auto late = unit_indices(
      plan, pair, sliding, 0, {6, 8}, 0,
      {std::vector<uint32_t>{UINT32_MAX, 99, 77, 5}, std::vector<uint32_t>{UINT32_MAX, 88, 4}});
  ASSERT_TRUE(late);
  EXPECT_EQ(late->units, (std::vector<uint32_t>{6, 7}));
  EXPECT_EQ(source_positions(plan.groups[1], {6, 8}).first, 3u);
  EXPECT_EQ(source_positions(plan.groups[1], {6, 8}).end, 4u);
  EXPECT_EQ(target_positions(plan.groups[1], {6, 8}).first, 2u);
  EXPECT_EQ(target_positions(plan.groups[1], {6, 8}).end, 3u);
}

TEST(KvRequest, EqualPageSizesUsePageIds) {
  SideSpec spec;
  spec.groups = {{.tensors = {{.name = "k", .heads = 2}, {.name = "v", .heads = 2}}}};
  const auto made = plan(make_side(spec), make_side(spec));
  ASSERT_TRUE(made);
  const PairGroup& group = made->pairs[0].groups[0];
  ASSERT_EQ(group.lists.size(), 1u);
  const auto at = unit_indices(*made, made->pairs[0], group, 0, {0, 3}, 5,
                               {std::vector<uint32_t>{4, 2, 9}, std::vector<uint32_t>{1, 0, 7}});
  ASSERT_TRUE(at);
  EXPECT_EQ(at->source, (std::vector<uint32_t>{4, 2, 9}));
  EXPECT_EQ(at->target, (std::vector<uint32_t>{1, 0, 7}));
  EXPECT_EQ(find_layer(group, 1)->slices, 2u);
  EXPECT_EQ(find_layer(group, 7), nullptr);
}

/// Qwen3-235B: 94 layers, 4 KV heads of 128, bf16, 128 tokens a page; K and V apart.
Side qwen(uint32_t tp, PageOrder order) {
  SideSpec spec{.tp = tp, .order = order};
  GroupSpec group{.page_tokens = 128, .pages = 256, .layers = {}};
  for (uint32_t n = 0; n < 94; ++n) group.layers.push_back(n);
  group.tensors = {{.name = "k", .heads = 4, .head_size = 64},
                   {.name = "v", .heads = 4, .head_size = 64}};
  spec.groups = {group};
  return make_side(spec);
}

/// Counts of decode rank 0 for 16K tokens, of all its sources.
uint64_t counts_of_rank(const TransferPlan& plan) {
  uint64_t sum = 0;
  for (const PairPlan& pair : plan.pairs) {
    if (pair.target == 0) sum += counts(plan, pair, {.prompt_tokens = 16384})->total;
  }
  return sum;
}

TEST(KvRequest, CountsOfAKnownModel) {
  constexpr PageOrder kHND = PageOrder::kHND;
  constexpr PageOrder kNHD = PageOrder::kNHD;
  constexpr PlanOptions kTokens{.per_token_writes = true};
  // 128 pages x 94 layers x K and V, one run of 32 KiB each.
  EXPECT_EQ(counts_of_rank(*plan(qwen(4, kHND), qwen(4, kHND))), 24064u);
  EXPECT_EQ(counts_of_rank(*plan(qwen(2, kHND), qwen(8, kHND))), 24064u);
  EXPECT_EQ(counts_of_rank(*plan(qwen(8, kHND), qwen(1, kHND))), 96256u);
  EXPECT_EQ(counts_of_rank(*plan(qwen(8, kNHD), qwen(4, kNHD))), 24064u);
  EXPECT_FALSE(plan(qwen(2, kNHD), qwen(8, kNHD)));
  EXPECT_EQ(counts_of_rank(*plan(qwen(2, kNHD), qwen(8, kNHD), kTokens)), 3080192u);
  EXPECT_EQ(counts_of_rank(*plan(qwen(8, kNHD), qwen(1, kNHD), kTokens)), 12320768u);
  // Staged: K and V of a unit in one write.
  EXPECT_EQ(counts_of_rank(*plan(qwen(8, kNHD), qwen(1, kNHD), {.staging = true})), 48128u);
}

}  // namespace
}  // namespace fabric::kv::test::plan_request_test
