#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "workloads/kv/blocks.h"
#include "workloads/kv/refusal.h"

namespace fabric::kv {
namespace {

// 1 PiB: above any memory, and kLayersMax strides of it stay below 2^64.
constexpr uint64_t kBytesMax = uint64_t{1} << 50;

/// Checks one layout, field by field. The first mistake ends it.
class LayoutCheck {
 public:
  LayoutCheck(const Layout& layout, Refusal* refusal) : layout_(layout), refusal_(refusal) {}

  Result<void> run() {
    if (auto done = ranks(); !done) return done;
    if (auto done = regions(); !done) return done;
    if (auto done = limit("groups", layout_.groups.size(), 1, kGroupsMax); !done) return done;
    for (const CacheGroup& group : layout_.groups) {
      where_ = fmt::format("groups[{}]", &group - layout_.groups.data());
      if (auto done = name("name", group.name); !done) return done;
      if (!group_names_.insert(group.name).second) return bad("name", group.name, "is used twice");
      where_ = fmt::format("group \"{}\"", group.name);
      if (auto done = one_group(group); !done) return done;
    }
    return {};
  }

 private:
  template <class T>
  Error bad(std::string_view field, const T& value, std::string_view why) {
    return planner::refuse(
        refusal_, RefusalCode::kBadLayout,
        fmt::format("{}{}{}: {} {}", where_, where_.empty() ? "" : ": ", field, value, why),
        fmt::format("correct {}", field));
  }

  Result<void> limit(std::string_view field, uint64_t value, uint64_t least, uint64_t most) {
    if (value >= least && value <= most) return {};
    return bad(field, value, fmt::format("is not within {} to {}", least, most));
  }

  Result<void> name(std::string_view field, const std::string& text) {
    if (auto done = limit(fmt::format("{} length", field), text.size(), 1, kNameBytesMax); !done) {
      return done;
    }
    const auto prints = [](char c) { return c >= 0x21 && c <= 0x7e; };
    if (!std::all_of(text.begin(), text.end(), prints)) {
      return bad(field, "it", "has a character that is not printable ASCII, or a blank");
    }
    return {};
  }

  Result<void> ranks() {
    if (auto done = limit("tp_size", layout_.tp_size, 1, kRanksMax); !done) return done;
    if (auto done = limit("tp_rank", layout_.tp_rank, 0, layout_.tp_size - 1); !done) return done;
    if (auto done = limit("pp_size", layout_.pp_size, 1, kRanksMax); !done) return done;
    if (auto done = limit("pp_rank", layout_.pp_rank, 0, layout_.pp_size - 1); !done) return done;
    for (const auto& [field, size] :
         {std::pair("dcp_size", layout_.dcp_size), std::pair("pcp_size", layout_.pcp_size)}) {
      if (size == 1) continue;
      return planner::refuse(
          refusal_, RefusalCode::kContextParallel,
          fmt::format("{} is {}: context parallel interleaves the tokens of a page over ranks",
                      field, size),
          fmt::format("run this side with {} 1", field));
    }
    return {};
  }

  Result<void> regions() {
    if (auto done = limit("region_bytes count", layout_.region_bytes.size(), 1, kRegionsMax);
        !done) {
      return done;
    }
    for (const uint64_t bytes : layout_.region_bytes) {
      if (auto done = limit("region_bytes", bytes, 1, kBytesMax); !done) return done;
    }
    return {};
  }

  Result<void> one_group(const CacheGroup& group) {
    const bool state = group.kind == GroupKind::kState;
    if (static_cast<uint8_t>(group.kind) > static_cast<uint8_t>(GroupKind::kState)) {
      return bad("kind", static_cast<uint32_t>(group.kind), "is no GroupKind");
    }
    const bool window = group.kind == GroupKind::kWindow;
    if (auto done =
            limit("window_tokens", group.window_tokens, window ? 1 : 0, window ? UINT32_MAX : 0);
        !done) {
      return done;
    }
    if (auto done =
            limit("page_tokens", group.page_tokens, state ? 0 : 1, state ? 0 : kPageTokensMax);
        !done) {
      return done;
    }
    if (auto done = limit("pages", group.pages, 1, UINT32_MAX - 1); !done) return done;
    if (auto done = limit("layers count", group.layers.size(), 1, kLayersMax); !done) return done;
    for (size_t n = 1; n < group.layers.size(); ++n) {
      if (group.layers[n] <= group.layers[n - 1]) {
        return bad("layers", group.layers[n], "is not above the one before it");
      }
    }
    if (auto done = limit("tensors count", group.tensors.size(), 1, kTensorsMax); !done) {
      return done;
    }
    return tensors(group);
  }

