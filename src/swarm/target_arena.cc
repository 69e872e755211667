#include "swarm/target_arena.h"

#include <algorithm>
#include <cstring>

namespace fabric::swarm {
namespace {

constexpr std::byte kUntouchedByte{0xa7}, kSealedByte{0x5c};

/// Eight bytes of the pattern of `content_seed`.
uint64_t word_of(uint64_t content_seed, uint64_t index) noexcept {
  uint64_t z = content_seed * 0x9e3779b97f4a7c15 + index;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  return z ^ (z >> 27);
}

template <class Visit>
bool each_word(uint64_t size, uint64_t content_seed, Visit visit) {
  for (uint64_t at = 0; at < size; at += 8) {
    const uint64_t word = word_of(content_seed, at);
    if (!visit(at, reinterpret_cast<const std::byte*>(&word), std::min<uint64_t>(8, size - at))) {
      return false;
    }
  }
  return true;
}

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::ranges::all_of(bytes, [value](std::byte byte) { return byte == value; });
}

}  // namespace

void fill_content(std::span<std::byte> bytes, uint64_t content_seed) {
  each_word(bytes.size(), content_seed, [&](uint64_t at, const std::byte* word, uint64_t size) {
    std::memcpy(bytes.data() + at, word, size);
    return true;
  });
}

bool holds_content(std::span<const std::byte> bytes, uint64_t content_seed) {
  return each_word(bytes.size(), content_seed,
                   [&](uint64_t at, const std::byte* word, uint64_t size) {
                     return std::memcmp(bytes.data() + at, word, size) == 0;
                   });
}

TargetArena::TargetArena(uint64_t size_bytes)
    : bytes_(std::make_unique_for_overwrite<std::byte[]>(size_bytes)), size_(size_bytes) {
  std::ranges::fill(bytes(), kUntouchedByte);
}

uint32_t TargetArena::take(uint64_t size_bytes, uint64_t content_seed, uint64_t gap) {
  slots_.push_back({.offset = used_ + gap, .size = size_bytes, .content_seed = content_seed});
  used_ += gap + size_bytes;
  return slots() - 1;
}

bool TargetArena::mark_complete(uint32_t number) {
  Slot& slot = slots_[number];
  if (slot.state == State::kOpen) slot.state = State::kComplete;
  return matches_state(number);
}

void TargetArena::seal(uint32_t number) {
  Slot& slot = slots_[number];
  slot.state = State::kSealed;
  std::ranges::fill(bytes().subspan(slot.offset, slot.size), kSealedByte);
}

void TargetArena::seal_all() {
  for (Slot& slot : slots_) slot.state = State::kSealed;
  sealed_ = true;
  std::ranges::fill(bytes(), kSealedByte);
}

bool TargetArena::matches_state(uint32_t number) const {
  const Slot& slot = slots_[number];
  const auto found = bytes(slot);
  if (slot.state == State::kComplete) return holds_content(found, slot.content_seed);
  if (slot.state == State::kSealed) return all_are(found, kSealedByte);
  return each_word(slot.size, slot.content_seed,
                   [&](uint64_t at, const std::byte* word, uint64_t size) {
                     for (uint64_t i = 0; i < size; ++i) {
                       if (found[at + i] != word[i] && found[at + i] != kUntouchedByte)
                         return false;
                     }
                     return true;
                   });
}

bool TargetArena::gaps_untouched() const {
  const std::byte value = sealed_ ? kSealedByte : kUntouchedByte;
  uint64_t at = 0;
  for (const Slot& slot : slots_) {
    if (!all_are({bytes_.get() + at, slot.offset - at}, value)) return false;
    at = slot.offset + slot.size;
  }
  return all_are({bytes_.get() + at, size_ - at}, value);
}

}  // namespace fabric::swarm
