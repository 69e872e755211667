#include "pattern.h"

#include <algorithm>
#include <cstring>

namespace fabric::tool::bench {

void fill(std::span<std::byte> bytes, uint64_t round, uint64_t offset) {
  for (uint64_t at = 0; at < bytes.size(); at += kWordBytes) {
    const uint64_t word = pattern_word(round, (offset + at) / kWordBytes);
    std::memcpy(bytes.data() + at, &word, std::min(kWordBytes, bytes.size() - at));
  }
}

bool matches(std::span<const std::byte> bytes, uint64_t round, uint64_t offset) {
  const uint64_t whole = bytes.size() / kWordBytes * kWordBytes;
  uint64_t wrong = 0;
  for (uint64_t at = 0; at < whole; at += kWordBytes) {
    uint64_t seen = 0;
    std::memcpy(&seen, bytes.data() + at, kWordBytes);
    wrong |= seen ^ pattern_word(round, (offset + at) / kWordBytes);
  }
  const uint64_t last = pattern_word(round, (offset + whole) / kWordBytes);
  return wrong == 0 && std::memcmp(bytes.data() + whole, &last, bytes.size() - whole) == 0;
}

}  // namespace fabric::tool::bench