  Result<void> tensors(const CacheGroup& group) {
    const std::string above = where_;
    std::set<std::string> names;
    std::set<std::pair<uint32_t, uint64_t>> begins;
    for (const Tensor& tensor : group.tensors) {
      where_ = fmt::format("{}: tensors[{}]", above, &tensor - group.tensors.data());
      if (auto done = name("name", tensor.name); !done) return done;
      if (!names.insert(tensor.name).second) return bad("name", tensor.name, "is used twice");
      where_ = fmt::format("{}: tensor \"{}\"", above, tensor.name);
      if (auto done = name("dtype", tensor.dtype); !done) return done;
      if (auto done = sizes(group, tensor); !done) return done;
      if (auto done = memory(group, tensor); !done) return done;
      for (size_t n = 0; n < group.layers.size(); ++n) {
        const TensorLocation at = planner::location_of(tensor, n);
        if (!begins.insert({at.region, at.offset_bytes}).second) {
          return bad("offset_bytes", at.offset_bytes,
                     fmt::format("in region {} is where another layer or tensor begins (layer {})",
                                 at.region, group.layers[n]));
        }
      }
    }
    return {};
  }

  Result<void> sizes(const CacheGroup& group, const Tensor& tensor) {
    if (auto done = limit("element_bytes", tensor.element_bytes, 1, kHeadsMax); !done) return done;
    if (!tensor.locations.empty() && tensor.locations.size() != group.layers.size()) {
      return bad("locations count", tensor.locations.size(),
                 fmt::format("is not the number of layers, {}", group.layers.size()));
    }
    for (const uint64_t bytes :
         {tensor.offset_bytes, tensor.layer_stride_bytes, tensor.page_stride_bytes,
          tensor.part_stride_bytes, tensor.head_stride_bytes, tensor.token_stride_bytes}) {
      if (auto done = limit("offset or stride", bytes, 0, kBytesMax); !done) return done;
    }
    if (auto done = limit("opaque_page_bytes", tensor.opaque_page_bytes, 0, kBytesMax); !done) {
      return done;
    }
    if (static_cast<uint8_t>(tensor.sharding) > static_cast<uint8_t>(Sharding::kReplicated)) {
      return bad("sharding", static_cast<uint32_t>(tensor.sharding), "is no Sharding");
    }
    return group.kind == GroupKind::kState ? state_sizes(tensor) : token_sizes(tensor);
  }

  Result<void> token_sizes(const Tensor& tensor) {
    if (auto done = limit("heads_total", tensor.heads_total, 1, kHeadsMax); !done) return done;
    if (auto done = limit("head_size", tensor.head_size, 1, kHeadsMax); !done) return done;
    if (auto done = limit("parts", tensor.parts, 1, 2); !done) return done;
    if (auto done = limit("blocks count", tensor.blocks.size(), 0, 0); !done) return done;
    if (!heads_of(layout_, tensor)) return uneven("heads_total", tensor.heads_total);
    return {};
  }

  Result<void> state_sizes(const Tensor& tensor) {
    if (auto done = limit("opaque_page_bytes", tensor.opaque_page_bytes, 0, 0); !done) return done;
    if (auto done = limit("blocks count", tensor.blocks.size(), 1, kStateBlocksMax); !done) {
      return done;
    }
    const std::string above = where_;
    std::set<std::string> names;
    for (const StateBlock& block : tensor.blocks) {
      where_ = fmt::format("{}: blocks[{}]", above, &block - tensor.blocks.data());
      if (auto done = name("name", block.name); !done) return done;
      if (!names.insert(block.name).second) return bad("name", block.name, "is used twice");
      if (auto done = limit("lengths count", block.lengths.size(), 1, layout::kAxesMax); !done) {
        return done;
      }
      if (block.strides_bytes.size() != block.lengths.size()) {
        return bad("strides_bytes count", block.strides_bytes.size(),
                   fmt::format("is not the number of lengths, {}", block.lengths.size()));
      }
      for (size_t k = 0; k < block.lengths.size(); ++k) {
        if (auto done = limit("lengths", block.lengths[k], 1, kHeadsMax); !done) return done;
        if (auto done = limit("strides_bytes", block.strides_bytes[k], 0, kBytesMax); !done) {
          return done;
        }
      }
      if (auto done = limit("offset_bytes", block.offset_bytes, 0, kBytesMax); !done) return done;
      if (block.sharded_axis == StateBlock::kNotSharded) continue;
      if (auto done = limit("sharded_axis", block.sharded_axis, 0, block.lengths.size() - 1);
          !done) {
        return done;
      }
      const uint32_t length = block.lengths[block.sharded_axis];
      if (!layout::shard(length, layout_.tp_rank, layout_.tp_size)) {
        return uneven("lengths", length);
      }
    }
    where_ = above;
    return {};
  }

