#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include <fabric/kv_plan.h>

#include <fmt/format.h>

#include "workloads/kv/page_blocks.h"
#include "workloads/kv/plan_bytes.h"
#include "workloads/kv/plan_match.h"
#include "workloads/kv/plan_refusal.h"

namespace fabric::kv {
namespace planner {
namespace {

/// How unit numbers become addresses on one side: (page * page_step + unit * unit_step) * stride.
struct UnitAddress {
  uint64_t stride_bytes = 0;
  uint64_t page_step = 1;
  uint64_t unit_step = 0;
};

/// The common part of one block of a tensor on two ranks, the same in every layer.
struct BlockCopy {
  uint32_t tensor = 0;  ///< index in GroupPlan::tensors
  const Tensor* source = nullptr;
  const Tensor* target = nullptr;
  uint64_t source_stride_bytes = 0;
  uint64_t target_stride_bytes = 0;
  uint32_t list = 0;
  bool staged = false;
  layout::StridedCopy copy{};
};

/// Builds one PairGroup.
class PairPlanner {
 public:
  PairPlanner(const GroupPlan& plan, const Layout& source, const Layout& target,
              const PlanOptions& options, Refusal* refusal)
      : plan_(plan),
        source_(source),
        target_(target),
        source_group_(*find_cache_group(source, plan.name)),
        target_group_(*find_cache_group(target, plan.name)),
        options_(options),
        refusal_(refusal) {}

  /// No layers: the two ranks have nothing in common. `room`: how many more plan slices
  /// fit.
  Result<PairGroup> run(uint64_t room) {
    out_.source_group = static_cast<uint32_t>(&source_group_ - source_.groups.data());
    out_.target_group = static_cast<uint32_t>(&target_group_ - target_.groups.data());
    out_.source_pages = source_group_.pages;
    out_.target_pages = target_group_.pages;
    const std::vector<std::pair<size_t, size_t>> layers = common_layers();
    if (layers.empty()) return std::move(out_);
    for (uint32_t n = 0; n < plan_.tensors.size(); ++n) {
      if (auto done = add_tensor(n); !done) return done.error();
    }
    if (copies_.empty()) return std::move(out_);
    uint64_t slices = 0;
    for (const BlockCopy& one : copies_) {
      slices += one.staged ? 1 : one.copy.runs() / inner_loop(one.copy).count;
    }
    if (slices > room / layers.size()) {
      return refuse(refusal_, RefusalCode::kTooLarge,
                    fmt::format("{}: {} slices for each of {} layers, the plan has room for {}",
                                where(), slices, layers.size(), room),
                    "use the same page order and page size on both sides");
    }
    for (const auto& [source_layer, target_layer] : layers) add_layer(source_layer, target_layer);
    return std::move(out_);
  }

 private:
  std::string where() const {
    return fmt::format("group \"{}\", prefill (pp {}, tp {}) to decode (pp {}, tp {})", plan_.name,
                       source_.pp_rank, source_.tp_rank, target_.pp_rank, target_.tp_rank);
  }

  /// Positions of the layers that both ranks have, in the two groups.
  std::vector<std::pair<size_t, size_t>> common_layers() const {
    std::vector<std::pair<size_t, size_t>> out;
    size_t t = 0;
    for (size_t s = 0; s < source_group_.layers.size(); ++s) {
      const uint32_t layer = source_group_.layers[s];
      while (t < target_group_.layers.size() && target_group_.layers[t] < layer) ++t;
      if (t < target_group_.layers.size() && target_group_.layers[t] == layer)
        out.push_back({s, t});
    }
    return out;
  }

