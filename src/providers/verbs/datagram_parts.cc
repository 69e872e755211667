#include "providers/verbs/datagram_parts.h"

#include <algorithm>

namespace fabric::verbs {

std::span<const std::byte> Assembler::take(const DatagramPartHead& head,
                                           std::span<const std::byte> bytes) {
  const bool last = head.index + 1 == head.count;
  // All but the last are full, so a part's offset follows from its index.
  if (head.count > datagram_parts_of(kControlBytesMax) || bytes.empty()) return {};
  if (last ? bytes.size() > kDatagramPartBytes : bytes.size() != kDatagramPartBytes) return {};
  if (head.count == 1) {
    whole_.assign(bytes.begin(), bytes.end());
    return whole_;
  }
  auto found = std::find_if(open_.begin(), open_.end(), [&](const Open& open) {
    return open.head.from == head.from && open.head.number == head.number &&
           open.head.count == head.count;
  });
  if (found == open_.end()) {
    if (open_.size() == kOpenMax) open_.pop_front();
    Open fresh{.head = head, .missing = head.count};
    fresh.have.resize(head.count);
    fresh.bytes.resize(size_t{head.count} * kDatagramPartBytes);
    found = open_.insert(open_.end(), std::move(fresh));
  }
  if (found->have[head.index]) return {};
  found->have[head.index] = true;
  std::copy(bytes.begin(), bytes.end(),
            found->bytes.begin() + static_cast<std::ptrdiff_t>(head.index * kDatagramPartBytes));
  found->size_bytes += bytes.size();
  if (--found->missing > 0) return {};
  whole_ = std::move(found->bytes);
  whole_.resize(found->size_bytes);
  open_.erase(found);
  return whole_;
}

}  // namespace fabric::verbs
