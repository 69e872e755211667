#pragma once

#include <cstdint>

// What is known of the requests of one queue pair. The failover protocol stands on these two sums
// (docs/design/0013-verbs.md), so they are apart from everything that needs a device.

namespace fabric::verbs {

/// Receives of an inbound end.
class ReceiveAccount {
 public:
  void post(uint32_t count) noexcept { posted_ += count; }
  void succeed() noexcept { ++completed_; }
  void fail() noexcept {
    ++completed_;
    ++errors_;
  }
  uint32_t outstanding() const noexcept { return static_cast<uint32_t>(posted_ - completed_); }
  bool failed() const noexcept { return errors_ != 0; }

  /// After the queue pair was moved to the error state.
  enum class Drain : uint8_t {
    kWait,
    /// All came back, and none by the error: that the state has changed shows nowhere yet, and a
    /// packet may still be landing. One more receive has to come back with an error.
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

/// Sends of an outbound end, numbered in posting order; numbers wrap. Only some are signalled: a
/// success speaks for all before it. An error speaks for itself alone: the first that comes back
/// need not be the first that was lost.
class SendAccount {
 public:
  explicit SendAccount(uint32_t first = 0) noexcept
      : posted_(first), delivered_(first), reported_(first) {}

  /// Numbers the next `count` requests; the first of them is returned.
  uint32_t post(uint32_t count) noexcept {
    const uint32_t first = posted_;
    posted_ += count;
    return first;
  }
  /// The last ones were refused and do not exist.
  void unpost(uint32_t count) noexcept { posted_ -= count; }

  void succeed(uint32_t number) noexcept {
    if (!failed_ && is_open(number)) delivered_ = number + 1;
  }
  /// True: it is the first error. `refused`: by the far end, which has taken all before it then.
  bool fail(uint32_t number, bool refused) noexcept {
    if (failed_) return false;
    failed_ = true;
    if (refused && is_open(number)) delivered_ = number;
    return true;
  }
  /// The next request whose delivery has not been told yet; ask has_delivered() first.
  uint32_t report_delivered() noexcept { return reported_++; }
  uint32_t next_to_report() const noexcept { return reported_; }
  bool has_delivered() const noexcept { return reported_ != delivered_; }
  /// The rest, behind the news, once nothing of it can be delivered any more.
  bool has_unreported() const noexcept { return reported_ != posted_; }
  /// The next of the rest; what is told is no news.
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
