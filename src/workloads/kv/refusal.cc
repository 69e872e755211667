#include "workloads/kv/refusal.h"

namespace fabric::kv {

const char* to_string(RefusalCode code) noexcept {
  switch (code) {
    case RefusalCode::kNone:
      return "None";
    case RefusalCode::kBadLayout:
      return "BadLayout";
    case RefusalCode::kTooLarge:
      return "TooLarge";
    case RefusalCode::kSideOrder:
      return "SideOrder";
    case RefusalCode::kContextParallel:
      return "ContextParallel";
    case RefusalCode::kUnevenHeads:
      return "UnevenHeads";
    case RefusalCode::kModelDiffers:
      return "ModelDiffers";
    case RefusalCode::kGroupsDiffer:
      return "GroupsDiffer";
    case RefusalCode::kLayersDiffer:
      return "LayersDiffer";
    case RefusalCode::kRankMissing:
      return "RankMissing";
    case RefusalCode::kKvApartTogether:
      return "KvApartTogether";
    case RefusalCode::kTensorsDiffer:
      return "TensorsDiffer";
    case RefusalCode::kDtypeDiffers:
      return "DtypeDiffers";
    case RefusalCode::kShapeDiffers:
      return "ShapeDiffers";
    case RefusalCode::kOpaquePageDiffers:
      return "OpaquePageDiffers";
    case RefusalCode::kPerTokenWrites:
      return "PerTokenWrites";
    case RefusalCode::kIndexRange:
      return "IndexRange";
  }
  return "?";
}

const char* to_string(GroupKind kind) noexcept {
  switch (kind) {
    case GroupKind::kFull:
      return "full";
    case GroupKind::kWindow:
      return "window";
    case GroupKind::kState:
      return "state";
  }
  return "?";
}

const char* to_string(PageOrder order) noexcept {
  switch (order) {
    case PageOrder::kHND:
      return "HND";
    case PageOrder::kNHD:
      return "NHD";
  }
  return "?";
}

namespace planner {
namespace {

const char* refusal_text(RefusalCode code) {
  switch (code) {
    case RefusalCode::kNone:
      return "no refusal";
    case RefusalCode::kBadLayout:
      return "layout: a field is out of its range";
    case RefusalCode::kTooLarge:
      return "layout: more than the limits of kv_layout.h allow";
    case RefusalCode::kSideOrder:
      return "side: ranks not in the order of (pp_rank, tp_rank)";
    case RefusalCode::kContextParallel:
      return "dcp_size, pcp_size: context parallel";
    case RefusalCode::kUnevenHeads:
      return "heads_total: neither divides tp_size nor the reverse";
    case RefusalCode::kModelDiffers:
      return "model_hash differs";
    case RefusalCode::kGroupsDiffer:
      return "cache groups differ";
    case RefusalCode::kLayersDiffer:
      return "layers differ";
    case RefusalCode::kRankMissing:
      return "prefill: a rank is missing";
    case RefusalCode::kKvApartTogether:
      return "K and V are in one tensor on one side only";
    case RefusalCode::kTensorsDiffer:
      return "tensors differ";
    case RefusalCode::kDtypeDiffers:
      return "dtype or element_bytes differs";
    case RefusalCode::kShapeDiffers:
      return "shapes of a tensor differ";
    case RefusalCode::kOpaquePageDiffers:
      return "opaque_page_bytes: pages cannot be divided";
    case RefusalCode::kPerTokenWrites:
      return "one write for each token: set PlanOptions::staging, or use HND on both sides";
    case RefusalCode::kIndexRange:
      return "page_stride_bytes: indices would not fit in 32 bits";
  }
  return "refused";
}

}  // namespace

Error refusal_error(RefusalCode code) {
  switch (code) {
    case RefusalCode::kNone:
    case RefusalCode::kBadLayout:
    case RefusalCode::kSideOrder:
      return fail(Errc::kInvalidArgument, refusal_text(code));
    case RefusalCode::kTooLarge:
      return fail(Errc::kTooLarge, refusal_text(code));
    default:
      return fail(Errc::kUnsupported, refusal_text(code));
  }
}

}  // namespace planner
}  // namespace fabric::kv
