#pragma once

#include <cstdint>

// The account of the work requests of one queue pair. Exact failover depends on these two classes
// (docs/design/0013-verbs.md), so they need no device and are unit-tested on their own. Both are
// used under the engine's state lock.

namespace fabric::verbs {

/// Receives of an inbound path.
class ReceiveTracker {
 public:
  void post(uint32_t count) noexcept { posted_ += count; }
  void succeed() noexcept { ++completed_; }
  void fail() noexcept {
    ++completed_;
    ++errors_;
  }
  uint32_t outstanding() const noexcept { return static_cast<uint32_t>(posted_ - completed_); }
  bool failed() const noexcept { return errors_ != 0; }

  /// Progress of the drain, after the queue pair was moved to the error state.
  enum class Drain : uint8_t {
    kWait,  ///< some receives have not completed yet
    /// All completed, none with an error: nothing proves yet that the NIC has left the ready state,
    /// and a packet may still be landing. One more receive has to be flushed.
    kNeedsMarker,
    kDone,
  };
  Drain drain() const noexcept {
    if (posted_ != completed_) return Drain::kWait;
    return errors_ == 0 ? Drain::kNeedsMarker : Drain::kDone;
  }

 private:
  uint64_t posted_ = 0, completed_ = 0, errors_ = 0;
};

/// Sends of an outbound path, numbered in posting order; numbers wrap. Only some are signalled: a
/// success covers all requests before it, because RC acknowledges in order. An error covers only
/// its own request: the first error that completes need not belong to the first request lost.
///
/// Invariant: reported <= delivered <= posted, as distances from the first number.
class SendTracker {
 public:
  explicit SendTracker(uint32_t first = 0) noexcept
      : posted_(first), delivered_(first), reported_(first) {}

  /// Numbers the next `count` requests; the first of them is returned.
  uint32_t post(uint32_t count) noexcept {
    const uint32_t first = posted_;
    posted_ += count;
    return first;
  }
  /// ibv_post_send() refused the last `count`: their numbers are used again.
  void unpost(uint32_t count) noexcept { posted_ -= count; }

  void succeed(uint32_t number) noexcept {
    if (!failed_ && is_open(number)) delivered_ = number + 1;
  }
  /// True for the first error. `refused`: the far end refused this request, so it has received all
  /// before it.
  bool fail(uint32_t number, bool refused) noexcept {
    if (failed_) return false;
    failed_ = true;
    if (refused && is_open(number)) delivered_ = number;
    return true;
  }
  /// The next delivered request to report; only if has_delivered().
  uint32_t report_delivered() noexcept { return reported_++; }
  uint32_t next_to_report() const noexcept { return reported_; }
  bool has_delivered() const noexcept { return reported_ != delivered_; }
  /// After a drain: requests that were neither delivered nor reported.
  bool has_unreported() const noexcept { return reported_ != posted_; }
  /// The next request to report as lost; only after all deliveries are reported.
  uint32_t report_lost() noexcept {
    delivered_ = reported_ + 1;
    return reported_++;
  }

  uint32_t next() const noexcept { return posted_; }
  uint32_t outstanding() const noexcept { return posted_ - reported_; }
  bool failed() const noexcept { return failed_; }

 private:
  bool is_open(uint32_t number) const noexcept {
    return number - delivered_ < posted_ - delivered_;
  }
  uint32_t posted_, delivered_, reported_;
  bool failed_ = false;
};

}  // namespace fabric::verbs
