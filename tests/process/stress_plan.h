#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// What the members of a stress have agreed on without talking: who writes what where in each round,
// and how every byte of it looks. So a receiver knows all that should have arrived, and what it
// finds instead says whose it is.

namespace fabric::stress {

inline constexpr uint32_t kSlotsMax = 8;

/// One process: a place in the crowd, and how many had it before.
struct HostProcess {
  uint32_t slot = 0;
  uint32_t generation = 0;
  friend constexpr auto operator<=>(const HostProcess&, const HostProcess&) = default;
};

/// Memory of one member that one other member fills, round after round. The number is the owner's
/// and new for each.
struct BufferId {
  HostProcess writer{}, owner{};
  uint32_t number = 0;
  uint64_t bits() const noexcept;
  friend constexpr auto operator<=>(const BufferId&, const BufferId&) = default;
};

/// What counts once.
struct RoundWrite {
  uint64_t source = 0, target = 0, bytes = 0;
};

struct TrafficRound {
  std::vector<RoundWrite> writes{};
  /// How often each write is written, the same bytes each time: so that the members are busy with
  /// copies more than with looking at them.
  uint32_t repeats = 1;
  bool unsplit = false;  ///< no write is cut over lanes, so each is counted exactly when it is whole
  /// Not empty: all writes go as the pages of one request.
  std::vector<uint32_t> source_pages{}, target_pages{};
  uint64_t page_bytes = 0, stride_bytes = 0;
  uint64_t counts() const noexcept { return writes.size() * repeats; }
};

/// The same for everybody who asks. Pieces do not touch each other: guards fit in between.
TrafficRound draw_round(const BufferId& buffer, uint32_t round, uint64_t buffer_bytes);

/// The first word of a write, from which all others follow: whose it is, which round, which write.
uint64_t name_of(const BufferId& buffer, uint32_t round, uint32_t index) noexcept;
/// For memory that nobody may write to any more.
uint64_t poison_name(uint64_t number) noexcept;

void stamp(std::span<std::byte> bytes, uint64_t name) noexcept;
/// The first byte that is not as stamp() left it; bytes.size() when all are.
uint64_t first_difference(std::span<const std::byte> bytes, uint64_t name) noexcept;

/// Words right behind each write that nobody may touch.
void set_guards(std::span<std::byte> buffer, const TrafficRound& round) noexcept;
bool guards_hold(std::span<const std::byte> buffer, const TrafficRound& round) noexcept;

/// Shared by all processes of a run, so that a process that was killed cannot take its word along.
struct Scoreboard {
  static constexpr uint32_t kBuffers = 8;  ///< of one pair, that are remembered at a time
  struct Pair {
    std::atomic<uint64_t> buffer[kBuffers];   ///< BufferId::bits()
    std::atomic<uint64_t> started[kBuffers];  ///< counts that the writer was about to ask for
    std::atomic<uint64_t> rounds;         ///< that the owner found whole
    std::atomic<uint64_t> long_writes;    ///< of the writer that have not ended
  };
  Pair pair[kSlotsMax][kSlotsMax];  ///< [writer][owner]

  void open(const BufferId& buffer) noexcept;
  void begin(const BufferId& buffer, uint64_t counts) noexcept;
  uint64_t started(const BufferId& buffer) const noexcept;
};

}  // namespace fabric::stress
