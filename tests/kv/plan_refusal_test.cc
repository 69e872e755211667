// What the planner refuses, by name: the code, the values of both sides, and the way out.

#include <fabric/kv_plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "kv/plan_model.h"

namespace fabric::kv::test::plan_refusal_test {
namespace {

using ::testing::HasSubstr;

Side two_tensors(uint32_t tp, PageOrder order = PageOrder::kHND) {
  SideSpec spec{.tp = tp, .order = order};
  spec.groups = {{.tensors = {{.name = "k", .heads = 4}, {.name = "v", .heads = 4}}}};
  return make_side(spec);
}

/// A change to one side of a compatible pair, and the refusal it must cause.
struct BadPair {
  const char* name;
  std::function<void(Side& prefill, Side& decode)> change;
  RefusalCode code;
  Errc error;
  std::vector<std::string> reason;  ///< parts of it
};

void each_tensor(Side& side, const std::function<void(Tensor&)>& change) {
  for (Layout& layout : side.ranks) {
    for (CacheGroup& group : layout.groups) {
      for (Tensor& tensor : group.tensors) change(tensor);
    }
  }
}

using R = RefusalCode;
constexpr Errc kBad = Errc::kInvalidArgument;
constexpr Errc kNo = Errc::kUnsupported;

std::vector<BadPair> bad_sides() {
  return {{"model",
           [](Side& p, Side&) { p.ranks[1].model_hash = 9; },
           R::kModelDiffers,
           kNo,
           {"prefill rank (pp 0, tp 1)", "0x9", "0x7"}},
          {"group name",
           [](Side&, Side& d) { d.ranks[0].groups[0].name = "other"; },
           R::kGroupsDiffer,
           kNo,
           {"\"other\"", "no prefill rank"}},
          {"no group on decode",
           [](Side& p, Side&) {
             p.ranks[0].groups.push_back(p.ranks[0].groups[0]);
             p.ranks[0].groups[1].name = "draft";
           },
           R::kGroupsDiffer,
           kNo,
           {"\"draft\"", "no decode rank"}},
          {"kind",
           [](Side& p, Side&) {
             for (Layout& layout : p.ranks) {
               layout.groups[0].kind = GroupKind::kWindow;
               layout.groups[0].window_tokens = 8;
             }
           },
           R::kGroupsDiffer,
           kNo,
           {"kind is window", "full on decode"}},
          {"layer on decode only",
           [](Side&, Side& d) {
             d.ranks[0].groups[0].layers = {0, 5};
           },
           R::kLayersDiffer,
           kNo,
           {"layer 5", "no prefill rank"}},
          {"layer on prefill only",
           [](Side&, Side& d) { d.ranks[0].groups[0].layers = {0}; },
           R::kLayersDiffer,
           kNo,
           {"layer 1", "no decode rank"}},
          {"rank missing",
           [](Side& p, Side&) { p.ranks.pop_back(); },
           R::kRankMissing,
           kNo,
           {"no prefill rank (pp 0, tp 1)", "layer 0"}},
          {"order",
           [](Side& p, Side&) { std::swap(p.ranks[0], p.ranks[1]); },
           R::kSideOrder,
           kBad,
           {"prefill rank (pp 0, tp 0) comes after"}},
          {"rank twice", [](Side& p, Side&) { p.ranks[1] = p.ranks[0]; }, R::kSideOrder, kBad, {}},
          {"empty", [](Side&, Side& d) { d.ranks.clear(); }, R::kBadLayout, kBad, {"decode side"}}};
}

std::vector<BadPair> bad_tensors() {
  return {{"tensor name",
           [](Side&, Side& d) {
             for (Layout& layout : d.ranks) layout.groups[0].tensors[1].name = "w";
           },
           R::kTensorsDiffer,
           kNo,
           {"tensor \"v\""}},
          {"tensor count",
           [](Side&, Side& d) {
             for (Layout& layout : d.ranks) layout.groups[0].tensors.pop_back();
           },
           R::kTensorsDiffer,
           kNo,
           {"is 2 on prefill", "1 on decode"}},
          {"dtype",
           [](Side&, Side& d) { each_tensor(d, [](Tensor& t) { t.dtype = "fp8"; }); },
           R::kDtypeDiffers,
           kNo,
           {"dtype of tensor \"k\" is u32", "fp8 on decode"}},
          {"heads",
           [](Side& p, Side&) { each_tensor(p, [](Tensor& t) { t.heads_total = 2; }); },
           R::kShapeDiffers,
           kNo,
           {"heads_total of tensor \"k\" is 2", "4 on decode"}},
          {"page size within a side",
           [](Side& p, Side&) { p.ranks[1].groups[0].page_tokens = 8; },
           R::kShapeDiffers,
           kNo,
           {"page_tokens is 8"}},
          {"sharding within a side",
           [](Side& p, Side&) {
             p.ranks[1].groups[0].tensors[0].heads_total = 4;
             p.ranks[1] = two_tensors(1).ranks[0];
             p.ranks[1].tp_rank = 1;
             p.ranks[1].tp_size = 2;
             for (Tensor& t : p.ranks[1].groups[0].tensors) t.sharding = Sharding::kReplicated;
           },
           R::kShapeDiffers,
           kNo,
           {"sharded differently"}},
          {"decode context parallel",
           [](Side&, Side& d) { d.ranks[0].dcp_size = 2; },
           R::kContextParallel,
           kNo,
           {"dcp_size is 2"}},
          {"prefill context parallel",
           [](Side& p, Side&) { p.ranks[0].pcp_size = 4; },
           R::kContextParallel,
           kNo,
           {"pcp_size is 4"}}};
}

class KvPlanRefusal : public ::testing::Test {
 public:
  static void expect_refused(const std::vector<BadPair>& pairs);
};

void KvPlanRefusal::expect_refused(const std::vector<BadPair>& pairs) {
  for (const BadPair& bad : pairs) {
    SCOPED_TRACE(bad.name);
    Side prefill = two_tensors(2);
    Side decode = two_tensors(1);
    ASSERT_TRUE(plan(prefill, decode));
    bad.change(prefill, decode);
    Refusal refusal;
    const auto made = plan(prefill, decode, {}, &refusal);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, bad.error);
    EXPECT_EQ(refusal.code, bad.code) << refusal.reason;
    for (const std::string& part : bad.reason) EXPECT_THAT(refusal.reason, HasSubstr(part));
    EXPECT_NE(refusal.remedy, "");
    EXPECT_STRNE(to_string(refusal.code), "?");
  }
}

TEST_F(KvPlanRefusal, NamesTheDifferenceOfSides) { expect_refused(bad_sides()); }

TEST_F(KvPlanRefusal, NamesTheDifferenceOfTensors) { expect_refused(bad_tensors()); }

TEST_F(KvPlanRefusal, KAndVApartAndTogether) {
  SideSpec together;
  together.groups = {{.tensors = {{.name = "kv", .heads = 4, .parts = 2}}}};
  Refusal refusal;
  EXPECT_FALSE(plan(two_tensors(1), make_side(together), {.staging = true}, &refusal));
  EXPECT_EQ(refusal.code, RefusalCode::kKvApartTogether);
  EXPECT_THAT(refusal.reason, HasSubstr("in two tensors on prefill"));
  EXPECT_THAT(refusal.reason, HasSubstr("in one tensor on decode"));
}

TEST_F(KvPlanRefusal, AHeadCutNamesTheSwitch) {
  Refusal refusal;
  const Side prefill = two_tensors(1, PageOrder::kNHD);
  const Side decode = two_tensors(4, PageOrder::kNHD);
  const auto made = plan(prefill, decode, {}, &refusal);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Errc::kUnsupported);
  EXPECT_THAT(made.error().what, HasSubstr("PlanOptions::staging"));
  EXPECT_EQ(refusal.code, RefusalCode::kPerTokenWrites);
  EXPECT_THAT(refusal.reason, HasSubstr("16 writes of 8 bytes"));
  EXPECT_THAT(refusal.remedy, HasSubstr("PlanOptions::staging"));
  EXPECT_TRUE(plan(prefill, decode, {.staging = true}));
}

