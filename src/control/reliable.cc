#include "control/reliable.h"

#include <algorithm>

#include "base/check.h"

namespace fabric::control {

namespace {

/// Whether (ack, ack_bits) acknowledges `seq`. By differences, not sums: a hostile `ack` near the
/// end of the range must not wrap.
bool covers(uint64_t ack, uint64_t ack_bits, uint64_t seq) noexcept {
  if (seq <= ack) return true;
  const uint64_t ahead = seq - ack;
  return ahead >= 2 && ahead - 2 < 64 && (ack_bits >> (ahead - 2) & 1) != 0;
}

}  // namespace

void ReliableChannel::push(MessageType type, std::vector<std::byte> body) {
  FABRIC_CHECK(is_numbered(type));
  pending_.push_back({type, next_seq_++, std::move(body), 0, 0, false});
  if (type == MessageType::kMessagePart) ++parts_;
}

uint32_t ReliableChannel::unacknowledged() const noexcept {
  // Only numbers in the window were sent and can be acknowledged.
  const auto sent = std::min<size_t>(pending_.size(), kWindow);
  const auto acked = std::count_if(pending_.begin(), pending_.begin() + static_cast<long>(sent),
                                   [](const Pending& p) { return p.acked; });
  return static_cast<uint32_t>(pending_.size() - static_cast<size_t>(acked));
}

bool ReliableChannel::next_due(int64_t now_ns, Due& out) {
  const size_t window = std::min<size_t>(pending_.size(), kWindow);
  for (size_t i = 0; i < window; ++i) {
    Pending& p = pending_[i];
    if (p.acked || p.due_ns > now_ns) continue;
    out = {p.type, p.seq, p.tries > 0, p.body};
    // Compares with the halved limit instead of the doubled delay: no shift can overflow.
    const uint32_t doublings = std::min<uint32_t>(p.tries, 62);
    const bool at_most = options_.retransmit_ns > (options_.retransmit_max_ns >> doublings);
    p.due_ns =
        now_ns + (at_most ? options_.retransmit_max_ns : options_.retransmit_ns << doublings);
    ++p.tries;
    return true;
  }
  return false;
}

void ReliableChannel::unsent(uint64_t seq) noexcept {
  if (pending_.empty() || seq < pending_.front().seq || seq >= next_seq_) return;
  Pending& p = pending_[seq - pending_.front().seq];
  if (p.tries == 0) return;
  --p.tries;
  p.due_ns = 0;
}

int64_t ReliableChannel::next_time() const noexcept {
  int64_t earliest = kNeverNs;
  const size_t window = std::min<size_t>(pending_.size(), kWindow);
  for (size_t i = 0; i < window; ++i) {
    if (!pending_[i].acked) earliest = std::min(earliest, pending_[i].due_ns);
  }
  return earliest;
}

void ReliableChannel::on_ack(uint64_t ack, uint64_t ack_bits) noexcept {
  const size_t window = std::min<size_t>(pending_.size(), kWindow);
  for (size_t i = 0; i < window; ++i) {
    Pending& p = pending_[i];
    if (p.acked || p.tries == 0 || !covers(ack, ack_bits, p.seq)) continue;
    p.acked = true;
    if (p.type == MessageType::kMessagePart) --parts_;
  }
  while (!pending_.empty() && pending_.front().acked) pending_.pop_front();
}

ReliableChannel::Arrival ReliableChannel::classify(uint64_t seq) const noexcept {
  if (seq == 0) return Arrival::kBeyond;
  if (covers(taken_, taken_bits_, seq)) return Arrival::kDuplicate;
  return seq - taken_ <= kWindow + 1 ? Arrival::kNew : Arrival::kBeyond;
}

void ReliableChannel::arrived(uint64_t seq) noexcept {
  FABRIC_CHECK(classify(seq) == Arrival::kNew, "call classify() first");
  ack_owed_ = true;
  if (seq != taken_ + 1) {
    taken_bits_ |= uint64_t{1} << (seq - taken_ - 2);
    return;
  }
  // The gap is closed: consecutive numbers after it are covered by the cumulative ack as well.
  bool next = true;
  while (next) {
    ++taken_;
    next = (taken_bits_ & 1) != 0;
    taken_bits_ >>= 1;
  }
}

void ReliableChannel::fill_ack(Header& header) noexcept {
  header.ack = taken_;
  header.ack_bits = taken_bits_;
  ack_owed_ = false;
}

}  // namespace fabric::control
