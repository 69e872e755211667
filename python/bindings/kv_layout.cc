// <fabric/kv_layout.h>: how one rank stores its KV cache.

#include <fabric/kv_layout.h>

#include "engine.h"
#include "kv_refusal.h"
#include "record.h"

namespace fabric_python {

namespace {

namespace kv = fabric::kv;

void bind_kinds(nb::module_& m) {
  nb::enum_<kv::GroupKind>(m, "GroupKind")
      .value("FULL", kv::GroupKind::kFull)
      .value("WINDOW", kv::GroupKind::kWindow)
      .value("STATE", kv::GroupKind::kState);
  nb::enum_<kv::PageOrder>(m, "PageOrder", "Order of heads and tokens in a page.")
      .value("HND", kv::PageOrder::kHND)
      .value("NHD", kv::PageOrder::kNHD);
  nb::enum_<kv::Sharding>(m, "Sharding")
      .value("HEADS", kv::Sharding::kHeads)
      .value("REPLICATED", kv::Sharding::kReplicated);
  using Code = kv::RefusalCode;
  nb::enum_<Code>(m, "RefusalCode", "What is wrong with a layout, or why two sides have no plan.")
      .value("NONE", Code::kNone)
      .value("BAD_LAYOUT", Code::kBadLayout)
      .value("TOO_LARGE", Code::kTooLarge)
      .value("SIDE_ORDER", Code::kSideOrder)
      .value("CONTEXT_PARALLEL", Code::kContextParallel)
      .value("UNEVEN_HEADS", Code::kUnevenHeads)
      .value("MODEL_DIFFERS", Code::kModelDiffers)
      .value("GROUPS_DIFFER", Code::kGroupsDiffer)
      .value("LAYERS_DIFFER", Code::kLayersDiffer)
      .value("RANK_MISSING", Code::kRankMissing)
      .value("KV_APART_TOGETHER", Code::kKvApartTogether)
      .value("TENSORS_DIFFER", Code::kTensorsDiffer)
      .value("DTYPE_DIFFERS", Code::kDtypeDiffers)
      .value("SHAPE_DIFFERS", Code::kShapeDiffers)
      .value("OPAQUE_PAGE_DIFFERS", Code::kOpaquePageDiffers)
      .value("PER_TOKEN_WRITES", Code::kPerTokenWrites)
      .value("INDEX_RANGE", Code::kIndexRange);
  Record<kv::Refusal>(m, "Refusal", "A refusal for people.", false)
      .field("code", "RefusalCode", &kv::Refusal::code)
      .field("reason", "str", &kv::Refusal::reason)
      .field("remedy", "str", &kv::Refusal::remedy);
}

void bind_tensor(nb::module_& m) {
  using kv::StateBlock;
  using kv::Tensor;
  using kv::TensorLocation;
  Record<StateBlock>(m, "StateBlock", "A sub-block of a state tensor.")
      .field("name", "str", &StateBlock::name)
      .field("offset_bytes", "int", &StateBlock::offset_bytes)
      .field("lengths", kInts, &StateBlock::lengths, kIntSequence)
      .field("strides_bytes", kInts, &StateBlock::strides_bytes, kIntSequence)
      .field("sharded_axis", "int", &StateBlock::sharded_axis)
      .python()
      .attr("NOT_SHARDED") = StateBlock::kNotSharded;
  Record<TensorLocation>(m, "TensorLocation", "Where a tensor of one layer begins.")
      .field("region", "int", &TensorLocation::region)
      .field("offset_bytes", "int", &TensorLocation::offset_bytes);
  Record<Tensor>(m, "Tensor", "One tensor of every layer of a group; see <fabric/kv_layout.h>.")
      .field("name", "str", &Tensor::name)
      .field("dtype", "str", &Tensor::dtype)
      .field("element_bytes", "int", &Tensor::element_bytes)
      .field("region", "int", &Tensor::region)
      .field("offset_bytes", "int", &Tensor::offset_bytes)
      .field("layer_stride_bytes", "int", &Tensor::layer_stride_bytes)
      .field("page_stride_bytes", "int", &Tensor::page_stride_bytes)
      .field("locations", "tuple[TensorLocation, ...]", &Tensor::locations,
             "collections.abc.Sequence[TensorLocation]")
      .field("sharding", "Sharding", &Tensor::sharding)
      .field("heads_total", "int", &Tensor::heads_total)
      .field("head_size", "int", &Tensor::head_size)
      .field("parts", "int", &Tensor::parts)
      .field("part_stride_bytes", "int", &Tensor::part_stride_bytes)
      .field("head_stride_bytes", "int", &Tensor::head_stride_bytes)
      .field("token_stride_bytes", "int", &Tensor::token_stride_bytes)
      .field("opaque_page_bytes", "int", &Tensor::opaque_page_bytes)
      .field("blocks", "tuple[StateBlock, ...]", &Tensor::blocks,
             "collections.abc.Sequence[StateBlock]");
}

void bind_layout(nb::module_& m) {
  using kv::CacheGroup;
  using kv::Layout;
  using kv::Side;
  Record<CacheGroup>(m, "CacheGroup", "Layers that share one page table.")
      .field("name", "str", &CacheGroup::name)
      .field("kind", "GroupKind", &CacheGroup::kind)
      .field("window_tokens", "int", &CacheGroup::window_tokens)
      .field("page_tokens", "int", &CacheGroup::page_tokens)
      .field("pages", "int", &CacheGroup::pages)
      .field("layers", kInts, &CacheGroup::layers, kIntSequence)
      .field("tensors", "tuple[Tensor, ...]", &CacheGroup::tensors,
             "collections.abc.Sequence[Tensor]");
  Record<Layout>(m, "Layout", "The KV cache of one rank.")
      .field("model_hash", "int", &Layout::model_hash)
      .field("tp_rank", "int", &Layout::tp_rank)
      .field("tp_size", "int", &Layout::tp_size)
      .field("pp_rank", "int", &Layout::pp_rank)
      .field("pp_size", "int", &Layout::pp_size)
      .field("dcp_size", "int", &Layout::dcp_size)
      .field("pcp_size", "int", &Layout::pcp_size)
      .field("region_bytes", kInts, &Layout::region_bytes, kIntSequence)
      .field("groups", "tuple[CacheGroup, ...]", &Layout::groups,
             "collections.abc.Sequence[CacheGroup]");
  Record<Side>(m, "Side", "The ranks of one side, ordered by (pp_rank, tp_rank).")
      .field("ranks", "tuple[Layout, ...]", &Side::ranks, "collections.abc.Sequence[Layout]");
  Record<kv::DensePlacement>(m, "DensePlacement", "What place_tensor() needs beyond the tensor.")
      .field("order", "PageOrder", &kv::DensePlacement::order)
      .field("page_tokens", "int", &kv::DensePlacement::page_tokens)
      .field("tp_rank", "int", &kv::DensePlacement::tp_rank)
      .field("tp_size", "int", &kv::DensePlacement::tp_size)
      .field("pages", "int", &kv::DensePlacement::pages)
      .field("layers", "int", &kv::DensePlacement::layers)
      .field("layers_in_page", "bool", &kv::DensePlacement::layers_in_page)
      .field("parts_in_page", "bool", &kv::DensePlacement::parts_in_page)
      .field("page_align_bytes", "int", &kv::DensePlacement::page_align_bytes);
}

void bind_layout_functions(nb::module_& m) {
  using kv::Layout;
  using kv::Side;
  m.def(
      "check",
      [](const Layout& layout) {
        kv::Refusal refusal;
        const auto result = kv::check(layout, &refusal);
        if (!result) raise_refused(result.error(), refusal);
      },
      "layout"_a, "Raises, with `refusal`, when plan() would not accept it by itself.");
  m.def(
      "encode", [](const Layout& layout) { return to_bytes(unwrap(kv::encode(layout))); },
      "layout"_a);
  m.def(
      "encode", [](const Side& side) { return to_bytes(unwrap(kv::encode(side))); }, "side"_a);
  m.def(
      "decode_layout",
      [](const nb::bytes& data) { return unwrap(kv::decode_layout(span_of(data))); }, "data"_a);
  m.def(
      "decode_side", [](const nb::bytes& data) { return unwrap(kv::decode_side(span_of(data))); },
      "data"_a);
  m.def("layout_hash", &kv::layout_hash, "layout"_a, "0 for a layout that check() refuses.");
  m.def(
      "place_tensor",
      [](kv::Tensor& tensor, const kv::DensePlacement& placement) {
        return unwrap(kv::place_tensor(tensor, placement));
      },
      "tensor"_a, "placement"_a,
      "Fills in the strides of a dense tensor. Returns the bytes that it takes.");
}

}  // namespace

void raise_refused(const fabric::Error& error, const kv::Refusal& refusal) {
  const std::string where = std::string(error.file) + ":" + std::to_string(error.line);
  std::string what = refusal.reason.empty() ? error.what : refusal.reason;
  if (!refusal.remedy.empty()) what += "; " + refusal.remedy;
  nb::object exception = make_error(error.code, what, error.native, where);
  exception.attr("refusal") = nb::cast(refusal);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

void bind_kv_layout(nb::module_& m) {
  bind_kinds(m);
  bind_tensor(m);
  bind_layout(m);
  bind_layout_functions(m);
}

}  // namespace fabric_python