TEST_F(KvPlanRefusal, HeadsThatDoNotDivide) {
  for (const uint32_t heads : {3u, 6u}) {
    Side side = two_tensors(4);
    each_tensor(side, [&](Tensor& t) { t.heads_total = heads; });
    Refusal refusal;
    EXPECT_EQ(plan(side, side, {}, &refusal).error().code, Errc::kUnsupported);
    EXPECT_EQ(refusal.code, RefusalCode::kUnevenHeads);
    EXPECT_THAT(refusal.reason, HasSubstr("tp_size 4"));
  }
}

TEST_F(KvPlanRefusal, OpaquePagesThatWouldBeDivided) {
  const auto side = [](uint32_t tp, uint32_t page_tokens) {
    SideSpec spec{.tp = tp};
    spec.groups = {{.page_tokens = page_tokens,
                    .tensors = {{.name = "kv", .heads = 4, .opaque_page_bytes = 256}}}};
    return make_side(spec);
  };
  EXPECT_TRUE(plan(side(2, 16), side(2, 16)));
  for (const auto& [tp, tokens] : {std::pair(1u, 16u), std::pair(2u, 32u)}) {
    Refusal refusal;
    EXPECT_FALSE(plan(side(2, 16), side(tp, tokens), {.staging = true}, &refusal));
    EXPECT_EQ(refusal.code, RefusalCode::kOpaquePageDiffers);
  }
}

