#include <fabric/kv.h>

namespace fabric::kv {

const char* to_string(RefuseCode code) noexcept {
  switch (code) {
    case RefuseCode::kNone:
      return "None";
    case RefuseCode::kCapacity:
      return "Capacity";
    case RefuseCode::kDraining:
      return "Draining";
    case RefuseCode::kNotOffered:
      return "NotOffered";
    case RefuseCode::kDuplicate:
      return "Duplicate";
    case RefuseCode::kLayout:
      return "Layout";
    case RefuseCode::kPlanDiffers:
      return "PlanDiffers";
    case RefuseCode::kGrants:
      return "Grants";
    case RefuseCode::kPages:
      return "Pages";
    case RefuseCode::kBadMessage:
      return "BadMessage";
    case RefuseCode::kUnknownDecoder:
      return "UnknownDecoder";
  }
  return "?";
}

const char* to_string(FailCode code) noexcept {
  switch (code) {
    case FailCode::kNone:
      return "None";
    case FailCode::kRefused:
      return "Refused";
    case FailCode::kNotDelivered:
      return "NotDelivered";
    case FailCode::kPeerLost:
      return "PeerLost";
    case FailCode::kStalled:
      return "Stalled";
    case FailCode::kDeadline:
      return "Deadline";
    case FailCode::kPrefillFailed:
      return "PrefillFailed";
    case FailCode::kPoisoned:
      return "Poisoned";
    case FailCode::kRevoked:
      return "Revoked";
  }
  return "?";
}

const char* to_string(PageState state) noexcept {
  switch (state) {
    case PageState::kUnleased:
      return "Unleased";
    case PageState::kInFlight:
      return "InFlight";
    case PageState::kReadable:
      return "Readable";
    case PageState::kFencing:
      return "Fencing";
    case PageState::kQuarantined:
      return "Quarantined";
  }
  return "?";
}

const char* to_string(DecodeEvent::Kind kind) noexcept {
  switch (kind) {
    case DecodeEvent::Kind::kAccepted:
      return "Accepted";
    case DecodeEvent::Kind::kLayer:
      return "Layer";
    case DecodeEvent::Kind::kComplete:
      return "Complete";
    case DecodeEvent::Kind::kMayWrite:
      return "MayWrite";
    case DecodeEvent::Kind::kFailed:
      return "Failed";
    case DecodeEvent::Kind::kCancelled:
      return "Cancelled";
    case DecodeEvent::Kind::kPagesFree:
      return "PagesFree";
    case DecodeEvent::Kind::kQuarantined:
      return "Quarantined";
    case DecodeEvent::Kind::kDrained:
      return "Drained";
  }
  return "?";
}

const char* to_string(PrefillEvent::Kind kind) noexcept {
  switch (kind) {
    case PrefillEvent::Kind::kDispatched:
      return "Dispatched";
    case PrefillEvent::Kind::kRefused:
      return "Refused";
    case PrefillEvent::Kind::kCancelled:
      return "Cancelled";
    case PrefillEvent::Kind::kDecoderLost:
      return "DecoderLost";
    case PrefillEvent::Kind::kSourceFree:
      return "SourceFree";
    case PrefillEvent::Kind::kDrained:
      return "Drained";
  }
  return "?";
}

}  // namespace fabric::kv