  Error uneven(std::string_view field, uint64_t value) {
    return planner::refuse(
        refusal_, RefusalCode::kUnevenHeads,
        fmt::format("{}: {} {} and tp_size {}: neither divides the other", where_, field, value,
                    layout_.tp_size),
        "run this side with a tensor-parallel size that divides the heads or is a multiple of "
        "them");
  }

  /// Every page of every layer inside its region, and no element on the bytes of another one.
  Result<void> memory(const CacheGroup& group, const Tensor& tensor) {
    const auto blocks = planner::page_blocks(layout_, group, tensor, group.page_tokens);
    if (!blocks) return blocks.error();
    uint64_t page_bytes = 0;
    for (const planner::PageBlock& one : *blocks) {
      layout::Block all = one.block;
      all.axes.push_back({{0, group.pages}, tensor.page_stride_bytes});
      const auto bytes = layout::span_bytes(all);
      if (!bytes || *bytes > kBytesMax) {
        return bad("strides", one.name, "reach past any region");
      }
      if (!layout::has_distinct_elements(all)) {
        return bad("page_stride_bytes", tensor.page_stride_bytes,
                   fmt::format("and the other strides{}{} put two elements on one byte",
                               one.name.empty() ? "" : " of block ", one.name));
      }
      page_bytes = std::max(page_bytes, one.block.offset_bytes + *bytes);
    }
    for (size_t n = 0; n < group.layers.size(); ++n) {
      const TensorLocation at = planner::location_of(tensor, n);
      if (auto done = limit("region", at.region, 0, layout_.region_bytes.size() - 1); !done) {
        return done;
      }
      const uint64_t size = layout_.region_bytes[at.region];
      if (at.offset_bytes > size || page_bytes > size - at.offset_bytes) {
        return bad("offset_bytes", at.offset_bytes,
                   fmt::format("+ {} bytes of layer {} are past region {} of {} bytes", page_bytes,
                               group.layers[n], at.region, size));
      }
    }
    return {};
  }

  const Layout& layout_;
  Refusal* refusal_;
  std::string where_;
  std::set<std::string> group_names_;
};

}  // namespace

Result<void> check(const Layout& layout, Refusal* refusal) {
  return LayoutCheck(layout, refusal).run();
}

Result<uint64_t> place_tensor(Tensor& tensor, const DensePlacement& placement) {
  if (placement.page_tokens == 0) return fail(Errc::kInvalidArgument, "page_tokens: 0");
  if (placement.pages == 0) return fail(Errc::kInvalidArgument, "pages: 0");
  if (placement.layers == 0) return fail(Errc::kInvalidArgument, "layers: 0");
  if (placement.page_align_bytes == 0) return fail(Errc::kInvalidArgument, "page_align_bytes: 0");
  if (tensor.element_bytes == 0 || tensor.head_size == 0 || tensor.parts == 0) {
    return fail(Errc::kInvalidArgument, "element_bytes, head_size or parts: 0");
  }
  const auto heads = heads_of({.tp_rank = placement.tp_rank, .tp_size = placement.tp_size}, tensor);
  if (!heads) return heads.error();
  const uint64_t vector = uint64_t{tensor.head_size} * tensor.element_bytes;
  const bool hnd = placement.order == PageOrder::kHND;
  tensor.head_stride_bytes = hnd ? placement.page_tokens * vector : vector;
  tensor.token_stride_bytes = hnd ? vector : heads->range.count * vector;
  const uint64_t part = heads->range.count * placement.page_tokens * vector;
  const uint64_t align = placement.page_align_bytes;
  const uint64_t together = placement.parts_in_page ? part * tensor.parts : part;
  const uint64_t page = (together + align - 1) / align * align;
  const uint64_t halves = placement.parts_in_page ? 1 : tensor.parts;
  tensor.page_stride_bytes = placement.layers_in_page ? page * placement.layers : page;
  const uint64_t half = page * placement.pages * (placement.layers_in_page ? placement.layers : 1);
  tensor.part_stride_bytes = placement.parts_in_page ? part : half;
  tensor.layer_stride_bytes = placement.layers_in_page ? page : half * halves;
  return page * placement.pages * placement.layers * halves;
}

}  // namespace fabric::kv
