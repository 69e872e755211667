#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv/disaggregated_run.h"
#include "kv/plan_model.h"

// Layouts of every kind through Prefillers and Decoders, against the element-by-element model:
// every word of every decode rank has the right value, and no other word was changed.

namespace fabric::kv::test::layouts_test {
namespace {

using Options = DisaggregatedRun::Options;

/// The layouts of both sides, and what a request is like.
struct LayoutCase {
  const char* name = "";
  SideSpec prefill{};
  SideSpec decode{};
  uint32_t cached_pages = 0;  ///< of the decoder, in every group that has tokens
  uint32_t prompt_tokens = 75;
  uint32_t chunk_tokens = 75;
  Options options{};
};

GroupSpec full_group(uint32_t page_tokens) {
  return {.page_tokens = page_tokens,
          .layers = {0, 2, 4, 9},
          .tensors = {{.name = "k", .heads = 4}, {.name = "v", .heads = 4}}};
}

GroupSpec window_group(uint32_t page_tokens) {
  return {.name = "sliding",
          .kind = GroupKind::kWindow,
          .window = 30,
          .page_tokens = page_tokens,
          .layers = {1, 3},
          .tensors = {{.name = "k", .heads = 4}, {.name = "v", .heads = 4}}};
}

GroupSpec latent_group(uint32_t page_tokens) {
  return {.page_tokens = page_tokens,
          .tensors = {{.name = "latent", .head_size = 5, .sharding = Sharding::kReplicated}}};
}

/// A convolution state of three blocks, of which one is not sharded.
GroupSpec state_group(uint32_t padding_words) {
  return {.name = "mamba",
          .kind = GroupKind::kState,
          .page_tokens = 0,
          .pages = 3,
          .layers = {5, 7},
          .tensors = {{.name = "conv",
                       .blocks = {{.name = "x", .groups = 8, .width = 3, .rows = 3},
                                  {.name = "B", .groups = 4, .width = 2, .rows = 3},
                                  {.name = "gate", .groups = 2, .rows = 3, .sharded = false}},
                       .state_padding_words = padding_words}}};
}

using Change = std::function<void(LayoutCase&)>;

LayoutCase make_case(const char* name, const Change& change) {
  LayoutCase one{.name = name};
  one.prefill.groups = one.decode.groups = {full_group(16)};
  change(one);
  return one;
}

std::vector<LayoutCase> direct_cases() {
  std::vector<LayoutCase> cases;
  const auto add = [&](const char* name, const Change& change) {
    cases.push_back(make_case(name, change));
  };
  add("Full", [](LayoutCase&) {});
  add("Window", [](LayoutCase& c) {
    c.prefill.groups = {full_group(16), window_group(8)};
    c.decode.groups = {window_group(16), full_group(16)};
    c.prefill.tp = 2;
    c.chunk_tokens = 20;
  });
  add("State", [](LayoutCase& c) {
    c.prefill.groups = {state_group(3), full_group(16)};
    c.decode.groups = {full_group(16), state_group(0)};
    c.prefill.tp = 4;
    c.decode.tp = 2;
    c.chunk_tokens = 20;
    c.options.per_layer = true;
  });
  add("PipelineStages", [](LayoutCase& c) {
    c.prefill.pp = 2;
    c.prefill.tp = 2;
    c.options.per_layer = true;
  });
  add("PipelineStagesOnBothSides", [](LayoutCase& c) {
    c.prefill.groups = c.decode.groups = {full_group(16), window_group(16), state_group(0)};
    c.prefill.pp = 2;
    c.decode.pp = 3;
    c.decode.tp = 2;
    c.chunk_tokens = 33;
  });
  add("ReplicatedHolders", [](LayoutCase& c) {
    c.prefill.groups = c.decode.groups = {latent_group(8)};
    c.prefill.tp = 4;
    c.decode.tp = 2;
  });
  // Units for two of the four holders only: the others have nothing to send.
  add("HoldersWithoutAUnit", [](LayoutCase& c) {
    c.prefill.groups = c.decode.groups = {latent_group(8)};
    c.prefill.tp = 4;
    c.prompt_tokens = c.chunk_tokens = 13;
  });
  add("HoldersWithoutAUnitPerLayer", [](LayoutCase& c) {
    c.prefill.groups = c.decode.groups = {latent_group(8)};
    c.prefill.tp = 4;
    c.prompt_tokens = c.chunk_tokens = 13;
    c.options.per_layer = true;
    c.options.model = sim::NicModel::efa_200g();
  });
  add("LargerPagesAtTheTarget", [](LayoutCase& c) {
    c.decode.groups = {full_group(32)};
    c.chunk_tokens = 20;
  });
  add("PartialPrefix", [](LayoutCase& c) {
    c.cached_pages = 2;
    c.prefill.tp = 2;
  });
  add("PartialPrefixInsideASourcePage", [](LayoutCase& c) {
    c.prefill.groups = {full_group(24)};
    c.cached_pages = 1;
    c.chunk_tokens = 29;
  });
  add("PagesWithThePasses", [](LayoutCase& c) {
    c.prefill.groups = c.decode.groups = {full_group(16), window_group(16), state_group(0)};
    c.chunk_tokens = 20;
    c.options.pages_with_passes = true;
  });
  return cases;
}

std::vector<LayoutCase> staged_cases() {
  std::vector<LayoutCase> cases;
  const auto add = [&](const char* name, const Change& change) {
    cases.push_back(make_case(name, [&](LayoutCase& c) {
      c.prefill.order = c.decode.order = PageOrder::kNHD;
      c.options.plan.staging = true;
      change(c);
    }));
  };
  add("StagedOneToTwo", [](LayoutCase& c) { c.decode.tp = 2; });
  add("StagedTwoToOneWithOneSlot", [](LayoutCase& c) {
    c.prefill.tp = 2;
    c.options.staging_slots = 1;
    c.options.per_layer = true;
  });
  add("StagedHndToNhdInChunks", [](LayoutCase& c) {
    c.prefill.order = PageOrder::kHND;
    c.prefill.groups = {full_group(16), window_group(24)};
    c.decode.groups = {window_group(8), full_group(24)};
    c.cached_pages = 1;
    c.chunk_tokens = 20;
  });
  add("StagedOnANetworkWithoutOrder", [](LayoutCase& c) {
    c.prefill.tp = 4;
    c.decode.tp = 2;
    c.prefill.pp = 2;
    c.options.per_layer = true;
    c.options.model = sim::NicModel::efa_200g();
  });
  // Scales and states go directly beside keys and values that are staged, and holders deal out.
  add("StagedBesideDirectWrites", [](LayoutCase& c) {
    c.prefill.tp = 8;
    c.prefill.groups = {full_group(16), state_group(2)};
    c.prefill.groups[0].tensors.push_back(
        {.name = "indexer", .head_size = 3, .sharding = Sharding::kReplicated});
    c.decode.groups = c.prefill.groups;
    c.options.staging_slots = 2;
  });
  return cases;
}

class KvLayouts : public testing::TestWithParam<LayoutCase> {};

std::vector<DisaggregatedRun::RankMemory> memory_of(std::vector<RankWords>& ranks) {
  std::vector<DisaggregatedRun::RankMemory> out;
  for (RankWords& words : ranks) {
    out.emplace_back();
    for (auto& region : words) out.back().push_back(std::as_writable_bytes(std::span(region)));
  }
  return out;
}

TEST_P(KvLayouts, PutEveryElementInItsPlaceAndNothingElsewhere) {
  const LayoutCase& one = GetParam();
  const Side prefill = make_side(one.prefill);
  const Side decode = make_side(one.decode);
  Refusal refusal;
  const auto made = plan(prefill, decode, one.options.plan, &refusal);
  ASSERT_TRUE(made) << refusal.reason;
  RequestTokens tokens{.prompt_tokens = one.prompt_tokens, .seed = request_seed(kRunId)};
  for (const GroupPlan& group : made->groups) {
    tokens.cached_tokens.push_back(one.cached_pages * group.target_page_tokens);
  }
  Rng rng(4);
  const ModelRequest request = draw_request(*made, prefill, decode, tokens, rng);
  DisaggregatedRun::Request started{.prompt_tokens = one.prompt_tokens};
  for (size_t g = 0; g < made->groups.size(); ++g) {
    started.groups[made->groups[g].name] = {.cached_tokens = tokens.cached_tokens[g],
                                            .source_pages = request.source_pages[g],
                                            .target_pages = request.target_pages[g]};
  }
  const auto move = [&](ModelMemory& memory) {
    const auto sources = memory_of(memory.sources), targets = memory_of(memory.targets);
    DisaggregatedRun run(prefill, sources, decode, targets, one.options);
    run.start(started);
    for (uint32_t from = 0; from < one.prompt_tokens; from += one.chunk_tokens) {
      run.begin_pass({from, std::min(one.prompt_tokens, from + one.chunk_tokens)});
      run.all_layers_done();
    }
    run.finish();
  };
  EXPECT_EQ(compare_with_model(*made, prefill, decode, request, move), "");
}

std::string name_of(const testing::TestParamInfo<LayoutCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Direct, KvLayouts, testing::ValuesIn(direct_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Staged, KvLayouts, testing::ValuesIn(staged_cases()), name_of);

}  // namespace
}  // namespace fabric::kv::test::layouts_test
