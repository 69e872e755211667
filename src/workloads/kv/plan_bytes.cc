#include "workloads/kv/plan_bytes.h"

#include "base/bytes.h"

// The canonical bytes of a plan are never sent, only hashed. If a new planner
// writes other bytes to other places, they differ, so two versions that would disagree refuse each
// other. A change of this encoding itself needs another kPlanVersion.

namespace fabric::kv::planner {
namespace {

constexpr uint16_t kPlanVersion = 1;

void write_string(ByteWriter& out, const std::string& text) {
  out.u32(static_cast<uint32_t>(text.size()));
  out.text(text);
}

void write_group_plan(ByteWriter& out, const GroupPlan& group) {
  write_string(out, group.name);
  out.u8(static_cast<uint8_t>(group.kind));
  out.u32(group.window_tokens);
  out.u32(group.unit_tokens);
  out.u32(group.source_page_tokens);
  out.u32(group.target_page_tokens);
  out.u32(static_cast<uint32_t>(group.tensors.size()));
  for (const std::string& name : group.tensors) write_string(out, name);
}

void write_slice(ByteWriter& out, const PageSlice& slice) {
  for (const uint32_t value :
       {slice.list, slice.tensor, slice.source_region, slice.target_region, slice.inner_count}) {
    out.u32(value);
  }
  for (const uint64_t value : {slice.source_offset_bytes, slice.target_offset_bytes,
                               slice.source_stride_bytes, slice.target_stride_bytes, slice.bytes,
                               slice.source_inner_stride_bytes, slice.target_inner_stride_bytes}) {
    out.u64(value);
  }
}

void write_staged(ByteWriter& out, const StagedWrite& write) {
  out.u32(write.list);
  out.u64(write.record_offset_bytes);
  out.u64(write.bytes);
  out.u32(static_cast<uint32_t>(write.copies.size()));
  for (const StagedCopy& one : write.copies) {
    for (const uint32_t value : {one.tensor, one.source_region, one.target_region}) out.u32(value);
    for (const uint64_t value :
         {one.source_stride_bytes, one.target_stride_bytes, one.packed_offset_bytes,
          one.copy.source_offset_bytes, one.copy.target_offset_bytes, one.copy.run_bytes}) {
      out.u64(value);
    }
    out.u32(static_cast<uint32_t>(one.copy.loops.size()));
    for (const layout::Loop& loop : one.copy.loops) {
      out.u64(loop.count);
      out.u64(loop.source_stride_bytes);
      out.u64(loop.target_stride_bytes);
    }
  }
}

void write_pair_group(ByteWriter& out, const PairGroup& group) {
  for (const uint32_t value :
       {group.source_group, group.target_group, group.source_pages, group.target_pages}) {
    out.u32(value);
  }
  out.u32(static_cast<uint32_t>(group.lists.size()));
  for (const UnitList& list : group.lists) {
    for (const uint64_t value :
         {list.source_page_step, list.source_unit_step, list.target_page_step,
          list.target_unit_step, list.staging_record_bytes}) {
      out.u64(value);
    }
    out.u32(list.holders);
    out.u32(list.holder);
  }
  out.u32(static_cast<uint32_t>(group.layers.size()));
  for (const LayerSlices& layer : group.layers) {
    out.u32(layer.layer);
    out.u32(layer.slices);
    out.u32(layer.staged);
  }
  for (const PageSlice& slice : group.slices) write_slice(out, slice);
  for (const StagedWrite& write : group.staged) write_staged(out, write);
}

}  // namespace

uint64_t target_hash(const TransferPlan& plan, size_t first) {
  ByteWriter out;
  out.text("FKVP");
  out.u16(kPlanVersion);
  out.u64(plan.model_hash);
  out.u8(plan.options.staging ? 1 : 0);
  out.u8(plan.options.per_token_writes ? 1 : 0);
  out.u32(static_cast<uint32_t>(plan.pairs.size() - first));
  for (size_t n = first; n < plan.pairs.size(); ++n) {
    const PairPlan& pair = plan.pairs[n];
    out.u32(pair.source);
    out.u32(pair.deal_offset);
    out.u32(static_cast<uint32_t>(pair.groups.size()));
    for (const PairGroup& group : pair.groups) {
      write_group_plan(out, plan.groups[group.group]);
      write_pair_group(out, group);
    }
  }
  return layout::hash_bytes(out.view());
}

uint64_t plan_hash(const TransferPlan& plan) {
  ByteWriter out;
  for (const uint64_t hash : plan.target_hashes) out.u64(hash);
  return layout::hash_bytes(out.view());
}

}  // namespace fabric::kv::planner
