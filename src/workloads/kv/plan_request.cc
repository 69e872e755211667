#include <algorithm>
#include <limits>
#include <map>

#include <fabric/kv_plan.h>

namespace fabric::kv {
namespace {

/// For Error::native: 32 bits, signed.
int32_t native_limit(uint32_t value) {
  return static_cast<int32_t>(std::min<uint32_t>(value, std::numeric_limits<int32_t>::max()));
}

uint32_t units_per_page(const GroupPlan& group, uint32_t page_tokens) {
  return group.kind == GroupKind::kState ? 1 : page_tokens / group.unit_tokens;
}

UnitRange intersect_units(UnitRange a, UnitRange b) {
  const uint32_t first = std::max(a.first, b.first);
  return {first, std::max(first, std::min(a.end, b.end))};
}

/// The index of a unit, by the steps. It fits 32 bits for every page id of the pool: plan() has
/// checked that.
uint32_t unit_index(uint64_t page, uint64_t page_step, uint64_t unit, uint64_t unit_step) {
  return static_cast<uint32_t>(page * page_step + unit * unit_step);
}

Result<PairCounts> count_ranges(const TransferPlan& plan, const PairPlan& pair,
                                const RequestTokens& tokens, const TokenRange* chunk) {
  PairCounts out;
  std::map<uint32_t, uint64_t> layers;
  for (const PairGroup& group : pair.groups) {
    const auto range = chunk == nullptr ? request_units(plan, group.group, tokens)
                                        : chunk_units(plan, group.group, tokens, *chunk);
    if (!range) return range.error();
    std::vector<uint64_t> dealt;
    for (const UnitList& list : group.lists) {
      dealt.push_back(dealt_units(pair, list, *range, tokens.seed));
    }
    for (const LayerSlices& layer : group.layers) {
      uint64_t& count = layers[layer.layer];
      for (const PageSlice& slice : slices_of(group, layer)) {
        count += dealt[slice.list] * slice.inner_count;
      }
      for (const StagedWrite& write : staged_of(group, layer)) count += dealt[write.list];
    }
  }
  for (const auto& [layer, count] : layers) {
    out.layers.push_back({layer, count});
    out.total += count;
  }
  return out;
}

}  // namespace

uint64_t request_seed(std::string_view request_id) noexcept {
  return layout::hash_bytes(request_id);
}

Result<uint32_t> find_group(const TransferPlan& plan, std::string_view name) {
  for (uint32_t n = 0; n < plan.groups.size(); ++n) {
    if (plan.groups[n].name == name) return n;
  }
  return fail(Errc::kNotFound, "name: no such group in the plan");
}

Result<uint32_t> find_pair(const TransferPlan& plan, uint32_t source, uint32_t target) {
  for (uint32_t n = 0; n < plan.pairs.size(); ++n) {
    if (plan.pairs[n].source == source && plan.pairs[n].target == target) return n;
  }
  return fail(Errc::kNotFound, "source, target: no such pair in the plan");
}

const LayerSlices* find_layer(const PairGroup& group, uint32_t layer) noexcept {
  const auto found =
      std::lower_bound(group.layers.begin(), group.layers.end(), layer,
                       [](const LayerSlices& one, uint32_t wanted) { return one.layer < wanted; });
  return found != group.layers.end() && found->layer == layer ? &*found : nullptr;
}

std::span<const PageSlice> slices_of(const PairGroup& group, const LayerSlices& layer) noexcept {
  return std::span(group.slices).subspan(layer.first_slice, layer.slices);
}

std::span<const StagedWrite> staged_of(const PairGroup& group, const LayerSlices& layer) noexcept {
  return std::span(group.staged).subspan(layer.first_staged, layer.staged);
}

Result<UnitRange> request_units(const TransferPlan& plan, uint32_t group,
                                const RequestTokens& tokens) {
  if (group >= plan.groups.size()) return fail(Errc::kInvalidArgument, "group: not in the plan");
  const uint32_t prompt = tokens.prompt_tokens;
  if (prompt == 0 || prompt > kPromptTokensMax) {
    return fail(Errc::kInvalidArgument, "prompt_tokens: not within 1 to kPromptTokensMax",
                native_limit(kPromptTokensMax));
  }
  if (!tokens.cached_tokens.empty() && tokens.cached_tokens.size() != plan.groups.size()) {
    return fail(Errc::kInvalidArgument, "cached_tokens: not one for each group of the plan",
                native_limit(static_cast<uint32_t>(plan.groups.size())));
  }
  const uint32_t cached = tokens.cached_tokens.empty() ? 0 : tokens.cached_tokens[group];
  if (cached > prompt) {
    return fail(Errc::kInvalidArgument, "cached_tokens: more than prompt_tokens",
                native_limit(prompt));
  }
  const GroupPlan& described = plan.groups[group];
  if (described.kind == GroupKind::kState) {
    if (cached != 0 && cached != prompt) {
      return fail(Errc::kInvalidArgument,
                  "cached_tokens: neither 0 nor prompt_tokens in a state group");
    }
    return cached == 0 ? UnitRange{0, 1} : UnitRange{1, 1};
  }
  const uint32_t unit = described.unit_tokens;
  const uint32_t end = (prompt + unit - 1) / unit;
  if (cached == prompt) return UnitRange{end, end};
  if (cached % unit != 0) {
    return fail(Errc::kInvalidArgument, "cached_tokens: not a multiple of the unit: round it down",
                native_limit(unit));
  }
  uint32_t first = cached / unit;
  if (described.kind == GroupKind::kWindow && prompt > described.window_tokens) {
    first = std::max(first, (prompt - described.window_tokens) / unit);
  }
  return UnitRange{first, end};
}

Result<UnitRange> chunk_units(const TransferPlan& plan, uint32_t group, const RequestTokens& tokens,
                              TokenRange chunk) {
  const auto all = request_units(plan, group, tokens);
  if (!all) return all.error();
  if (chunk.from >= chunk.to || chunk.to > tokens.prompt_tokens) {
    return fail(Errc::kInvalidArgument, "chunk: empty, or past prompt_tokens",
                native_limit(tokens.prompt_tokens));
  }
  const bool last = chunk.to == tokens.prompt_tokens;
  if (plan.groups[group].kind == GroupKind::kState) return last ? *all : UnitRange{0, 0};
  const uint32_t unit = plan.groups[group].unit_tokens;
  return intersect_units(*all, {chunk.from / unit, last ? all->end : chunk.to / unit});
}

uint32_t dealt_units(const PairPlan& pair, const UnitList& list, UnitRange range,
                     uint64_t seed) noexcept {
  const uint64_t holders = list.holders;
  const uint64_t shift = (seed % holders + pair.deal_offset) % holders;
  const uint64_t first =
      (list.holder + holders - shift) % holders;  // the lowest unit of this source
  const auto below = [&](uint64_t end) {
    return end > first ? (end - first - 1) / holders + 1 : 0;
  };
  return static_cast<uint32_t>(below(range.end) - below(range.first));
}

PagePositions source_positions(const GroupPlan& group, UnitRange range) noexcept {
  const uint32_t units = units_per_page(group, group.source_page_tokens);
  return {range.first / units, (range.end + units - 1) / units};
}

PagePositions target_positions(const GroupPlan& group, UnitRange range) noexcept {
  const uint32_t units = units_per_page(group, group.target_page_tokens);
  return {range.first / units, (range.end + units - 1) / units};
}

Result<UnitIndices> unit_indices(const TransferPlan& plan, const PairPlan& pair,
                                 const PairGroup& group, uint32_t list, UnitRange range,
                                 uint64_t seed, const RequestPages& pages) {
  if (group.group >= plan.groups.size() || list >= group.lists.size()) {
    return fail(Errc::kInvalidArgument, "list: not in the group");
  }
  const GroupPlan& described = plan.groups[group.group];
  const UnitList& at = group.lists[list];
  const uint64_t source_units = units_per_page(described, described.source_page_tokens);
  const uint64_t target_units = units_per_page(described, described.target_page_tokens);
  UnitIndices out;
  const uint32_t count = dealt_units(pair, at, range, seed);
  out.units.reserve(count);
  out.source.reserve(count);
  out.target.reserve(count);
  for (uint64_t unit = range.first; unit < range.end; ++unit) {
    if ((unit + seed % at.holders + pair.deal_offset) % at.holders != at.holder) continue;
    const uint64_t from = unit / source_units;
    const uint64_t position = unit / target_units;
    // Before target_first it wraps to a number past every size.
    const uint64_t to = position - pages.target_first;
    if (from >= pages.source.size() || pages.source[from] >= group.source_pages) {
      return fail(Errc::kOutOfBounds, "source_pages: too few, or an id past the pool",
                  native_limit(group.source_pages));
    }
    if (to >= pages.target.size() || pages.target[to] >= group.target_pages) {
      return fail(Errc::kOutOfBounds, "target_pages: too few, or an id past the pool",
                  native_limit(group.target_pages));
    }
    out.units.push_back(static_cast<uint32_t>(unit));
    out.source.push_back(unit_index(pages.source[from], at.source_page_step, unit % source_units,
                                    at.source_unit_step));
    out.target.push_back(unit_index(pages.target[to], at.target_page_step, unit % target_units,
                                    at.target_unit_step));
  }
  return out;
}

Result<PairCounts> counts(const TransferPlan& plan, const PairPlan& pair,
                          const RequestTokens& tokens) {
  return count_ranges(plan, pair, tokens, nullptr);
}

Result<PairCounts> chunk_counts(const TransferPlan& plan, const PairPlan& pair,
                                const RequestTokens& tokens, TokenRange chunk) {
  return count_ranges(plan, pair, tokens, &chunk);
}

Result<void> gather(const StagedWrite& write, uint32_t index,
                    std::span<const std::span<const std::byte>> regions,
                    std::span<std::byte> packed) {
  if (packed.size() < write.bytes) return fail(Errc::kOutOfBounds, "packed: too short");
  for (const StagedCopy& one : write.copies) {
    if (one.source_region >= regions.size()) return fail(Errc::kOutOfBounds, "regions: too few");
    layout::StridedCopy copy = one.copy;
    copy.source_offset_bytes += index * one.source_stride_bytes;
    const auto part = packed.subspan(one.packed_offset_bytes, copy.bytes());
    if (auto done = layout::gather(copy, regions[one.source_region], part); !done) return done;
  }
  return {};
}

Result<void> scatter(const StagedWrite& write, uint32_t index, std::span<const std::byte> packed,
                     std::span<const std::span<std::byte>> regions) {
  if (packed.size() < write.bytes) return fail(Errc::kOutOfBounds, "packed: too short");
  for (const StagedCopy& one : write.copies) {
    if (one.target_region >= regions.size()) return fail(Errc::kOutOfBounds, "regions: too few");
    layout::StridedCopy copy = one.copy;
    copy.target_offset_bytes += index * one.target_stride_bytes;
    const auto part = packed.subspan(one.packed_offset_bytes, copy.bytes());
    if (auto done = layout::scatter(copy, part, regions[one.target_region]); !done) return done;
  }
  return {};
}

}  // namespace fabric::kv
