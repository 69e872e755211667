#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/driver.h"
#include "control/message.h"

// Numbering, acknowledgement, retransmission and deduplication of one session's control messages.
// Time comes from outside; nothing here sends: the owner asks what is due and puts it on a link.

namespace fabric::control {

class ReliableChannel {
 public:
  struct Options {
    int64_t retransmit_ns = 5'000'000;        ///< first time-out; doubles for each try ...
    int64_t retransmit_max_ns = 500'000'000;  ///< ... up to here
  };
  /// As many numbers as `Header::ack_bits` can speak of.
  static constexpr uint32_t kWindow = 64;

  explicit ReliableChannel(const Options& options) : options_(options) {}

  /// Queues a message. It is kept until acknowledged; the caller bounds how many it queues.
  void push(MessageType type, std::vector<std::byte> body);
  uint32_t unacknowledged() const noexcept;  ///< queued and in flight

  /// The next message that is due for (re)transmission at `now_ns`, or nullptr. Its `seq` is set.
  /// Call until nullptr; each returned one counts as sent now. `again` says that it is a repeat.
  struct Due {
    MessageType type{};
    uint64_t seq = 0;
    bool again = false;
    std::span<const std::byte> body{};
  };
  bool next_due(int64_t now_ns, Due& out);
  /// The datagram just taken from next_due() could not be sent: offer it again next time.
  void unsent(uint64_t seq) noexcept;
  /// When next_due() has something again (kNeverNs: not before another push or acknowledgement).
  int64_t next_time() const noexcept;

  /// From every header of this session that arrives. Numbers never sent are ignored.
  void on_ack(uint64_t ack, uint64_t ack_bits) noexcept;

  /// What to do with an arrived number.
  enum class Arrival : uint8_t {
    kNew,        ///< deliver it, then call arrived()
    kDuplicate,  ///< acknowledge again, do not deliver
    kBeyond,     ///< outside the window: ignore
  };
  Arrival classify(uint64_t seq) const noexcept;
  /// Marks `seq` as taken; an acknowledgement is owed. Not called for a message that is held back:
  /// the peer then sends it again.
  void arrived(uint64_t seq) noexcept;
  void owe_ack() noexcept { ack_owed_ = true; }
  bool ack_owed() const noexcept { return ack_owed_; }
  /// What every outgoing header carries; clears the debt.
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
  std::deque<Pending> pending_;  ///< numbers ascend by one; acknowledged ones leave at the front
  uint64_t next_seq_ = 1;
  uint64_t taken_ = 0;       ///< every number up to here has arrived
  uint64_t taken_bits_ = 0;  ///< bit i: taken_ + 2 + i has arrived
  bool ack_owed_ = false;
};

}  // namespace fabric::control
