#include "process/stress_plan.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/rng.h"

namespace fabric::stress {
namespace {

constexpr uint64_t kGuard = 0x5afe'9a7d'5afe'9a7d;

/// The finalizer of splitmix64: adjacent inputs give unrelated outputs.
constexpr uint64_t mixed(uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

constexpr uint64_t word(uint64_t name, uint64_t index) noexcept {
  return index == 0 ? name : mixed(name + index);
}

void draw_singles(Rng& rng, TrafficRound& round, uint64_t buffer_bytes) {
  struct Shape {
    uint64_t writes, least, most, repeats;
  };
  // The longest make it likely that a fault hits the middle of a copy.
  const Shape shapes[] = {
      {16, 8, 256, 1}, {8, 1024, 32 << 10, 2}, {2, buffer_bytes / 8, buffer_bytes / 2, 12}};
  const Shape& shape = shapes[rng.below(std::size(shapes))];
  round.unsplit = shape.most <= (32 << 10) || rng.chance(0.5);
  round.repeats = static_cast<uint32_t>(rng.between(1, shape.repeats));
  uint64_t at = rng.below(64);
  for (uint64_t n = rng.between(1, shape.writes); n > 0; --n) {
    // About half have an odd size, so that the next begins at an odd offset.
    const uint64_t even = rng.between(shape.least, shape.most) & ~uint64_t{7};
    const uint64_t bytes = rng.chance(0.5) || even == 8 ? even : even - rng.below(8);
    if (at + bytes + sizeof kGuard > buffer_bytes) break;
    round.writes.push_back({.source = at, .target = at, .bytes = bytes});
    at += bytes + sizeof kGuard + rng.below(48);
  }
  // Sources are in reverse order of the targets.
  uint64_t from = 0;
  for (auto write = round.writes.rbegin(); write != round.writes.rend(); ++write) {
    write->source = from;
    from += write->bytes;
  }
}

void draw_pages(Rng& rng, TrafficRound& round, uint64_t buffer_bytes) {
  constexpr uint64_t kSizes[] = {512, 1024, 4096, 16 << 10};
  round.unsplit = true;
  round.page_bytes = kSizes[rng.below(std::size(kSizes))];
  round.stride_bytes = round.page_bytes + 64;
  const uint64_t pages = std::min(rng.between(2, 24), buffer_bytes / round.stride_bytes);
  std::vector<uint32_t> shuffled(pages);
  std::iota(shuffled.begin(), shuffled.end(), 0u);
  for (uint64_t i = pages; i > 1; --i) std::swap(shuffled[i - 1], shuffled[rng.below(i)]);
  round.target_pages = shuffled;
  round.source_pages.assign(shuffled.rbegin(), shuffled.rend());
  for (uint64_t i = 0; i < pages; ++i) {
    round.writes.push_back({.source = round.source_pages[i] * round.stride_bytes,
                            .target = round.target_pages[i] * round.stride_bytes,
                            .bytes = round.page_bytes});
  }
}

}  // namespace

uint64_t BufferId::bits() const noexcept {
  const auto member = [](const MemberId& p) {
    return uint64_t{p.slot % 16} << 10 | p.generation % 1024;
  };
  return (member(writer) << 14 | member(owner)) << 12 | number % 4096;
}

TrafficRound draw_round(const BufferId& buffer, uint32_t round, uint64_t buffer_bytes) {
  Rng rng(mixed(buffer.bits()) + round);
  TrafficRound drawn;
  if (rng.chance(0.3)) {
    draw_pages(rng, drawn, buffer_bytes);
  } else {
    draw_singles(rng, drawn, buffer_bytes);
  }
  return drawn;
}

uint64_t name_of(const BufferId& buffer, uint32_t round, uint32_t index) noexcept {
  return buffer.bits() << 24 | uint64_t{round % 65536} << 8 | index % 256;
}

uint64_t poison_name(uint64_t number) noexcept { return 0xdead'0000'0000'0000 + number; }

void stamp(std::span<std::byte> bytes, uint64_t name) noexcept {
  for (uint64_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t value = word(name, at / sizeof value);
    std::memcpy(bytes.data() + at, &value, std::min(sizeof value, bytes.size() - at));
  }
}

uint64_t first_difference(std::span<const std::byte> bytes, uint64_t name) noexcept {
  for (uint64_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t value = word(name, at / sizeof value);
    const uint64_t size = std::min(sizeof value, bytes.size() - at);
    if (std::memcmp(bytes.data() + at, &value, size) == 0) continue;
    const auto* right = reinterpret_cast<const std::byte*>(&value);
    const auto* found = bytes.data() + at;
    return at + static_cast<uint64_t>(std::mismatch(found, found + size, right).first - found);
  }
  return bytes.size();
}

void set_guards(std::span<std::byte> buffer, const TrafficRound& round) noexcept {
  for (const RoundWrite& write : round.writes) {
    std::memcpy(buffer.data() + write.target + write.bytes, &kGuard, sizeof kGuard);
  }
}

bool guards_hold(std::span<const std::byte> buffer, const TrafficRound& round) noexcept {
  return std::ranges::all_of(round.writes, [&](const RoundWrite& write) {
    return std::memcmp(buffer.data() + write.target + write.bytes, &kGuard, sizeof kGuard) == 0;
  });
}

void Scoreboard::open(const BufferId& buffer) noexcept {
  Pair& entry = pair[buffer.writer.slot][buffer.owner.slot];
  entry.started[buffer.number % kBuffers].store(0);
  entry.buffer[buffer.number % kBuffers].store(buffer.bits());
}

void Scoreboard::begin(const BufferId& buffer, uint64_t counts) noexcept {
  pair[buffer.writer.slot][buffer.owner.slot].started[buffer.number % kBuffers].fetch_add(counts);
}

uint64_t Scoreboard::started(const BufferId& buffer) const noexcept {
  const Pair& entry = pair[buffer.writer.slot][buffer.owner.slot];
  const uint32_t i = buffer.number % kBuffers;
  // A writer that has not received the buffer has started nothing.
  return entry.buffer[i].load() == buffer.bits() ? entry.started[i].load() : 0;
}

}  // namespace fabric::stress