TEST_F(KvPlanRefusal, IndicesBeyond32Bits) {
  // Pages at odd multiples of a word leave no coarser step than that word for units within them.
  Side prefill = two_tensors(1);
  for (Layout& layout : prefill.ranks) {
    layout.region_bytes[0] = uint64_t{1} << 49;
    for (Tensor& tensor : layout.groups[0].tensors) {
      tensor.page_stride_bytes = (uint64_t{1} << 31) + 4;
      tensor.layer_stride_bytes = uint64_t{1} << 45;
    }
    layout.groups[0].tensors[1].offset_bytes = uint64_t{1} << 47;
  }
  SideSpec spec;
  spec.groups = {
      {.page_tokens = 8, .tensors = {{.name = "k", .heads = 4}, {.name = "v", .heads = 4}}}};
  Refusal refusal;
  EXPECT_FALSE(plan(prefill, make_side(spec), {}, &refusal));
  EXPECT_EQ(refusal.code, RefusalCode::kIndexRange) << refusal.reason;
  EXPECT_TRUE(plan(prefill, two_tensors(1))) << "whole pages need no such index";
}

TEST_F(KvPlanRefusal, OneStageALayer) {
  SideSpec spec{.pp = 2};
  spec.groups = {{.tensors = {{.name = "k", .heads = 4}, {.name = "v", .heads = 4}}}};
  Side prefill = make_side(spec);
  ASSERT_TRUE(plan(prefill, two_tensors(2)));
  prefill.ranks[1].groups[0].layers = {0};
  Refusal refusal;
  EXPECT_FALSE(plan(prefill, Side{{two_tensors(2).ranks[0]}}, {}, &refusal));
  EXPECT_EQ(refusal.code, RefusalCode::kLayersDiffer);
  prefill.ranks[1].groups[0].layers = {1};
  prefill.ranks[0].groups[0].layers = {1};
  Side decode = two_tensors(1);
  decode.ranks[0].groups[0].layers = {1, 2};
  EXPECT_FALSE(plan(prefill, decode, {}, &refusal));
  EXPECT_EQ(refusal.code, RefusalCode::kLayersDiffer);
}

/// A change to a valid layout, and the field that must be named.
struct BadLayout {
  std::function<void(Layout&)> change;
  std::string reason;
};

void expect_refused_layouts(const std::vector<BadLayout>& layouts) {
  SideSpec spec{.tp = 2};
  spec.groups = {{.tensors = {{.name = "kv", .heads = 4, .parts = 2}}},
                 {.name = "state",
                  .kind = GroupKind::kState,
                  .page_tokens = 0,
                  .layers = {5},
                  .tensors = {{.name = "conv", .blocks = {{.name = "x", .groups = 4}}}}}};
  const Layout valid = make_side(spec).ranks[0];
  ASSERT_TRUE(check(valid));
  for (const BadLayout& bad : layouts) {
    Layout layout = valid;
    bad.change(layout);
    Refusal refusal;
    EXPECT_FALSE(check(layout, &refusal)) << bad.reason;
    EXPECT_THAT(refusal.reason, HasSubstr(bad.reason));
    EXPECT_FALSE(encode(layout)) << bad.reason;
    EXPECT_EQ(layout_hash(layout), 0u);
  }
}

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

