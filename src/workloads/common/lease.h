#pragma once

#include <cstdint>

namespace fabric::workloads {

/// Where one (request, source) is, seen from the owner of the target memory.
enum class LeaseState : uint8_t {
  kIdle,         ///< reserved, nothing sent
  kAsked,        ///< the source may have the request
  kFlowing,      ///< the source has it
  kFull,         ///< all counts are here; bytes may land once more until the source is quiet
  kStopping,     ///< the source was asked to stop
  kDraining,     ///< the source has stopped; counts that it confirmed are still on the way
  kFencing,      ///< a proof has been asked for
  kQuarantined,  ///< the proof did not come in time
  kQuiet,        ///< no write can land any more
};
const char* to_string(LeaseState state) noexcept;

/// What the owner has to do after an event.
struct LeaseEffects {
  bool send_cancel = false;
  bool disarm = false;    ///< end the armed expectation; its report comes as expectation_ended()
  bool fence = false;     ///< get the proof: revoke the grant, or fence the peer if it is lost
  bool complete = false;  ///< everything may be read
  bool drain = false;     ///< compare the counts with landed(), now and when they change
  bool quiet = false;     ///< kQuiet was entered: the memory belongs to its owner again
  bool stale = false;     ///< the event has no meaning in this state
};

/// The right to write into memory, lent to one source for one request, and how it ends. A pure
/// state machine: events in, effects out, no engine. Whatever happens, the memory comes back by
/// proof (kQuiet), once.
///
/// | state | event | next | effects |
/// | --- | --- | --- | --- |
/// | Idle | start | Asked | |
/// | Idle | stop, peer lost | Quiet | quiet: nothing was sent |
/// | Asked, Stopping | dispatch not delivered | Quiet | disarm, quiet: nothing can come |
/// | Asked | dispatch of unknown fate | Fencing | disarm, fence: it may have arrived |
/// | Asked, Flowing, Stopping | refused | Quiet | disarm, quiet: a source refuses before it writes
/// | | Asked | accepted | Flowing | | | Asked, Flowing | counted | Full; Quiet if the count is
/// final or the source is quiet | complete | | Asked, Flowing | poisoned | Stopping | send_cancel;
/// the answer leads to Fencing | | Asked, Flowing | stop | Stopping | disarm, send_cancel | |
/// Asked, Flowing | confirmed: it failed by itself | as Stopping | disarm | | Asked, Flowing,
/// Stopping | quiet of unknown writes | Fencing | disarm, fence | | Stopping | counted | Full or
/// Quiet, as above | everything is here; not complete | | Stopping | confirmed(l, 0) | Draining |
/// drain, once the expectation has ended | | Stopping | confirmed(l, u > 0), or poisoned, or l past
/// the total | Fencing | fence | | Stopping | cancel not delivered | Fencing | fence | | Draining |
/// counts = l, or counted | Quiet | quiet | | Draining | counts > l, poisoned | Fencing | fence:
/// the number was wrong | | Full | quiet(0), confirmed(l, 0) | Quiet | quiet | | Full | quiet(u >
/// 0), confirmed(l, u > 0) | Fencing | fence; the request itself goes on | | Stopping, Draining,
/// Full | expired | Fencing | fence | | Asked, Flowing, Full, Stopping, Draining | peer lost, fence
/// begun | Fencing | disarm, fence | | Fencing | fence proved | Quiet | quiet | | Fencing | fence
/// unproved | Quarantined | | | Quarantined | fence proved | Quiet | quiet | | any other | | the
/// same | stale |
///
/// Threads: one at a time.
class Lease {
 public:
  static constexpr uint64_t kAll = UINT64_MAX;  ///< of confirmed(): everything that was asked for

  /// `total`: the counts that make it full. The expectation is armed from now on.
  void start(uint64_t total) noexcept;
  LeaseEffects dispatch_failed(bool not_delivered) noexcept;
  LeaseEffects accepted() noexcept;
  LeaseEffects refused() noexcept;
  /// The expectation was met. `final`: counted bytes never land again.
  LeaseEffects counted(bool final) noexcept;
  /// The expectation failed: the fate of a write under its key is unknown.
  LeaseEffects poisoned() noexcept;
  /// The expectation ended without being met, after `disarm` or with its peer.
  LeaseEffects expectation_ended() noexcept;
  LeaseEffects stop() noexcept;
  /// The source has stopped: `landed` of its writes are certain, the fate of `unknown` is not
  /// known.
  LeaseEffects confirmed(uint64_t landed, uint64_t unknown) noexcept;
  /// In kDraining: how many counts are here.
  LeaseEffects counts(uint64_t here) noexcept;
  /// The source has completed all its writes.
  LeaseEffects quiet(uint64_t unknown) noexcept;
  LeaseEffects cancel_failed() noexcept;
  LeaseEffects expired() noexcept;
  LeaseEffects peer_lost() noexcept;
  /// A fence that covers this lease was begun for another one.
  LeaseEffects fence_begun() noexcept;
  LeaseEffects fence_proved() noexcept;
  LeaseEffects fence_unproved() noexcept;

  LeaseState state() const noexcept { return state_; }
  uint64_t total() const noexcept { return total_; }
  /// Writes that landed, as far as known: by the count, or as the source confirmed.
  uint64_t landed() const noexcept { return landed_; }
  bool full() const noexcept { return full_; }  ///< all counts were here, at whatever time
  /// The source has said what landed, or is not asked any more.
  bool settled() const noexcept {
    return state_ == LeaseState::kFull || state_ > LeaseState::kStopping;
  }
  bool in_flight() const noexcept {
    return state_ == LeaseState::kAsked || state_ == LeaseState::kFlowing;
  }

 private:
  LeaseEffects enter_quiet() noexcept;
  LeaseEffects enter_fencing() noexcept;
  LeaseEffects after_confirm() noexcept;

  LeaseState state_ = LeaseState::kIdle;
  bool armed_ = false;     ///< the expectation has not reported yet
  bool poisoned_ = false;  ///< the key proves nothing any more
  bool said_quiet_ =
      false;  ///< quiet(0) came, perhaps before the counts: messages may overtake them
  bool full_ = false;
  uint64_t total_ = 0;
  uint64_t landed_ = 0;
};

}  // namespace fabric::workloads
