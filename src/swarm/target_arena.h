#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace fabric::swarm {

/// Bytes that differ with what they belong to and with every slot.
void fill_content(std::span<std::byte> bytes, uint64_t content);
bool holds_content(std::span<const std::byte> bytes, uint64_t content);

/// Memory in which every write has a slot of its own, never given out twice. So at any time every
/// byte of it can be told: what it was before, what its write brings, or shut for good.
class TargetArena {
 public:
  enum class State : uint8_t {
    kOpen,   ///< its write may come: each byte is there or not
    kComplete,  ///< it has come, all of it
    kSealed,   ///< wiped: nothing may come any more
  };
  struct Slot {
    uint64_t offset = 0, size = 0, content = 0;
    State state = State::kOpen;
  };

  explicit TargetArena(uint64_t size_bytes);

  std::span<std::byte> bytes() noexcept { return {bytes_.get(), size_}; }
  uint64_t bytes_left() const noexcept { return size_ - used_; }
  /// Returns its number. Nothing is ever written into the gap before it.
  uint32_t take(uint64_t size_bytes, uint64_t content, uint64_t gap);
  const Slot& slot(uint32_t number) const { return slots_[number]; }
  uint32_t slots() const noexcept { return static_cast<uint32_t>(slots_.size()); }
  std::span<const std::byte> bytes(const Slot& slot) const noexcept {
    return {bytes_.get() + slot.offset, slot.size};
  }

  /// False: it is not all there. Leaves what is shut as it is.
  bool mark_complete(uint32_t number);
  void seal(uint32_t number);
  void seal_all();
  bool is_sealed() const noexcept { return sealed_; }
  /// Whether the slot is as its state says.
  bool matches_state(uint32_t number) const;
  /// Whether everything between the slots is as it was.
  bool gaps_untouched() const;

 private:
  std::unique_ptr<std::byte[]> bytes_;
  uint64_t size_;
  uint64_t used_ = 0;
  bool sealed_ = false;
  std::vector<Slot> slots_;
};

}  // namespace fabric::swarm
