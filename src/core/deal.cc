#include <algorithm>
#include <array>

#include "core/core.h"
#include "core/transfer.h"

// Which of several rails a write takes. They take turns, so that small writes are spread, whatever
// their peers; but a rail that was dealt more bytes than the others passes its turn on to the one
// that had the least. With turns alone, large and small writes in alternation would put all bytes
// on every second rail. A peer that one rail reaches takes no turn: the others would skip rails.
//
// State lock held throughout.

namespace fabric::core {

namespace {
// So far may a rail be ahead of the least dealt one and keep its turn: small writes of about the
// same size take turns, and the least is searched for once in several rounds.
constexpr uint64_t kDealtAheadMax = 8u << 10;
// So far may a rail be behind the most dealt one and be remembered: the largest write that is not
// cut. Without a bound a rail that was down for a while, or did not carry one very large write,
// would get everything until it has caught up, and the others nothing.
constexpr uint64_t kDealtBehindMax = 128u << 10;
}  // namespace

/// Gives the turn to the rail that was dealt the least; of several, to the next in turn. Returns
/// its index in `rails`.
[[gnu::noinline]] uint32_t Transfers::least_dealt(NetworkSlot& network,
                                                  std::span<RailSlot* const> rails,
                                                  uint64_t behind_max) {
  const auto n = static_cast<uint32_t>(rails.size());
  uint64_t most = 0;
  for (const RailSlot* rail : rails) most = std::max(most, rail->dealt_bytes);
  const uint64_t floor = most - std::min(most, behind_max);
  const uint32_t turn = network.rotation % n;
  uint32_t passed = 0;
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t& dealt = rails[(turn + i) % n]->dealt_bytes;
    dealt = std::max(dealt, floor);
    if (dealt < rails[(turn + passed) % n]->dealt_bytes) passed = i;
  }
  network.rotation += passed;
  const uint32_t least = (turn + passed) % n;
  network.dealt_max = rails[least]->dealt_bytes + kDealtAheadMax;
  return least;
}

[[gnu::noinline]] const CachedPath& Transfers::least_dealt_path(const CachedRoute& route) {
  std::array<RailSlot*, kRailsMax> rails{};
  const size_t n = route.paths.size();
  for (size_t i = 0; i < n; ++i) rails[i] = route.paths[i].rail;
  return route.paths[least_dealt(*route.network_slot, std::span(rails).first(n), kDealtBehindMax)];
}

/// Which of these rails is next: an index into `up`.
uint32_t Transfers::next_rail(NetworkSlot& network, const RailSet& up) {
  if (up.count == 1) return 0;
  const uint32_t turn = network.rotation % up.count;
  if (network.rails[up.index[turn]].dealt_bytes <= network.dealt_max) return turn;
  std::array<RailSlot*, kRailsMax> rails{};
  for (uint32_t i = 0; i < up.count; ++i) rails[i] = &network.rails[up.index[i]];
  return least_dealt(network, std::span(rails).first(up.count), kDealtBehindMax);
}

/// The bytes of `writes` writes for the rail at `at`, from 0 on and around.
void Transfers::deal_to(NetworkSlot& network, const RailSet& up, uint32_t at, uint64_t bytes,
                        uint32_t writes) {
  if (up.count > 1) deal(network, network.rails[up.index[at % up.count]], bytes, writes);
}

/// For one write: returns its rail.
uint32_t Transfers::deal_one(NetworkSlot& network, const RailSet& up, uint64_t bytes) {
  const uint32_t at = next_rail(network, up);
  deal_to(network, up, at, bytes);
  return up.index[at];
}

/// What is left of a shard, or about as much as the parts have.
uint64_t Transfers::bytes_to_post(Op& op, const PendingFragment& fragment) noexcept {
  if (slices_of(op, fragment.cut) != nullptr) return fragment.size_bytes;
  return fragment.count * part_of(op, fragment.part).size_bytes;
}

/// Deals listed writes to the rails, each a run of them of about as many bytes as bring all rails
/// to the same level. What one run has too much or too little, the next ones have less or more.
void Transfers::deal_listed(Op& op, Peer& peer, NetworkSlot& network, const RailSet& up) {
  const WriteEntries& list = op.write_list->entries;
  const uint64_t* const before = list.bytes_before.get() + (op.listed - list.writes.get());
  const auto dealt_by = [&](uint32_t i) { return before[i] - before[0] + i * kDealtPerWrite; };
  const uint64_t total = dealt_by(op.parts);
  std::array<RailSlot*, kRailsMax> rails{};
  for (uint32_t i = 0; i < up.count; ++i) rails[i] = &network.rails[up.index[i]];
  // Ranges of a plan follow each other, and one of them differs by up to the largest write.
  const uint64_t behind_max = std::max(kDealtBehindMax, 2 * list.size_max);
  const uint32_t first =
      up.count == 1 ? 0 : least_dealt(network, std::span(rails).first(up.count), behind_max);
  std::rotate(rails.begin(), rails.begin() + first, rails.begin() + up.count);
  // The level: rails above it get nothing and do not count.
  uint64_t level = UINT64_MAX;
  for (uint64_t last = 0; last != level;) {
    last = level;
    uint64_t sum = total, below = 0;
    for (uint32_t i = 0; i < up.count; ++i) {
      if (rails[i]->dealt_bytes > last) continue;
      sum += rails[i]->dealt_bytes;
      ++below;
    }
    level = sum / below;  // never without the least dealt one
  }
  uint64_t upto = 0;
  uint32_t begin = 0;
  for (uint32_t i = 0; i < up.count && begin < op.parts; ++i) {
    RailSlot& rail = *rails[i];
    upto += level - std::min(level, rail.dealt_bytes);
    // The first end that has this much. The last rail takes what rounding has left.
    uint32_t end = op.parts;
    for (uint32_t least = begin; i + 1 < up.count && least < end;) {
      const uint32_t middle = least + (end - least) / 2;
      if (dealt_by(middle) < upto) {
        least = middle + 1;
      } else {
        end = middle;
      }
    }
    if (end == begin) continue;
    if (up.count > 1) deal(network, rail, before[end] - before[begin], end - begin);
    enqueue(op, peer, network, rail.index, {.part = begin, .count = end - begin});
    begin = end;
  }
}

}  // namespace fabric::core
