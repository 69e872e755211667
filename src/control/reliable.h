#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/driver.h"
#include "control/message.h"

// Numbering, acknowledgement, retransmission and deduplication of one session's control messages.

namespace fabric::control {

/// One end of a reliable, unordered message channel over a lossy link: selective acknowledgement in
/// a window of kWindow numbers, retransmission with exponential back-off.
///
/// Owned by a Peer and guarded by the state lock. It neither sends nor reads a clock: the owner
/// asks next_due() what to transmit at a given time and passes arrived headers to on_ack() and
/// classify().
///
/// Invariant: `pending_` holds consecutive numbers, of which only the first kWindow are ever sent;
/// the receiver accepts no number beyond its window, so the header's 64 bits cover all that
/// arrived.
class ReliableChannel {
 public:
  struct Options {
    int64_t retransmit_ns = 5'000'000;        ///< first time-out; doubles with each retry ...
    int64_t retransmit_max_ns = 500'000'000;  ///< ... up to here
  };
  /// The numbers that `Header::ack_bits` covers.
  static constexpr uint32_t kWindow = 64;

  explicit ReliableChannel(const Options& options) : options_(options) {}

  /// Queues a message. It is kept until acknowledged; the caller bounds how many it queues.
  void push(MessageType type, std::vector<std::byte> body);
  uint32_t unacknowledged() const noexcept;                          ///< queued and in flight
  uint32_t unacknowledged_parts() const noexcept { return parts_; }  ///< of them, of kMessagePart

  /// The next message that is due for (re)transmission at `now_ns`; it counts as sent at that time.
  /// Call until false. `again`: a retransmission.
  struct Due {
    MessageType type{};
    uint64_t seq = 0;
    bool again = false;
    std::span<const std::byte> body{};
  };
  bool next_due(int64_t now_ns, Due& out);
  /// The message just returned by next_due() could not be sent: next_due() returns it again.
  void unsent(uint64_t seq) noexcept;
  /// When next_due() is true again (kNeverNs: not before another push or acknowledgement).
  int64_t next_time() const noexcept;

  /// Called with every arrived header of the session. Numbers that were never sent are ignored.
  void on_ack(uint64_t ack, uint64_t ack_bits) noexcept;

  /// What to do with an arrived number.
  enum class Arrival : uint8_t {
    kNew,        ///< deliver it, then call arrived()
    kDuplicate,  ///< acknowledge again, do not deliver
    kBeyond,     ///< outside the window: ignore
  };
  Arrival classify(uint64_t seq) const noexcept;
  /// Marks `seq` as accepted; an acknowledgement is owed. If it is not called, the peer sends the
  /// message again.
  void arrived(uint64_t seq) noexcept;
  /// Every number up to this one has arrived.
  uint64_t arrived_up_to() const noexcept { return taken_; }
  void owe_ack() noexcept { ack_owed_ = true; }
  bool ack_owed() const noexcept { return ack_owed_; }
  /// Fills the acknowledgement of an outgoing header; none is owed afterwards.
  void fill_ack(Header& header) noexcept;

 private:
  struct Pending {
    MessageType type{};
    uint64_t seq = 0;
    std::vector<std::byte> body{};
    int64_t due_ns = 0;  ///< 0: never sent
    uint32_t tries = 0;
    bool acked = false;
  };

  Options options_;
  std::deque<Pending> pending_;  ///< numbers ascend by one; acknowledged ones are popped in front
  uint32_t parts_ = 0;           ///< of those, of type kMessagePart and not acknowledged
  uint64_t next_seq_ = 1;
  uint64_t taken_ = 0;       ///< every number up to here has arrived
  uint64_t taken_bits_ = 0;  ///< bit i: taken_ + 2 + i has arrived
  bool ack_owed_ = false;
};

}  // namespace fabric::control
