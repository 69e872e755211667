#include "plan_report.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace fabric::tool {
namespace {

std::string hex(uint64_t value) { return fmt::format("{:#018x}", value); }

std::string rank_name(const kv::Layout& layout) {
  if (layout.pp_size == 1) return fmt::format("{}", layout.tp_rank);
  return fmt::format("{}.{}", layout.pp_rank, layout.tp_rank);
}

std::string holders_text(const kv::UnitList& list) {
  if (list.holders == 1) return "";
  return fmt::format(", one unit in {} (holder {})", list.holders, list.holder);
}

std::string side_text(uint32_t region, uint64_t offset, uint64_t stride, uint32_t inner_count,
                      uint64_t inner_stride) {
  std::string out = fmt::format("{}:{} + {} i", region, offset, stride);
  if (inner_count > 1) out += fmt::format(" + {} j", inner_stride);
  return out;
}

/// The slices of one layer; the others differ in their offsets.
std::string layer_text(const kv::GroupPlan& plan, const kv::PairGroup& group,
                       const kv::LayerSlices& layer) {
  std::string out;
  for (const kv::PageSlice& slice : slices_of(group, layer)) {
    out += fmt::format(
        "    layer {} {}: {} x {} bytes a unit, {} -> {}{}\n", layer.layer,
        plan.tensors[slice.tensor], slice.inner_count, slice.bytes,
        side_text(slice.source_region, slice.source_offset_bytes, slice.source_stride_bytes,
                  slice.inner_count, slice.source_inner_stride_bytes),
        side_text(slice.target_region, slice.target_offset_bytes, slice.target_stride_bytes,
                  slice.inner_count, slice.target_inner_stride_bytes),
        holders_text(group.lists[slice.list]));
  }
  for (const kv::StagedWrite& write : staged_of(group, layer)) {
    uint64_t runs = 0;
    std::vector<std::string> tensors;
    for (const kv::StagedCopy& copy : write.copies) {
      runs += copy.copy.runs();
      tensors.push_back(plan.tensors[copy.tensor]);
    }
    out += fmt::format(
        "    layer {} {}: staged, 1 x {} bytes a unit from {} runs, record of {} bytes{}\n",
        layer.layer, fmt::join(tensors, " "), write.bytes, runs,
        group.lists[write.list].staging_record_bytes, holders_text(group.lists[write.list]));
  }
  return out;
}

std::string group_text(const kv::GroupPlan& group) {
  if (group.kind == kv::GroupKind::kState) {
    return fmt::format("group {}: state, one page a request, tensors {}\n", group.name,
                       fmt::join(group.tensors, " "));
  }
  const std::string window = group.kind == kv::GroupKind::kWindow
                                 ? fmt::format("window of {} tokens", group.window_tokens)
                                 : "full";
  return fmt::format("group {}: {}, units of {} tokens (pages of {} -> {}), tensors {}\n",
                     group.name, window, group.unit_tokens, group.source_page_tokens,
                     group.target_page_tokens, fmt::join(group.tensors, " "));
}

/// "256 in each of 94 layers", or the range where they differ.
std::string layers_text(const kv::PairCounts& counts) {
  uint64_t least = UINT64_MAX;
  uint64_t most = 0;
  for (const kv::LayerCount& layer : counts.layers) {
    least = std::min(least, layer.count);
    most = std::max(most, layer.count);
  }
  if (least == most) return fmt::format("{} in each of {} layers", most, counts.layers.size());
  return fmt::format("{} to {} in each of {} layers", least, most, counts.layers.size());
}

std::string counts_text(const kv::TransferPlan& plan, const kv::Side& prefill,
                        const kv::Side& decode, const kv::RequestTokens& tokens) {
  std::string out = fmt::format("counts of a request of {} tokens\n", tokens.prompt_tokens);
  std::map<uint32_t, uint64_t> sums;
  for (const kv::PairPlan& pair : plan.pairs) {
    const auto counted = counts(plan, pair, tokens);
    sums[pair.target] += counted->total;
    out +=
        fmt::format("  prefill {} -> decode {}: {} ({})\n", rank_name(prefill.ranks[pair.source]),
                    rank_name(decode.ranks[pair.target]), counted->total, layers_text(*counted));
  }
  for (const auto& [target, sum] : sums) {
    out += fmt::format("  decode {}: {} in all\n", rank_name(decode.ranks[target]), sum);
  }
  return out;
}

nlohmann::ordered_json slice_json(const kv::GroupPlan& plan, const kv::PageSlice& slice) {
  return {{"tensor", plan.tensors[slice.tensor]},
          {"list", slice.list},
          {"bytes", slice.bytes},
          {"inner_count", slice.inner_count},
          {"source",
           {{"region", slice.source_region},
            {"offset_bytes", slice.source_offset_bytes},
            {"stride_bytes", slice.source_stride_bytes},
            {"inner_stride_bytes", slice.source_inner_stride_bytes}}},
          {"target",
           {{"region", slice.target_region},
            {"offset_bytes", slice.target_offset_bytes},
            {"stride_bytes", slice.target_stride_bytes},
            {"inner_stride_bytes", slice.target_inner_stride_bytes}}}};
}

nlohmann::ordered_json staged_json(const kv::GroupPlan& plan, const kv::StagedWrite& write) {
  auto copies = nlohmann::ordered_json::array();
  for (const kv::StagedCopy& one : write.copies) {
    auto loops = nlohmann::ordered_json::array();
    for (const layout::Loop& loop : one.copy.loops) {
      loops.push_back({{"count", loop.count},
                       {"source_stride_bytes", loop.source_stride_bytes},
                       {"target_stride_bytes", loop.target_stride_bytes}});
    }
    copies.push_back({{"tensor", plan.tensors[one.tensor]},
                      {"packed_offset_bytes", one.packed_offset_bytes},
                      {"run_bytes", one.copy.run_bytes},
                      {"source",
                       {{"region", one.source_region},
                        {"offset_bytes", one.copy.source_offset_bytes},
                        {"stride_bytes", one.source_stride_bytes}}},
                      {"target",
                       {{"region", one.target_region},
                        {"offset_bytes", one.copy.target_offset_bytes},
                        {"stride_bytes", one.target_stride_bytes}}},
                      {"loops", std::move(loops)}});
  }
  return {{"list", write.list},
          {"bytes", write.bytes},
          {"record_offset_bytes", write.record_offset_bytes},
          {"copies", std::move(copies)}};
}

nlohmann::ordered_json list_json(const kv::UnitList& list) {
  return {{"source_page_step", list.source_page_step},
          {"source_unit_step", list.source_unit_step},
          {"target_page_step", list.target_page_step},
          {"target_unit_step", list.target_unit_step},
          {"holders", list.holders},
          {"holder", list.holder},
          {"staging_record_bytes", list.staging_record_bytes}};
}

nlohmann::ordered_json pair_group_json(const kv::TransferPlan& plan, const kv::PairPlan& pair,
                                       const kv::PairGroup& group) {
  const kv::GroupPlan& described = plan.groups[group.group];
  auto lists = nlohmann::ordered_json::array();
  for (const kv::UnitList& list : group.lists) lists.push_back(list_json(list));
  auto layers = nlohmann::ordered_json::array();
  for (const kv::LayerSlices& layer : group.layers) {
    auto slices = nlohmann::ordered_json::array();
    for (const kv::PageSlice& slice : slices_of(group, layer)) {
      slices.push_back(slice_json(described, slice));
    }
    auto staged = nlohmann::ordered_json::array();
    for (const kv::StagedWrite& write : staged_of(group, layer)) {
      staged.push_back(staged_json(described, write));
    }
    layers.push_back(
        {{"layer", layer.layer}, {"slices", std::move(slices)}, {"staged", std::move(staged)}});
  }
  return {{"source", pair.source},
          {"target", pair.target},
          {"group", described.name},
          {"lists", std::move(lists)},
          {"layers", std::move(layers)}};
}

}  // namespace

