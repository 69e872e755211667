#include "swarm/target_arena.h"

#include <algorithm>
#include <cstring>

namespace fabric::swarm {
namespace {

constexpr std::byte kBefore{0xa7}, kShutByte{0x5c};

/// Eight bytes of a content.
uint64_t word_of(uint64_t content, uint64_t index) noexcept {
  uint64_t z = content * 0x9e3779b97f4a7c15 + index;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  return z ^ (z >> 27);
}

template <class Visit>
bool each_word(uint64_t size, uint64_t content, Visit visit) {
  for (uint64_t at = 0; at < size; at += 8) {
    const uint64_t word = word_of(content, at);
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

void fill_content(std::span<std::byte> bytes, uint64_t content) {
  each_word(bytes.size(), content, [&](uint64_t at, const std::byte* word, uint64_t size) {
    std::memcpy(bytes.data() + at, word, size);
    return true;
  });
}

bool holds_content(std::span<const std::byte> bytes, uint64_t content) {
  return each_word(bytes.size(), content, [&](uint64_t at, const std::byte* word, uint64_t size) {
    return std::memcmp(bytes.data() + at, word, size) == 0;
  });
}

Field::Field(uint64_t size_bytes)
    : bytes_(std::make_unique_for_overwrite<std::byte[]>(size_bytes)), size_(size_bytes) {
  std::ranges::fill(bytes(), kBefore);
}

uint32_t Field::take(uint64_t size_bytes, uint64_t content, uint64_t gap) {
  places_.push_back({.offset = used_ + gap, .size = size_bytes, .content = content});
  used_ += gap + size_bytes;
  return places() - 1;
}

bool Field::make_whole(uint32_t number) {
  Place& place = places_[number];
  if (place.state == State::kOpen) place.state = State::kWhole;
  return right(number);
}

void Field::shut(uint32_t number) {
  Place& place = places_[number];
  place.state = State::kShut;
  std::ranges::fill(bytes().subspan(place.offset, place.size), kShutByte);
}

void Field::shut_all() {
  for (Place& place : places_) place.state = State::kShut;
  shut_ = true;
  std::ranges::fill(bytes(), kShutByte);
}

bool Field::right(uint32_t number) const {
  const Place& place = places_[number];
  const auto found = bytes(place);
  if (place.state == State::kWhole) return holds_content(found, place.content);
  if (place.state == State::kShut) return all_are(found, kShutByte);
  return each_word(place.size, place.content,
                   [&](uint64_t at, const std::byte* word, uint64_t size) {
                     for (uint64_t i = 0; i < size; ++i) {
                       if (found[at + i] != word[i] && found[at + i] != kBefore) return false;
                     }
                     return true;
                   });
}

bool Field::gaps_right() const {
  const std::byte value = shut_ ? kShutByte : kBefore;
  uint64_t at = 0;
  for (const Place& place : places_) {
    if (!all_are({bytes_.get() + at, place.offset - at}, value)) return false;
    at = place.offset + place.size;
  }
  return all_are({bytes_.get() + at, size_ - at}, value);
}

}  // namespace fabric::swarm
