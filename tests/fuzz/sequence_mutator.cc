#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "fuzz/sequence.h"

// libFuzzer mutates bytes. Half of the time this mutates whole actions instead: one is repeated,
// dropped, moved, or inserted at random.

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  using fabric::fuzz::kActionBytes;
  using fabric::fuzz::kActionsMax;
  constexpr size_t kBytesMax = (kActionsMax + 1) * kActionBytes;
  fabric::Rng rng(seed);
  max_size = std::min(max_size, kBytesMax);
  size = std::min(size / kActionBytes * kActionBytes, max_size);
  const size_t records = size / kActionBytes;
  if (records < 3 || rng.below(2) == 0) return LLVMFuzzerMutate(data, size, max_size);

  const auto record = [&](size_t i) { return data + i * kActionBytes; };
  const size_t one = 1 + rng.below(records - 1), other = 1 + rng.below(records - 1);
  const bool has_room = size + kActionBytes <= max_size;
  switch (rng.below(has_room ? 4 : 2)) {
    case 0:
      std::swap_ranges(record(one), record(one + 1), record(other));
      return size;
    case 1:
      std::memmove(record(one), record(one + 1), size - (one + 1) * kActionBytes);
      return size - kActionBytes;
    case 2: {
      uint8_t copy[kActionBytes];
      std::copy_n(record(other), kActionBytes, copy);
      std::memmove(record(one + 1), record(one), size - one * kActionBytes);
      std::copy_n(copy, kActionBytes, record(one));
      return size + kActionBytes;
    }
    default:
      std::memmove(record(one + 1), record(one), size - one * kActionBytes);
      std::generate_n(record(one), kActionBytes, [&] { return static_cast<uint8_t>(rng.next()); });
      return size + kActionBytes;
  }
}
