#pragma once

#include <cstdint>

namespace fabric::workloads {

/// The state of one (request, source) pair, as the owner of the target memory knows it.
enum class LeaseState : uint8_t {
  kIdle,         ///< reserved, nothing sent
  kAsked,        ///< the source may have the request
  kFlowing,      ///< the source has it
  kFull,         ///< all counts arrived; a byte may still be rewritten until the source is quiet
  kStopping,     ///< a cancel was sent to the source
  kDraining,     ///< the source has stopped; counts that it confirmed are still in flight
  kFencing,      ///< a revocation or a fence is outstanding
  kQuarantined,  ///< the proof did not come in time
  kQuiet,        ///< no write can land any more
};
const char* to_string(LeaseState state) noexcept;

/// What the owner has to do after an event.
struct LeaseEffects {
  bool send_cancel = false;
  bool disarm = false;    ///< end the armed expectation; its report comes as expectation_ended()
  bool fence = false;     ///< obtain the proof: revoke the grant, or fence a lost peer
  bool complete = false;  ///< all of it may be read
  bool drain = false;     ///< compare the counts with landed(), now and when they change
  bool quiet = false;     ///< kQuiet was entered: the owner may reuse the memory
  bool stale = false;     ///< the event has no meaning in this state
};

/// A lease of target memory: one source may write there for one request. A pure state machine:
/// events in, effects out, no engine. However a request ends, its memory is returned exactly once,
/// and only after proof that no write can land there any more (kQuiet). `l` and `u`: writes that
/// landed, and writes of unknown fate, as the source reports them.
///
// clang-format off
/// | state                    | event                     | next        | effects              |
/// | ------------------------ | ------------------------- | ----------- | -------------------- |
/// | Idle                     | start                     | Asked       |                      |
/// | Idle                     | stop, peer lost           | Quiet       | quiet                |
/// | Asked, Stopping          | dispatch not delivered    | Quiet       | disarm, quiet        |
/// | Asked                    | dispatch of unknown fate  | Fencing     | disarm, fence (1)    |
/// | Asked, Flowing, Stopping | refused                   | Quiet       | disarm, quiet (2)    |
/// | Asked                    | accepted                  | Flowing     |                      |
/// | Asked, Flowing           | counted                   | Full (3)    | complete             |
/// | Asked, Flowing           | poisoned                  | Stopping    | send_cancel (4)      |
/// | Asked, Flowing           | stop                      | Stopping    | disarm, send_cancel  |
/// | Asked, Flowing           | confirmed: source failed  | as Stopping | disarm               |
/// | Asked, Flowing, Stopping | quiet(u > 0)              | Fencing     | disarm, fence        |
/// | Stopping                 | counted                   | Full (3)    |                      |
/// | Stopping                 | confirmed(l, 0)           | Draining    | drain, once disarmed |
/// | Stopping                 | confirmed(l, u > 0)       | Fencing     | fence                |
/// | Stopping                 | confirmed(l > total, 0)   | Fencing     | fence                |
/// | Stopping                 | cancel not delivered      | Fencing     | fence                |
/// | Draining                 | counts = l, counted       | Quiet       | quiet                |
/// | Draining                 | counts > l, poisoned      | Fencing     | fence: l was wrong   |
/// | Full                     | quiet(0), confirmed(l, 0) | Quiet       | quiet                |
/// | Full                     | quiet(u > 0)              | Fencing     | fence (5)            |
/// | Full                     | confirmed(l, u > 0)       | Fencing     | fence (5)            |
/// | Stopping, Draining, Full | expired                   | Fencing     | fence                |
/// | Asked ... Draining       | peer lost, fence begun    | Fencing     | disarm, fence        |
/// | Fencing                  | fence proved              | Quiet       | quiet                |
/// | Fencing                  | fence unproved            | Quarantined |                      |
/// | Quarantined              | fence proved              | Quiet       | quiet                |
/// | any other                |                           | the same    | stale                |
// clang-format on
///
/// (1) The source may have received it. (2) A source refuses before it writes. (3) Quiet instead,
/// if the count is final or quiet(0) has arrived. (4) The counts prove nothing any more, so
/// confirmed() leads to Fencing. (5) The request goes on.
///
/// Threads: one at a time.
class Lease {
 public:
  static constexpr uint64_t kAll = UINT64_MAX;  ///< in confirmed(): all requested writes

  /// `total`: the counts that make it full. The expectation counts as armed from now on.
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
  /// In kDraining: how many counts have arrived.
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
  bool full() const noexcept { return full_; }  ///< all counts have arrived, in time or late
  /// landed() is final: by the count, by the source's report, or because no report is awaited.
  bool landed_known() const noexcept {
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
  bool armed_ = false;       ///< the expectation has not reported yet
  bool poisoned_ = false;    ///< counts under the key prove nothing any more
  bool said_quiet_ = false;  ///< quiet(0) arrived, perhaps before the counts: messages may overtake
  bool full_ = false;
  uint64_t total_ = 0;
  uint64_t landed_ = 0;
};

}  // namespace fabric::workloads
