#include "workloads/common/lease.h"

namespace fabric::workloads {

const char* to_string(LeaseState state) noexcept {
  switch (state) {
    case LeaseState::kIdle:
      return "Idle";
    case LeaseState::kAsked:
      return "Asked";
    case LeaseState::kFlowing:
      return "Flowing";
    case LeaseState::kFull:
      return "Full";
    case LeaseState::kStopping:
      return "Stopping";
    case LeaseState::kDraining:
      return "Draining";
    case LeaseState::kFencing:
      return "Fencing";
    case LeaseState::kQuarantined:
      return "Quarantined";
    case LeaseState::kQuiet:
      return "Quiet";
  }
  return "?";
}

namespace {
constexpr LeaseEffects kStale{.stale = true};
}  // namespace

LeaseEffects Lease::enter_quiet() noexcept {
  state_ = LeaseState::kQuiet;
  return {.disarm = armed_, .quiet = true};
}

LeaseEffects Lease::enter_fencing() noexcept {
  state_ = LeaseState::kFencing;
  return {.disarm = armed_, .fence = true};
}

void Lease::start(uint64_t total) noexcept {
  if (state_ != LeaseState::kIdle) return;
  state_ = LeaseState::kAsked;
  total_ = total;
  armed_ = true;
}

LeaseEffects Lease::dispatch_failed(bool not_delivered) noexcept {
  switch (state_) {
    case LeaseState::kAsked:
      return not_delivered ? enter_quiet() : enter_fencing();
    case LeaseState::kStopping:
      // Of unknown fate: the answer to the cancel decides, because messages keep their order.
      return not_delivered ? enter_quiet() : LeaseEffects{};
    default:
      return kStale;
  }
}

LeaseEffects Lease::accepted() noexcept {
  if (state_ != LeaseState::kAsked) return kStale;
  state_ = LeaseState::kFlowing;
  return {};
}

LeaseEffects Lease::refused() noexcept {
  if (!in_flight() && state_ != LeaseState::kStopping) return kStale;
  return enter_quiet();
}

LeaseEffects Lease::counted(bool final) noexcept {
  armed_ = false;
  full_ = true;
  landed_ = total_;
  switch (state_) {
    case LeaseState::kAsked:
    case LeaseState::kFlowing:
    case LeaseState::kStopping: {
      const bool complete = in_flight();
      state_ = LeaseState::kFull;
      LeaseEffects effects;
      if (final || said_quiet_) effects = enter_quiet();
      effects.complete = complete;
      return effects;
    }
    case LeaseState::kDraining:
      return enter_quiet();
    default:
      return kStale;
  }
}

LeaseEffects Lease::poisoned() noexcept {
  armed_ = false;
  poisoned_ = true;
  switch (state_) {
    case LeaseState::kAsked:
    case LeaseState::kFlowing:
      state_ = LeaseState::kStopping;
      return {.send_cancel = true};
    case LeaseState::kStopping:
      return {};
    case LeaseState::kDraining:
      return enter_fencing();
    default:
      return kStale;
  }
}

LeaseEffects Lease::expectation_ended() noexcept {
  armed_ = false;
  return {.drain = state_ == LeaseState::kDraining};
}

LeaseEffects Lease::stop() noexcept {
  if (state_ == LeaseState::kIdle) return enter_quiet();
  if (!in_flight()) return kStale;
  state_ = LeaseState::kStopping;
  return {.send_cancel = true, .disarm = armed_};
}

LeaseEffects Lease::after_confirm() noexcept {
  state_ = LeaseState::kDraining;
  // While the expectation has not reported, it may have been met and have taken the counts.
  return {.disarm = armed_, .drain = !armed_};
}

LeaseEffects Lease::confirmed(uint64_t landed, uint64_t unknown) noexcept {
  switch (state_) {
    case LeaseState::kAsked:
    case LeaseState::kFlowing:
    case LeaseState::kStopping:
      if (landed == kAll) landed = total_;
      if (unknown > 0 || poisoned_ || landed > total_) return enter_fencing();
      landed_ = landed;
      return after_confirm();
    case LeaseState::kFull:
      return quiet(unknown);
    default:
      return kStale;
  }
}

LeaseEffects Lease::counts(uint64_t here) noexcept {
  if (state_ != LeaseState::kDraining || armed_) return kStale;
  if (here > landed_) return enter_fencing();
  if (here < landed_) return {};
  return enter_quiet();
}

LeaseEffects Lease::quiet(uint64_t unknown) noexcept {
  switch (state_) {
    case LeaseState::kFull:
      return unknown == 0 ? enter_quiet() : enter_fencing();
    case LeaseState::kAsked:
    case LeaseState::kFlowing:
    case LeaseState::kStopping:
      if (unknown > 0) return enter_fencing();
      said_quiet_ = true;
      return {};
    default:
      return kStale;
  }
}

LeaseEffects Lease::cancel_failed() noexcept {
  if (state_ != LeaseState::kStopping) return kStale;
  return enter_fencing();
}

LeaseEffects Lease::expired() noexcept {
  switch (state_) {
    case LeaseState::kStopping:
    case LeaseState::kDraining:
    case LeaseState::kFull:
      return enter_fencing();
    default:
      return kStale;
  }
}

LeaseEffects Lease::peer_lost() noexcept {
  if (state_ == LeaseState::kIdle) return enter_quiet();
  if (state_ >= LeaseState::kFencing) return kStale;
  return enter_fencing();
}

LeaseEffects Lease::fence_begun() noexcept { return peer_lost(); }

LeaseEffects Lease::fence_proved() noexcept {
  if (state_ != LeaseState::kFencing && state_ != LeaseState::kQuarantined) return kStale;
  return enter_quiet();
}

LeaseEffects Lease::fence_unproved() noexcept {
  if (state_ != LeaseState::kFencing) return kStale;
  state_ = LeaseState::kQuarantined;
  return {};
}

}  // namespace fabric::workloads
