// <fabric/kv_plan.h>: which bytes of a prefill side go where on a decode side.

#include <fabric/kv_plan.h>

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include "kv_refusal.h"
#include "lists.h"
#include "record.h"

namespace fabric_python {

namespace {

namespace kv = fabric::kv;
using Tokens = std::pair<uint32_t, uint32_t>;

/// The indices of units as numpy arrays, ready for write_pages().
struct UnitArrays {
  kv::UnitIndices indices;
};

nb::object array_of(nb::handle owner, std::vector<uint32_t>& numbers) {
  return nb::cast(nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>(numbers.data(), {numbers.size()},
                                                                nb::borrow(owner)));
}

void bind_slices(nb::module_& m) {
  using kv::LayerSlices;
  using kv::PageSlice;
  using kv::UnitList;
  Record<PageSlice>(m, "PageSlice", "One paged write of one layer and tensor.", false)
      .field("list", "int", &PageSlice::list)
      .field("tensor", "int", &PageSlice::tensor)
      .field("source_region", "int", &PageSlice::source_region)
      .field("target_region", "int", &PageSlice::target_region)
      .field("source_offset_bytes", "int", &PageSlice::source_offset_bytes)
      .field("target_offset_bytes", "int", &PageSlice::target_offset_bytes)
      .field("source_stride_bytes", "int", &PageSlice::source_stride_bytes)
      .field("target_stride_bytes", "int", &PageSlice::target_stride_bytes)
      .field("bytes", "int", &PageSlice::bytes)
      .field("inner_count", "int", &PageSlice::inner_count)
      .field("source_inner_stride_bytes", "int", &PageSlice::source_inner_stride_bytes)
      .field("target_inner_stride_bytes", "int", &PageSlice::target_inner_stride_bytes);
  Record<UnitList>(m, "UnitList", "The units that a source sends.", false)
      .field("source_page_step", "int", &UnitList::source_page_step)
      .field("source_unit_step", "int", &UnitList::source_unit_step)
      .field("target_page_step", "int", &UnitList::target_page_step)
      .field("target_unit_step", "int", &UnitList::target_unit_step)
      .field("holders", "int", &UnitList::holders)
      .field("holder", "int", &UnitList::holder)
      .field("staging_record_bytes", "int", &UnitList::staging_record_bytes);
  Record<LayerSlices>(m, "LayerSlices", "What one layer of a group sends.", false)
      .field("layer", "int", &LayerSlices::layer)
      .field("first_slice", "int", &LayerSlices::first_slice)
      .field("slices", "int", &LayerSlices::slices);
}

void bind_plans(nb::module_& m) {
  using kv::GroupPlan;
  using kv::PairGroup;
  using kv::PairPlan;
  using kv::TransferPlan;
  Record<PairGroup>(m, "PairGroup", "A group, between one prefill and one decode rank.", false)
      .field("group", "int", &PairGroup::group)
      .field("source_group", "int", &PairGroup::source_group)
      .field("target_group", "int", &PairGroup::target_group)
      .field("source_pages", "int", &PairGroup::source_pages)
      .field("target_pages", "int", &PairGroup::target_pages)
      .field("lists", "tuple[UnitList, ...]", &PairGroup::lists)
      .field("layers", "tuple[LayerSlices, ...]", &PairGroup::layers)
      .field("slices", "tuple[PageSlice, ...]", &PairGroup::slices);
  Record<PairPlan>(m, "PairPlan", "All that one prefill rank sends to one decode rank.", false)
      .field("source", "int", &PairPlan::source)
      .field("target", "int", &PairPlan::target)
      .field("deal_offset", "int", &PairPlan::deal_offset)
      .field("groups", "tuple[PairGroup, ...]", &PairPlan::groups);
  Record<GroupPlan>(m, "GroupPlan", "A group of the plan.", false)
      .field("name", "str", &GroupPlan::name)
      .field("kind", "GroupKind", &GroupPlan::kind)
      .field("window_tokens", "int", &GroupPlan::window_tokens)
      .field("unit_tokens", "int", &GroupPlan::unit_tokens)
      .field("source_page_tokens", "int", &GroupPlan::source_page_tokens)
      .field("target_page_tokens", "int", &GroupPlan::target_page_tokens)
      .field("tensors", "tuple[str, ...]", &GroupPlan::tensors);
  Record<kv::PlanOptions>(m, "PlanOptions", "Ways out where a slice would write token by token.")
      .field("staging", "bool", &kv::PlanOptions::staging)
      .field("per_token_writes", "bool", &kv::PlanOptions::per_token_writes);
  nb::class_<TransferPlan>(m, "TransferPlan", "What plan() returns: equal hash, equal counts.")
      .def_ro("hash", &TransferPlan::hash)
      .def_ro("target_hashes", &TransferPlan::target_hashes)
      .def_ro("model_hash", &TransferPlan::model_hash)
      .def_ro("options", &TransferPlan::options)
      .def_ro("groups", &TransferPlan::groups)
      .def_prop_ro(
          "size", [](const TransferPlan& self) { return self.pairs.size(); }, "Pairs.")
      .def(
          "pair",
          [](const TransferPlan& self, size_t index) {
            if (index >= self.pairs.size()) throw nb::index_error();
            return &self.pairs[index];
          },
          "index"_a, nb::rv_policy::reference_internal,
          nb::sig("def pair(self, index: int) -> PairPlan"), "TransferPlan::pairs[index].");
  Record<kv::RequestTokens>(m, "RequestTokens", "What is to be moved of one request.")
      .field("prompt_tokens", "int", &kv::RequestTokens::prompt_tokens)
      .field("cached_tokens", kInts, &kv::RequestTokens::cached_tokens, kIntSequence)
      .field("seed", "int", &kv::RequestTokens::seed);
  Record<kv::LayerCount>(m, "LayerCount", "Immediates of one layer.", false)
      .field("layer", "int", &kv::LayerCount::layer)
      .field("count", "int", &kv::LayerCount::count);
  Record<kv::PairCounts>(m, "PairCounts", "Immediates that one source sends.", false)
      .field("total", "int", &kv::PairCounts::total)
      .field("layers", "tuple[LayerCount, ...]", &kv::PairCounts::layers);
}

void bind_units(nb::module_& m) {
  nb::class_<UnitArrays>(m, "UnitIndices", "Entry n of the three arrays is the same unit.")
      .def_prop_ro(
          "units",
          [](nb::handle self) { return array_of(self, nb::cast<UnitArrays&>(self).indices.units); },
          nb::for_getter(nb::sig("def units(self) -> numpy.typing.NDArray[numpy.uint32]")))
      .def_prop_ro(
          "source",
          [](nb::handle self) {
            return array_of(self, nb::cast<UnitArrays&>(self).indices.source);
          },
          nb::for_getter(nb::sig("def source(self) -> numpy.typing.NDArray[numpy.uint32]")))
      .def_prop_ro(
          "target",
          [](nb::handle self) {
            return array_of(self, nb::cast<UnitArrays&>(self).indices.target);
          },
          nb::for_getter(nb::sig("def target(self) -> numpy.typing.NDArray[numpy.uint32]")));
  m.def(
      "request_units",
      [](const kv::TransferPlan& plan, uint32_t group, const kv::RequestTokens& tokens) {
        const auto units = unwrap(kv::request_units(plan, group, tokens));
        return Tokens{units.first, units.end};
      },
      "plan"_a, "group"_a, "tokens"_a, "First and end of the units that some source must send.");
  m.def(
      "chunk_units",
      [](const kv::TransferPlan& plan, uint32_t group, const kv::RequestTokens& tokens,
         Tokens chunk) {
        const auto units =
            unwrap(kv::chunk_units(plan, group, tokens, {chunk.first, chunk.second}));
        return Tokens{units.first, units.end};
      },
      "plan"_a, "group"_a, "tokens"_a, "chunk"_a,
      "Those of them that are complete with the tokens from chunk[0] to chunk[1] - 1.");
  m.def(
      "dealt_units",
      [](const kv::PairPlan& pair, const kv::UnitList& list, Tokens range, uint64_t seed) {
        return kv::dealt_units(pair, list, {range.first, range.second}, seed);
      },
      "pair"_a, "list"_a, "range"_a, "seed"_a);
  m.def(
      "unit_indices",
      [](const kv::TransferPlan& plan, const kv::PairPlan& pair, uint32_t group, uint32_t list,
         Tokens range, uint64_t seed, nb::handle source, nb::handle target) {
        const PageIndices from(source, "source_pages");
        const PageIndices to(target, "target_pages");
        if (group >= pair.groups.size()) throw nb::index_error("group: not in the pair");
        return UnitArrays{unwrap(kv::unit_indices(plan, pair, pair.groups[group], list,
                                                  {range.first, range.second}, seed,
                                                  {.source = from.get(), .target = to.get()}))};
      },
      "plan"_a, "pair"_a, "group"_a, "list"_a, "range"_a, "seed"_a, "source_pages"_a,
      "target_pages"_a,
      nb::sig("def unit_indices(plan: TransferPlan, pair: PairPlan, group: int, list: int, "
              "range: tuple[int, int], seed: int, source_pages: collections.abc.Sequence[int] | "
              "typing.Any, target_pages: collections.abc.Sequence[int] | typing.Any) -> "
              "UnitIndices"),
      "The indices of the units that this source sends. `group`: index in pair.groups.");
}

void bind_counts(nb::module_& m) {
  m.def(
      "plan",
      [](const kv::Side& prefill, const kv::Side& decode, const kv::PlanOptions* options) {
        kv::Refusal refusal;
        auto made = without_gil([&] {
          return kv::plan(prefill, decode, options == nullptr ? kv::PlanOptions{} : *options,
                          &refusal);
        });
        if (!made) raise_refused(made.error(), refusal);
        return std::move(*made);
      },
      "prefill"_a, "decode"_a, "options"_a.none() = nb::none(),
      "The plan; or raises, with `refusal`, which names both values and the way out.");
  m.def("request_seed", &kv::request_seed, "request_id"_a);
  m.def(
      "find_group",
      [](const kv::TransferPlan& plan, std::string_view name) {
        return unwrap(kv::find_group(plan, name));
      },
      "plan"_a, "name"_a);
  m.def(
      "find_pair",
      [](const kv::TransferPlan& plan, uint32_t source, uint32_t target) {
        return unwrap(kv::find_pair(plan, source, target));
      },
      "plan"_a, "source"_a, "target"_a, "The index for TransferPlan.pair().");
  m.def(
      "slices_of",
      [](const kv::PairGroup& group, uint32_t layer) {
        const kv::LayerSlices* found = kv::find_layer(group, layer);
        if (found == nullptr) return std::vector<kv::PageSlice>{};
        const auto slices = kv::slices_of(group, *found);
        return std::vector<kv::PageSlice>(slices.begin(), slices.end());
      },
      "group"_a, "layer"_a, "The slices of a layer; none when this pair sends nothing of it.");
  m.def(
      "counts",
      [](const kv::TransferPlan& plan, const kv::PairPlan& pair, const kv::RequestTokens& tokens) {
        return unwrap(kv::counts(plan, pair, tokens));
      },
      "plan"_a, "pair"_a, "tokens"_a);
  m.def(
      "chunk_counts",
      [](const kv::TransferPlan& plan, const kv::PairPlan& pair, const kv::RequestTokens& tokens,
         Tokens chunk) {
        return unwrap(kv::chunk_counts(plan, pair, tokens, {chunk.first, chunk.second}));
      },
      "plan"_a, "pair"_a, "tokens"_a, "chunk"_a);
}

}  // namespace

void bind_kv_plan(nb::module_& m) {
  bind_slices(m);
  bind_plans(m);
  bind_units(m);
  bind_counts(m);
}

}  // namespace fabric_python
