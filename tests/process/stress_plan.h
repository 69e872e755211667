#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// What the members of a crowd have agreed on without talking: who writes what where in each round,
// and how every byte of it looks. So a receiver knows all that should have arrived, and what it
// finds instead says whose it is.

namespace fabric::crowd {

inline constexpr uint32_t kSlotsMax = 8;

/// One process: a place in the crowd, and how many had it before.
struct Party {
  uint32_t slot = 0;
  uint32_t life = 0;
  friend constexpr auto operator<=>(const Party&, const Party&) = default;
};

/// Memory of one member that one other member fills, round after round. The number is the owner's
/// and new for each.
struct PlotId {
  Party writer{}, owner{};
  uint32_t number = 0;
  uint64_t bits() const noexcept;
  friend constexpr auto operator<=>(const PlotId&, const PlotId&) = default;
};

/// What counts once.
struct Piece {
  uint64_t source = 0, target = 0, bytes = 0;
};

struct Round {
  std::vector<Piece> pieces{};
  /// How often each piece is written, the same bytes each time: so that the members are busy with
  /// copies more than with looking at them.
  uint32_t repeats = 1;
  bool uncut = false;  ///< no piece is cut over lanes, so each is counted exactly when it is whole
  /// Not empty: all pieces go as the pages of one request.
  std::vector<uint32_t> source_pages{}, target_pages{};
  uint64_t page_bytes = 0, stride_bytes = 0;
  uint64_t counts() const noexcept { return pieces.size() * repeats; }
};

/// The same for everybody who asks. Pieces do not touch each other: guards fit in between.
Round draw_round(const PlotId& plot, uint32_t round, uint64_t plot_bytes);

/// The first word of a piece, from which all others follow: whose it is, which round, which piece.
uint64_t name_of(const PlotId& plot, uint32_t round, uint32_t index) noexcept;
/// For memory that nobody may write to any more.
uint64_t poison_name(uint64_t number) noexcept;

void stamp(std::span<std::byte> bytes, uint64_t name) noexcept;
/// The first byte that is not as stamp() left it; bytes.size() when all are.
uint64_t first_difference(std::span<const std::byte> bytes, uint64_t name) noexcept;

/// Words right behind each piece that nobody may touch.
void set_guards(std::span<std::byte> plot, const Round& round) noexcept;
bool guards_hold(std::span<const std::byte> plot, const Round& round) noexcept;

/// Shared by all processes of a run, so that a process that was killed cannot take its word along.
struct Board {
  static constexpr uint32_t kPlots = 8;  ///< of one pair, that are remembered at a time
  struct Pair {
    std::atomic<uint64_t> plot[kPlots];   ///< PlotId::bits()
    std::atomic<uint64_t> begun[kPlots];  ///< counts that the writer was about to ask for
    std::atomic<uint64_t> rounds;         ///< that the owner found whole
    std::atomic<uint64_t> long_writes;    ///< of the writer that have not ended
  };
  Pair pair[kSlotsMax][kSlotsMax];  ///< [writer][owner]

  void open(const PlotId& plot) noexcept;
  void begin(const PlotId& plot, uint64_t counts) noexcept;
  uint64_t begun(const PlotId& plot) const noexcept;
};

}  // namespace fabric::crowd
