#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// The traffic plan, a function of ids that all members compute alike: what is written where in each
// round, and the value of every byte. So a receiver knows what has to arrive, and a wrong byte
// shows which write it came from.

namespace fabric::stress {

inline constexpr uint32_t kSlotsMax = 8;

/// One process: its slot in the cluster, and a generation that counts the processes in that slot.
struct MemberId {
  uint32_t slot = 0;
  uint32_t generation = 0;
  friend constexpr auto operator<=>(const MemberId&, const MemberId&) = default;
};

/// A buffer of `owner` that `writer` fills in rounds. The owner numbers its buffers.
struct BufferId {
  MemberId writer{}, owner{};
  uint32_t number = 0;
  uint64_t bits() const noexcept;
  friend constexpr auto operator<=>(const BufferId&, const BufferId&) = default;
};

/// One write of a round; it adds one count.
struct RoundWrite {
  uint64_t source = 0, target = 0, bytes = 0;
};

/// The writes of one round.
struct TrafficRound {
  std::vector<RoundWrite> writes{};
  /// Each write is repeated with the same bytes, so that members spend more time copying than
  /// checking.
  uint32_t repeats = 1;
  bool unsplit = false;  ///< writes are not striped over lanes: a count means that all bytes landed
  /// Not empty: the writes are the pages of one PagedWrite.
  std::vector<uint32_t> source_pages{}, target_pages{};
  uint64_t page_bytes = 0, stride_bytes = 0;
  uint64_t counts() const noexcept { return writes.size() * repeats; }
};

/// Deterministic. There is room for a guard word after each write.
TrafficRound draw_round(const BufferId& buffer, uint32_t round, uint64_t buffer_bytes);

/// The stamp of a write, which determines all its bytes: buffer, round and index.
uint64_t name_of(const BufferId& buffer, uint32_t round, uint32_t index) noexcept;
/// The stamp of fenced memory.
uint64_t poison_name(uint64_t number) noexcept;

void stamp(std::span<std::byte> bytes, uint64_t name) noexcept;
/// Offset of the first byte that differs from what stamp() wrote; bytes.size() if none does.
uint64_t first_difference(std::span<const std::byte> bytes, uint64_t name) noexcept;

/// Guard words right after each write, which must not change.
void set_guards(std::span<std::byte> buffer, const TrafficRound& round) noexcept;
bool guards_hold(std::span<const std::byte> buffer, const TrafficRound& round) noexcept;

/// Counters in memory that all processes of a cluster share, so that those of a killed process
/// survive.
struct Scoreboard {
  static constexpr uint32_t kBuffers = 8;  ///< remembered per pair
  struct Pair {
    std::atomic<uint64_t> buffer[kBuffers];   ///< BufferId::bits()
    std::atomic<uint64_t> started[kBuffers];  ///< counts, incremented before each submission
    std::atomic<uint64_t> rounds;             ///< that the owner found complete
    std::atomic<uint64_t> long_writes;        ///< of the writer that have not completed
  };
  Pair pair[kSlotsMax][kSlotsMax];  ///< [writer][owner]

  void open(const BufferId& buffer) noexcept;
  void begin(const BufferId& buffer, uint64_t counts) noexcept;
  uint64_t started(const BufferId& buffer) const noexcept;
};

}  // namespace fabric::stress