  Result<void> add_tensor(uint32_t n) {
    const Tensor& from = *find_tensor(source_group_, plan_.tensors[n]);
    const Tensor& to = *find_tensor(target_group_, plan_.tensors[n]);
    if (from.opaque_page_bytes != 0) {
      const auto needed = opaque_pages_fit(from, to);
      if (!needed) return needed.error();
      if (!*needed) return {};
    }
    const auto sources = page_blocks(source_, source_group_, from, plan_.unit_tokens);
    if (!sources) return sources.error();
    const auto targets = page_blocks(target_, target_group_, to, plan_.unit_tokens);
    if (!targets) return targets.error();
    for (const PageBlock& target : *targets) {
      const auto source = std::find_if(sources->begin(), sources->end(),
                                       [&](const PageBlock& b) { return b.name == target.name; });
      auto common = layout::intersect(source->block, target.block);
      if (!common) return common.error();
      if (!common->has_value()) continue;
      BlockCopy made{.tensor = n, .source = &from, .target = &to, .copy = merge(**common)};
      made.staged = is_per_token(from, made.copy);
      if (made.staged && !options_.staging) {
        if (!options_.per_token_writes) return per_token(from, made.copy);
        made.staged = false;
      }
      if (auto done = add_list(made, *source); !done) return done;
      copies_.push_back(std::move(made));
    }
    return {};
  }

  /// True: the page goes from this source to this target. False: other heads.
  Result<bool> opaque_pages_fit(const Tensor& from, const Tensor& to) {
    const auto source = heads_of(source_, from);
    if (!source) return source.error();
    const auto target = heads_of(target_, to);
    if (!target) return target.error();
    if (layout::intersect(source->range, target->range).count == 0) return false;
    const bool same = source->range == target->range &&
                      plan_.source_page_tokens == plan_.target_page_tokens &&
                      from.part_stride_bytes == to.part_stride_bytes &&
                      from.head_stride_bytes == to.head_stride_bytes &&
                      from.token_stride_bytes == to.token_stride_bytes;
    if (same) return true;
    return refuse(refusal_, RefusalCode::kOpaquePageDiffers,
                  fmt::format("{}: tensor \"{}\" has opaque pages (scales inside), which cannot be "
                              "divided, and the heads, page size or strides of the two differ",
                              where(), from.name),
                  "use the same tensor-parallel size, page size and order on both sides, or keep "
                  "scales in a tensor of their own");
  }

  /// Runs of no more than one token, and many of them in a unit.
  bool is_per_token(const Tensor& tensor, const layout::StridedCopy& copy) const {
    if (plan_.kind == GroupKind::kState || tensor.opaque_page_bytes != 0) return false;
    const auto in_run = [&](uint32_t axis) { return (copy.axes_in_run >> axis & 1) != 0; };
    return plan_.unit_tokens > 1 ? !in_run(kTokenAxis) : !in_run(kHeadAxis);
  }

  Error per_token(const Tensor& tensor, const layout::StridedCopy& copy) {
    return refuse(
        refusal_, RefusalCode::kPerTokenWrites,
        fmt::format("{}: tensor \"{}\" has no run longer than one token: {} writes of {} bytes for "
                    "each {} tokens (NHD with a head cut, another page order or padding)",
                    where(), tensor.name, copy.runs(), copy.run_bytes, plan_.unit_tokens),
        "store HND on both sides, or whole heads on both sides; or set PlanOptions::staging "
        "(gather, one write, scatter)");
  }

  Result<UnitAddress> unit_address(const char* side, const Tensor& tensor, uint32_t page_tokens,
                                   uint32_t pages) {
    UnitAddress out{.stride_bytes = tensor.page_stride_bytes};
    if (page_tokens != plan_.unit_tokens) {
      const uint64_t unit_bytes = plan_.unit_tokens * tensor.token_stride_bytes;
      out.stride_bytes = std::gcd(tensor.page_stride_bytes, unit_bytes);
      out.page_step = tensor.page_stride_bytes / out.stride_bytes;
      out.unit_step = unit_bytes / out.stride_bytes;
    }
    const uint64_t units = page_tokens == plan_.unit_tokens ? 1 : page_tokens / plan_.unit_tokens;
    uint64_t last = 0;
    if (!__builtin_mul_overflow(uint64_t{pages} - 1, out.page_step, &last) &&
        !__builtin_add_overflow(last, (units - 1) * out.unit_step, &last) && last <= UINT32_MAX) {
      return out;
    }
    return refuse(
        refusal_, RefusalCode::kIndexRange,
        fmt::format("{}: tensor \"{}\" of the {} side: units of {} tokens begin at "
                    "multiples of {} bytes only, and {} pages have more than 2^32 of them",
                    where(), tensor.name, side, plan_.unit_tokens, out.stride_bytes, pages),
        "pad pages to a multiple of the unit's bytes, use the same page size on both "
        "sides, or divide the pool");
  }

