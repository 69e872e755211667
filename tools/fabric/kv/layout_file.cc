#include "layout_file.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "json_fields.h"

namespace fabric::tool {
namespace {

const std::vector<std::string> kKinds = {"full", "window", "state"};
const std::vector<std::string> kShardings = {"heads", "replicated"};
const std::vector<std::string> kOrders = {"HND", "NHD"};

// Form 1: every field of kv::Layout.

kv::StateBlock read_block(JsonFields& in) {
  kv::StateBlock block{.name = in.text("name"),
                       .offset_bytes = in.number("offset_bytes", UINT64_MAX, 0),
                       .lengths = in.numbers32("lengths"),
                       .strides_bytes = in.numbers("strides_bytes", UINT64_MAX),
                       .sharded_axis = in.number32("sharded_axis", kv::StateBlock::kNotSharded)};
  in.end();
  return block;
}

kv::Tensor read_tensor(JsonFields& in) {
  kv::Tensor tensor{.name = in.text("name"),
                    .dtype = in.text("dtype"),
                    .element_bytes = in.number32("element_bytes"),
                    .region = in.number32("region", 0),
                    .offset_bytes = in.number("offset_bytes", UINT64_MAX, 0),
                    .layer_stride_bytes = in.number("layer_stride_bytes", UINT64_MAX, 0),
                    .page_stride_bytes = in.number("page_stride_bytes", UINT64_MAX),
                    .sharding = static_cast<kv::Sharding>(in.choice("sharding", kShardings, 0)),
                    .heads_total = in.number32("heads_total", 0),
                    .head_size = in.number32("head_size", 0),
                    .parts = in.number32("parts", 1),
                    .part_stride_bytes = in.number("part_stride_bytes", UINT64_MAX, 0),
                    .head_stride_bytes = in.number("head_stride_bytes", UINT64_MAX, 0),
                    .token_stride_bytes = in.number("token_stride_bytes", UINT64_MAX, 0),
                    .opaque_page_bytes = in.number("opaque_page_bytes", UINT64_MAX, 0)};
  if (in.has("locations")) {
    for (JsonFields& one : in.objects("locations")) {
      tensor.locations.push_back({one.number32("region"), one.number("offset_bytes", UINT64_MAX)});
      one.end();
    }
  }
  if (in.has("blocks")) {
    for (JsonFields& one : in.objects("blocks")) tensor.blocks.push_back(read_block(one));
  }
  in.end();
  return tensor;
}

/// What both forms say about a group, its tensors excepted.
kv::CacheGroup read_group_head(JsonFields& in) {
  return {.name = in.text("name"),
          .kind = static_cast<kv::GroupKind>(in.choice("kind", kKinds, 0)),
          .window_tokens = in.number32("window_tokens", 0),
          .page_tokens = in.number32("page_tokens", 0),
          .pages = in.number32("pages")};
}

kv::Layout read_rank(JsonFields& in, uint64_t model_hash) {
  kv::Layout layout{.model_hash = model_hash,
                    .tp_rank = in.number32("tp_rank", 0),
                    .tp_size = in.number32("tp_size", 1),
                    .pp_rank = in.number32("pp_rank", 0),
                    .pp_size = in.number32("pp_size", 1),
                    .dcp_size = in.number32("dcp_size", 1),
                    .pcp_size = in.number32("pcp_size", 1),
                    .region_bytes = in.numbers("region_bytes", UINT64_MAX)};
  for (JsonFields& one : in.objects("groups")) {
    kv::CacheGroup group = read_group_head(one);
    group.layers = one.numbers32("layers");
    for (JsonFields& tensor : one.objects("tensors")) group.tensors.push_back(read_tensor(tensor));
    one.end();
    layout.groups.push_back(std::move(group));
  }
  in.end();
  return layout;
}

// Form 2: dense caches, placed one after the other in one region.

struct DenseTensor {
  kv::Tensor tensor{};
  std::string path{};
};

struct DenseGroup {
  kv::CacheGroup head{};
  kv::DensePlacement placement{};
  std::vector<DenseTensor> tensors{};
};

std::vector<uint32_t> read_layers(JsonFields& in) {
  if (!in.any("layers").is_number()) return in.numbers32("layers");
  std::vector<uint32_t> layers(in.number("layers", kv::kLayersMax));
  for (uint32_t n = 0; n < layers.size(); ++n) layers[n] = n;
  return layers;
}

kv::Tensor read_dense_tensor(JsonFields& in, kv::GroupKind kind) {
  kv::Tensor tensor{.name = in.text("name"),
                    .dtype = in.text("dtype"),
                    .element_bytes = in.number32("element_bytes")};
  if (kind == kv::GroupKind::kState) {
    for (JsonFields& one : in.objects("blocks")) {
      tensor.blocks.push_back(
          {.name = one.text("name"),
           .lengths = one.numbers32("lengths"),
           .sharded_axis = one.number32("sharded_axis", kv::StateBlock::kNotSharded)});
      one.end();
    }
  } else {
    tensor.sharding = static_cast<kv::Sharding>(in.choice("sharding", kShardings, 0));
    tensor.heads_total = in.number32("heads_total", 1);
    tensor.head_size = in.number32("head_size");
    tensor.parts = in.number32("parts", 1);
  }
  in.end();
  return tensor;
}

DenseGroup read_dense_group(JsonFields& in) {
  DenseGroup group{.head = read_group_head(in)};
  group.head.layers = read_layers(in);
  group.placement = {.order = static_cast<kv::PageOrder>(in.choice("order", kOrders, 0)),
                     .page_tokens = group.head.page_tokens,
                     .pages = group.head.pages,
                     .layers_in_page = in.flag("layers_in_page", false),
                     .parts_in_page = in.flag("parts_in_page", true),
                     .page_align_bytes = in.number("page_align_bytes", UINT32_MAX, 1)};
  size_t n = 0;
  for (JsonFields& one : in.objects("tensors")) {
    group.tensors.push_back({read_dense_tensor(one, group.head.kind),
                             fmt::format("{}[{}]", in.path_of("tensors"), n++)});
  }
  in.end();
  return group;
}

/// Row-major blocks, one after the other. Returns the bytes that all layers take.
uint64_t place_state(kv::Tensor& tensor, const kv::Layout& rank, const kv::CacheGroup& group,
                     const std::string& path) {
  uint64_t page = 0;
  for (kv::StateBlock& block : tensor.blocks) {
    block.offset_bytes = page;
    block.strides_bytes.resize(block.lengths.size());
    uint64_t stride = tensor.element_bytes;
    for (size_t k = block.lengths.size(); k > 0; --k) {
      uint64_t here = block.lengths[k - 1];
      if (k - 1 == block.sharded_axis) {
        const auto part = layout::shard(here, rank.tp_rank, rank.tp_size);
        if (!part) throw BadField(path, fmt::format("block {}: {}", block.name, part.error().what));
        here = part->range.count;
      }
      block.strides_bytes[k - 1] = stride;
      if (__builtin_mul_overflow(stride, here, &stride)) throw BadField(path, "is too large");
    }
    if (__builtin_add_overflow(page, stride, &page)) throw BadField(path, "is too large");
  }
  tensor.page_stride_bytes = page;
  tensor.layer_stride_bytes = page * group.pages;
  return tensor.layer_stride_bytes * group.layers.size();
}

kv::CacheGroup place_group(const DenseGroup& dense, kv::Layout& rank) {
  kv::CacheGroup group = dense.head;
  // Stages take equal shares of the layers, in their order.
  const size_t all = dense.head.layers.size();
  const size_t first = all * rank.pp_rank / rank.pp_size;
  const size_t end = all * (rank.pp_rank + 1) / rank.pp_size;
  group.layers.assign(dense.head.layers.begin() + static_cast<std::ptrdiff_t>(first),
                      dense.head.layers.begin() + static_cast<std::ptrdiff_t>(end));
  if (group.layers.empty()) return group;
  for (const DenseTensor& one : dense.tensors) {
    kv::Tensor tensor = one.tensor;
    tensor.offset_bytes = rank.region_bytes[0];
    if (group.kind == kv::GroupKind::kState) {
      rank.region_bytes[0] += place_state(tensor, rank, group, one.path);
    } else {
      kv::DensePlacement placement = dense.placement;
      placement.tp_rank = rank.tp_rank;
      placement.tp_size = rank.tp_size;
      placement.layers = static_cast<uint32_t>(group.layers.size());
      const auto bytes = place_tensor(tensor, placement);
      if (!bytes) throw BadField(one.path, bytes.error().what);
      rank.region_bytes[0] += *bytes;
    }
    group.tensors.push_back(std::move(tensor));
  }
  return group;
}

/// 1 to kRanksMax: they are counted in loops here, before check() sees them.
uint32_t read_size(JsonFields& in, const std::string& name) {
  const auto size = static_cast<uint32_t>(in.number(name, kv::kRanksMax, 1));
  if (size == 0) throw BadField(in.path_of(name), "is 0");
  return size;
}

kv::Side read_dense(JsonFields& in, uint64_t model_hash) {
  kv::Layout common{.model_hash = model_hash,
                    .tp_size = read_size(in, "tp_size"),
                    .pp_size = read_size(in, "pp_size"),
                    .dcp_size = in.number32("dcp_size", 1),
                    .pcp_size = in.number32("pcp_size", 1),
                    .region_bytes = {0}};
  if (common.tp_size * common.pp_size > kv::kSideRanksMax) {
    throw BadField(in.path_of("tp_size"),
                   fmt::format("x pp_size is more than {} ranks", kv::kSideRanksMax));
  }
  std::vector<DenseGroup> groups;
  for (JsonFields& one : in.objects("groups")) groups.push_back(read_dense_group(one));
  in.end();
  kv::Side side;
  for (uint32_t pp = 0; pp < common.pp_size; ++pp) {
    for (uint32_t tp = 0; tp < common.tp_size; ++tp) {
      kv::Layout rank = common;
      rank.tp_rank = tp;
      rank.pp_rank = pp;
      for (const DenseGroup& group : groups) {
        kv::CacheGroup placed = place_group(group, rank);
        if (!placed.layers.empty()) rank.groups.push_back(std::move(placed));
      }
      side.ranks.push_back(std::move(rank));
    }
  }
  return side;
}

}  // namespace

kv::Side read_side(const std::string& file_name) {
  std::ifstream file(file_name);
  if (!file) throw std::runtime_error(fmt::format("cannot read {}", file_name));
  nlohmann::json parsed;
  try {
    parsed = nlohmann::json::parse(file);
  } catch (const nlohmann::json::parse_error& error) {
    throw std::runtime_error(fmt::format("no JSON at byte {} of {}", error.byte, file_name));
  }
  JsonFields in(parsed, "");
  const uint64_t model_hash = in.number("model_hash", UINT64_MAX, 0);
  if (!in.has("ranks")) return read_dense(in, model_hash);
  kv::Side side;
  for (JsonFields& one : in.objects("ranks")) side.ranks.push_back(read_rank(one, model_hash));
  in.end();
  return side;
}

}  // namespace fabric::tool
