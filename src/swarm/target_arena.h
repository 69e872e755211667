#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace fabric::swarm {

/// A byte pattern that depends on `content_seed` and on the offset, so that misplaced bytes are
/// detected.
void fill_content(std::span<std::byte> bytes, uint64_t content_seed);
bool holds_content(std::span<const std::byte> bytes, uint64_t content_seed);

/// Target memory in which every write has a slot of its own, never reused. At any time it is known
/// what each byte may hold: the initial value, the content of its slot's write, or the sealed
/// value.
class TargetArena {
 public:
  enum class State : uint8_t {
    kOpen,      ///< its write is pending: each byte is initial or written
    kComplete,  ///< its write has landed completely
    kSealed,    ///< overwritten with the sealed value: nothing may land any more
  };
  struct Slot {
    uint64_t offset = 0, size = 0, content_seed = 0;
    State state = State::kOpen;
  };

  explicit TargetArena(uint64_t size_bytes);

  std::span<std::byte> bytes() noexcept { return {bytes_.get(), size_}; }
  uint64_t bytes_left() const noexcept { return size_ - used_; }
  /// Allocates a slot and returns its number. No write may touch the `gap` bytes before it.
  uint32_t take(uint64_t size_bytes, uint64_t content_seed, uint64_t gap);
  const Slot& slot(uint32_t number) const { return slots_[number]; }
  uint32_t slots() const noexcept { return static_cast<uint32_t>(slots_.size()); }
  std::span<const std::byte> bytes(const Slot& slot) const noexcept {
    return {bytes_.get() + slot.offset, slot.size};
  }

  /// Open becomes complete. False if the bytes do not match the (new) state.
  bool mark_complete(uint32_t number);
  void seal(uint32_t number);
  void seal_all();
  bool is_sealed() const noexcept { return sealed_; }
  /// Whether the bytes of the slot match its state.
  bool matches_state(uint32_t number) const;
  /// Whether no byte between the slots was written.
  bool gaps_untouched() const;

 private:
  std::unique_ptr<std::byte[]> bytes_;
  uint64_t size_;
  uint64_t used_ = 0;
  bool sealed_ = false;
  std::vector<Slot> slots_;
};

}  // namespace fabric::swarm