  Result<void> add_list(BlockCopy& made, const PageBlock& source) {
    const auto from =
        unit_address("prefill", *made.source, plan_.source_page_tokens, source_group_.pages);
    if (!from) return from.error();
    const auto to =
        unit_address("decode", *made.target, plan_.target_page_tokens, target_group_.pages);
    if (!to) return to.error();
    made.source_stride_bytes = from->stride_bytes;
    made.target_stride_bytes = to->stride_bytes;
    const UnitList list{.source_page_step = from->page_step,
                        .source_unit_step = from->unit_step,
                        .target_page_step = to->page_step,
                        .target_unit_step = to->unit_step,
                        .holders = source.replicas,
                        .holder = source.replica};
    const auto found = std::find(out_.lists.begin(), out_.lists.end(), list);
    made.list = static_cast<uint32_t>(found - out_.lists.begin());
    if (found == out_.lists.end()) out_.lists.push_back(list);
    return {};
  }

  /// The loop that PagedWrite runs: the longest, the innermost of several. The others are unrolled.
  static layout::Loop inner_loop(const layout::StridedCopy& copy) {
    layout::Loop longest;
    for (const layout::Loop& loop : copy.loops) {
      if (loop.count >= longest.count) longest = loop;
    }
    return longest;
  }

  void add_layer(size_t source_layer, size_t target_layer) {
    LayerSlices layer{.layer = source_group_.layers[source_layer],
                      .first_slice = static_cast<uint32_t>(out_.slices.size()),
                      .first_staged = static_cast<uint32_t>(out_.staged.size())};
    std::map<uint32_t, StagedWrite> staged;  // by list
    for (const BlockCopy& one : copies_) {
      const TensorLocation from = location_of(*one.source, source_layer);
      const TensorLocation to = location_of(*one.target, target_layer);
      if (one.staged) {
        StagedCopy copy{.tensor = one.tensor,
                        .source_region = from.region,
                        .target_region = to.region,
                        .source_stride_bytes = one.source_stride_bytes,
                        .target_stride_bytes = one.target_stride_bytes,
                        .copy = one.copy};
        copy.copy.source_offset_bytes += from.offset_bytes;
        copy.copy.target_offset_bytes += to.offset_bytes;
        StagedWrite& write = staged[one.list];
        copy.packed_offset_bytes = write.bytes;
        write.bytes += copy.copy.bytes();
        write.copies.push_back(std::move(copy));
      } else {
        add_slices(one, from, to);
      }
    }
    for (auto& [list, write] : staged) {
      write.list = list;
      write.record_offset_bytes = staging_bytes_[list];
      staging_bytes_[list] += write.bytes;
      out_.lists[list].staging_record_bytes = staging_bytes_[list];
      out_.staged.push_back(std::move(write));
    }
    layer.slices = static_cast<uint32_t>(out_.slices.size()) - layer.first_slice;
    layer.staged = static_cast<uint32_t>(out_.staged.size()) - layer.first_staged;
    out_.layers.push_back(layer);
  }

