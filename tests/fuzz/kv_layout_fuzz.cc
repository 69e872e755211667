#include <algorithm>

#include <fabric/kv_plan.h>

#include "fuzz/fuzz_helpers.h"

// Layouts come from peers. What decodes is canonical, and a plan between two such sides never
// leaves their regions, whatever the strides and counts are.

using namespace fabric;

namespace {

/// The end of the last unit's last byte, on one side.
uint64_t last_byte(uint32_t pages, uint32_t units, uint64_t page_step, uint64_t unit_step,
                   uint64_t stride) {
  return ((pages - uint64_t{1}) * page_step + (units - uint64_t{1}) * unit_step) * stride;
}

void expect_in_regions(const kv::TransferPlan& plan, const kv::Side& side) {
  for (const kv::PairPlan& pair : plan.pairs) {
    for (const kv::PairGroup& group : pair.groups) {
      const kv::GroupPlan& described = plan.groups[group.group];
      const uint32_t unit = std::max(1u, described.unit_tokens);
      for (const kv::PageSlice& slice : group.slices) {
        const kv::UnitList& list = group.lists[slice.list];
        const uint64_t inner = slice.inner_count - uint64_t{1};
        const uint64_t source =
            slice.source_offset_bytes +
            last_byte(group.source_pages, std::max(1u, described.source_page_tokens / unit),
                      list.source_page_step, list.source_unit_step, slice.source_stride_bytes) +
            inner * slice.source_inner_stride_bytes + slice.bytes;
        const uint64_t target =
            slice.target_offset_bytes +
            last_byte(group.target_pages, std::max(1u, described.target_page_tokens / unit),
                      list.target_page_step, list.target_unit_step, slice.target_stride_bytes) +
            inner * slice.target_inner_stride_bytes + slice.bytes;
        FABRIC_CHECK(source <= side.ranks[pair.source].region_bytes[slice.source_region],
                     "a slice past its source region");
        FABRIC_CHECK(target <= side.ranks[pair.target].region_bytes[slice.target_region],
                     "a slice past its target region");
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::input(data, size);
  kv::Side side;
  if (auto layout = kv::decode_layout(bytes)) {
    FABRIC_CHECK(std::ranges::equal(*kv::encode(*layout), bytes), "not canonical");
    side.ranks.push_back(*std::move(layout));
  } else if (auto many = kv::decode_side(bytes)) {
    FABRIC_CHECK(std::ranges::equal(*kv::encode(*many), bytes), "not canonical");
    side = *std::move(many);
  } else {
    return 0;
  }
  for (const bool staging : {false, true}) {
    kv::Refusal refusal;
    const auto plan = kv::plan(side, side, {.staging = staging}, &refusal);
    if (plan) {
      expect_in_regions(*plan, side);
    } else {
      FABRIC_CHECK(refusal.code != kv::RefusalCode::kNone, "refused without a reason");
    }
  }
  return 0;
}