TEST(KvLayoutCheck, NamesTheFieldOfARankOrGroup) {
  expect_refused_layouts(
      {{[](Layout& l) { l.tp_size = 0; }, "tp_size: 0 is not within 1 to 1024"},
       {[](Layout& l) { l.tp_rank = 2; }, "tp_rank: 2 is not within 0 to 1"},
       {[](Layout& l) { l.pp_rank = 1; }, "pp_rank: 1 is not within 0 to 0"},
       {[](Layout& l) { l.region_bytes.clear(); }, "region_bytes count: 0"},
       {[](Layout& l) { l.region_bytes[0] -= 1; }, "are past region 0"},
       {[](Layout& l) { l.groups.clear(); }, "groups: 0"},
       {[](Layout& l) { l.groups[1].name = "full"; }, "full is used twice"},
       {[](Layout& l) { l.groups[0].name = "a b"; }, "not printable"},
       {[](Layout& l) { l.groups[0].name = std::string(65, 'x'); }, "name length: 65"},
       {[](Layout& l) { l.groups[0].kind = static_cast<GroupKind>(9); }, "9 is no GroupKind"},
       {[](Layout& l) { l.groups[0].window_tokens = 4; }, "window_tokens: 4"},
       {[](Layout& l) { l.groups[0].kind = GroupKind::kWindow; }, "window_tokens: 0"},
       {[](Layout& l) { l.groups[0].page_tokens = 0; }, "page_tokens: 0"},
       {[](Layout& l) { l.groups[1].page_tokens = 16; }, "page_tokens: 16"},
       {[](Layout& l) { l.groups[0].pages = 0; }, "pages: 0"},
       {[](Layout& l) { l.groups[0].pages = 4000; }, "are past region 0"},
       {[](Layout& l) {
          l.groups[0].layers = {1, 1};
        },
        "layers: 1 is not above"},
       {[](Layout& l) { l.groups[0].layers.clear(); }, "layers count: 0"},
       {[](Layout& l) { l.groups[0].tensors.clear(); }, "tensors count: 0"}});
}

TEST(KvLayoutCheck, NamesTheFieldOfATensorOrBlock) {
  const auto tensor = [](auto change) {
    return [change](Layout& l) { change(l.groups[0].tensors[0]); };
  };
  const auto block = [](auto change) {
    return [change](Layout& l) { change(l.groups[1].tensors[0].blocks[0]); };
  };
  expect_refused_layouts(
      {{tensor([](Tensor& t) { t.name = ""; }), "name length: 0"},
       {tensor([](Tensor& t) { t.dtype = ""; }), "dtype length: 0"},
       {tensor([](Tensor& t) { t.element_bytes = 0; }), "element_bytes: 0"},
       {tensor([](Tensor& t) { t.parts = 3; }), "parts: 3"},
       {tensor([](Tensor& t) { t.head_size = 0; }), "head_size: 0"},
       {tensor([](Tensor& t) { t.heads_total = 0; }), "heads_total: 0"},
       {tensor([](Tensor& t) { t.region = 1; }), "region: 1"},
       {tensor([](Tensor& t) { t.page_stride_bytes = 4; }), "two elements on one byte"},
       {tensor([](Tensor& t) { t.token_stride_bytes = 0; }), "two elements on one byte"},
       {tensor([](Tensor& t) { t.page_stride_bytes = kHuge; }), "offset or stride"},
       {tensor([](Tensor& t) { t.layer_stride_bytes = 0; }), "another layer or tensor begins"},
       {tensor([](Tensor& t) {
          t.locations = {{0, 0}};
        }),
        "locations count: 1"},
       {tensor([](Tensor& t) {
          t.locations = {{0, 0}, {0, kHuge}};
        }),
        "are past region 0"},
       {tensor([](Tensor& t) { t.sharding = static_cast<Sharding>(7); }), "7 is no Sharding"},
       {tensor([](Tensor& t) { t.blocks.resize(1); }), "blocks count: 1"},
       {block([](StateBlock& b) { b.lengths.clear(); }), "lengths count: 0"},
       {block([](StateBlock& b) { b.strides_bytes.pop_back(); }), "strides_bytes count: 2"},
       {block([](StateBlock& b) { b.lengths[1] = 0; }), "lengths: 0"},
       {block([](StateBlock& b) { b.sharded_axis = 3; }), "sharded_axis: 3"},
       {block([](StateBlock& b) { b.offset_bytes = kHuge; }), "offset_bytes"},
       {block([](StateBlock& b) { b.lengths[0] = 3; }), "neither divides the other"}});
}

}  // namespace
}  // namespace fabric::kv::test::plan_refusal_test