  /// One plan slice for each tuple of the loops that are not the inner one.
  void add_slices(const BlockCopy& one, const TensorLocation& from, const TensorLocation& to) {
    const layout::Loop inner = inner_loop(one.copy);
    std::vector<layout::Loop> outer = one.copy.loops;
    if (inner.count > 1) outer.erase(std::find(outer.begin(), outer.end(), inner));
    PageSlice slice{.list = one.list,
                    .tensor = one.tensor,
                    .source_region = from.region,
                    .target_region = to.region,
                    .source_stride_bytes = one.source_stride_bytes,
                    .target_stride_bytes = one.target_stride_bytes,
                    .bytes = one.copy.run_bytes,
                    .inner_count = static_cast<uint32_t>(inner.count),
                    .source_inner_stride_bytes = inner.source_stride_bytes,
                    .target_inner_stride_bytes = inner.target_stride_bytes};
    uint64_t tuples = 1;
    for (const layout::Loop& loop : outer) tuples *= loop.count;
    for (uint64_t tuple = 0; tuple < tuples; ++tuple) {
      slice.source_offset_bytes = from.offset_bytes + one.copy.source_offset_bytes;
      slice.target_offset_bytes = to.offset_bytes + one.copy.target_offset_bytes;
      uint64_t rest = tuple;
      for (size_t k = outer.size(); k > 0; --k) {
        const layout::Loop& loop = outer[k - 1];
        slice.source_offset_bytes += rest % loop.count * loop.source_stride_bytes;
        slice.target_offset_bytes += rest % loop.count * loop.target_stride_bytes;
        rest /= loop.count;
      }
      out_.slices.push_back(slice);
    }
  }

  const GroupPlan& plan_;
  const Layout& source_;
  const Layout& target_;
  const CacheGroup& source_group_;
  const CacheGroup& target_group_;
  const PlanOptions& options_;
  Refusal* refusal_;
  std::vector<BlockCopy> copies_;
  std::map<uint32_t, uint64_t> staging_bytes_;  // by list
  PairGroup out_;
};

Result<std::optional<PairPlan>> plan_pair(const TransferPlan& plan, const Layout& source,
                                          const Layout& target, uint64_t room, Refusal* refusal) {
  PairPlan pair{.deal_offset = target.tp_rank};
  for (uint32_t g = 0; g < plan.groups.size(); ++g) {
    const GroupPlan& group = plan.groups[g];
    if (find_cache_group(source, group.name) == nullptr) continue;
    if (find_cache_group(target, group.name) == nullptr) continue;
    auto made = PairPlanner(group, source, target, plan.options, refusal).run(room);
    if (!made) return made.error();
    if (made->layers.empty()) continue;
    made->group = g;
    room -= std::min<uint64_t>(room, made->slices.size() + made->staged.size());
    pair.groups.push_back(*std::move(made));
  }
  if (pair.groups.empty()) return std::optional<PairPlan>();
  return std::optional<PairPlan>(std::move(pair));
}

uint64_t slices_in(const PairPlan& pair) {
  uint64_t sum = 0;
  for (const PairGroup& group : pair.groups) {
    sum += group.slices.size();
    for (const StagedWrite& write : group.staged) sum += write.copies.size();
  }
  return sum;
}

}  // namespace
}  // namespace planner

Result<TransferPlan> plan(const Side& prefill, const Side& decode, const PlanOptions& options,
                          Refusal* refusal) {
  auto matched = planner::match_sides(prefill, decode, refusal);
  if (!matched) return matched.error();
  TransferPlan out{
      .model_hash = matched->model_hash, .options = options, .groups = std::move(matched->groups)};
  uint64_t room = kPlanSlicesMax;
  for (uint32_t t = 0; t < decode.ranks.size(); ++t) {
    const size_t first = out.pairs.size();
    for (uint32_t s = 0; s < prefill.ranks.size(); ++s) {
      auto pair = planner::plan_pair(out, prefill.ranks[s], decode.ranks[t], room, refusal);
      if (!pair) return pair.error();
      if (!pair->has_value()) continue;
      (*pair)->source = s;
      (*pair)->target = t;
      room -= std::min(room, planner::slices_in(**pair));
      out.pairs.push_back(*std::move(*pair));
    }
    out.target_hashes.push_back(planner::target_hash(out, first));
  }
  out.hash = planner::plan_hash(out);
  return out;
}

}  // namespace fabric::kv