std::string plan_text(const kv::TransferPlan& plan, const kv::Side& prefill, const kv::Side& decode,
                      const kv::RequestTokens& tokens) {
  std::string out =
      fmt::format("plan {}: {} prefill ranks, {} decode ranks, {} pairs\n", hex(plan.hash),
                  prefill.ranks.size(), decode.ranks.size(), plan.pairs.size());
  for (uint32_t g = 0; g < plan.groups.size(); ++g) {
    out += group_text(plan.groups[g]);
    for (const kv::PairPlan& pair : plan.pairs) {
      for (const kv::PairGroup& group : pair.groups) {
        if (group.group != g) continue;
        out += fmt::format("  prefill {} -> decode {}, layers: {}\n",
                           rank_name(prefill.ranks[pair.source]),
                           rank_name(decode.ranks[pair.target]), group.layers.size());
        out += layer_text(plan.groups[g], group, group.layers[0]);
      }
    }
  }
  return out + counts_text(plan, prefill, decode, tokens);
}

nlohmann::ordered_json plan_json(const kv::TransferPlan& plan, const kv::RequestTokens& tokens) {
  nlohmann::ordered_json out{{"hash", hex(plan.hash)}};
  out["target_hashes"] = nlohmann::ordered_json::array();
  for (const uint64_t hash : plan.target_hashes) out["target_hashes"].push_back(hex(hash));
  out["groups"] = nlohmann::ordered_json::array();
  for (const kv::GroupPlan& group : plan.groups) {
    out["groups"].push_back({{"name", group.name},
                             {"kind", to_string(group.kind)},
                             {"window_tokens", group.window_tokens},
                             {"unit_tokens", group.unit_tokens},
                             {"source_page_tokens", group.source_page_tokens},
                             {"target_page_tokens", group.target_page_tokens},
                             {"tensors", group.tensors}});
  }
  out["slices"] = nlohmann::ordered_json::array();
  out["counts"] = nlohmann::ordered_json::array();
  for (const kv::PairPlan& pair : plan.pairs) {
    for (const kv::PairGroup& group : pair.groups) {
      out["slices"].push_back(pair_group_json(plan, pair, group));
    }
    const auto counted = counts(plan, pair, tokens);
    auto layers = nlohmann::ordered_json::array();
    for (const kv::LayerCount& layer : counted->layers) {
      layers.push_back({{"layer", layer.layer}, {"count", layer.count}});
    }
    out["counts"].push_back({{"source", pair.source},
                             {"target", pair.target},
                             {"tokens", tokens.prompt_tokens},
                             {"total", counted->total},
                             {"layers", std::move(layers)}});
  }
  return out;
}

}  // namespace fabric::tool
