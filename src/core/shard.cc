#include "core/shard.h"

#include <algorithm>

// How a write is cut into shards. A pure function: any thread.

namespace fabric::core {

namespace {

// Where every packet of a write takes its own way, NICs reach their rate with smaller writes, and
// cost more per work request: cutting pays earlier.
constexpr uint64_t kStripeBytesOrdered = 64u << 10;
constexpr uint64_t kStripeBytesUnordered = 32u << 10;

}  // namespace

uint64_t stripe_bytes_min(const Config& config, const Network& network, const Caps& caps) noexcept {
  if (network.stripe_bytes_min != 0) return network.stripe_bytes_min;
  if (config.stripe_bytes_min != 0) return config.stripe_bytes_min;
  return caps.ordered ? kStripeBytesOrdered : kStripeBytesUnordered;
}

Cut cut_write(uint64_t size_bytes, const CutRule& rule) noexcept {
  Cut cut;
  const uint64_t wanted = std::min<uint64_t>(rule.shards_max, size_bytes / rule.stripe_bytes_min);
  if (wanted < 2) {
    cut.begin[1] = size_bytes;
    return cut;
  }
  // Rounding every shard up to the alignment may leave nothing for the last ones. Those are not
  // made: even an empty shard would carry an immediate.
  const uint64_t even = size_bytes / wanted + (size_bytes % wanted != 0 ? 1 : 0);
  const uint64_t step = (even + rule.align - 1) & ~(rule.align - 1);
  cut.count = 0;
  for (uint64_t at = 0; at < size_bytes; at += step) cut.begin[cut.count++] = at;
  cut.begin[cut.count] = size_bytes;
  return cut;
}

}  // namespace fabric::core
