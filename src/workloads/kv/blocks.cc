#include "workloads/kv/blocks.h"

namespace fabric::kv {

Result<layout::ShardRange> heads_of(const Layout& layout, const Tensor& tensor) {
  if (tensor.sharding == Sharding::kReplicated) {
    if (tensor.heads_total == 0) return fail(Errc::kInvalidArgument, "heads_total: 0");
    return layout::ShardRange{
        .range = {0, tensor.heads_total}, .replicas = layout.tp_size, .replica = layout.tp_rank};
  }
  return layout::shard(tensor.heads_total, layout.tp_rank, layout.tp_size);
}

namespace planner {
namespace {

Result<PageBlock> token_block(const Layout& layout, const Tensor& tensor, uint32_t tokens) {
  const auto heads = heads_of(layout, tensor);
  if (!heads) return heads.error();
  PageBlock out{.replicas = heads->replicas, .replica = heads->replica};
  if (tensor.opaque_page_bytes != 0) {
    out.block.element_bytes = tensor.opaque_page_bytes;
    return out;
  }
  out.block.axes = {{{0, tensor.parts}, tensor.part_stride_bytes},
                    {heads->range, tensor.head_stride_bytes},
                    {{0, tokens}, tensor.token_stride_bytes}};
  out.block.element_bytes = uint64_t{tensor.head_size} * tensor.element_bytes;
  return out;
}

Result<PageBlock> state_block(const Layout& layout, const Tensor& tensor,
                              const StateBlock& described) {
  PageBlock out{
      .name = described.name,
      .block = {.offset_bytes = described.offset_bytes, .element_bytes = tensor.element_bytes},
      .replicas = layout.tp_size,
      .replica = layout.tp_rank};
  for (uint32_t k = 0; k < described.lengths.size(); ++k) {
    layout::IndexRange range{0, described.lengths[k]};
    if (k == described.sharded_axis) {
      const auto part = layout::shard(described.lengths[k], layout.tp_rank, layout.tp_size);
      if (!part) return part.error();
      range = part->range;
      out.replicas = part->replicas;
      out.replica = part->replica;
    }
    out.block.axes.push_back({range, described.strides_bytes[k]});
  }
  return out;
}

}  // namespace

Result<std::vector<PageBlock>> page_blocks(const Layout& layout, const CacheGroup& group,
                                           const Tensor& tensor, uint32_t tokens) {
  std::vector<PageBlock> out;
  if (group.kind != GroupKind::kState) {
    auto block = token_block(layout, tensor, tokens);
    if (!block) return block.error();
    out.push_back(*std::move(block));
    return out;
  }
  for (const StateBlock& described : tensor.blocks) {
    auto block = state_block(layout, tensor, described);
    if (!block) return block.error();
    out.push_back(*std::move(block));
  }
  return out;
}

TensorLocation location_of(const Tensor& tensor, size_t n) {
  if (!tensor.locations.empty()) return tensor.locations[n];
  return {tensor.region, tensor.offset_bytes + n * tensor.layer_stride_bytes};
}

}  // namespace planner
}  // namespace fabric::kv
