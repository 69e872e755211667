#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace fabric::swarm {

/// Bytes that differ with what they belong to and with every place.
void fill_content(std::span<std::byte> bytes, uint64_t content);
bool holds_content(std::span<const std::byte> bytes, uint64_t content);

/// Memory in which every write has a place of its own, never given out twice. So at any time every
/// byte of it can be told: what it was before, what its write brings, or shut for good.
class Field {
 public:
  enum class State : uint8_t {
    kOpen,   ///< its write may come: each byte is there or not
    kWhole,  ///< it has come, all of it
    kShut,   ///< wiped: nothing may come any more
  };
  struct Place {
    uint64_t offset = 0, size = 0, content = 0;
    State state = State::kOpen;
  };

  explicit Field(uint64_t size_bytes);

  std::span<std::byte> bytes() noexcept { return {bytes_.get(), size_}; }
  uint64_t left() const noexcept { return size_ - used_; }
  /// Returns its number. Nothing is ever written into the gap before it.
  uint32_t take(uint64_t size_bytes, uint64_t content, uint64_t gap);
  const Place& place(uint32_t number) const { return places_[number]; }
  uint32_t places() const noexcept { return static_cast<uint32_t>(places_.size()); }
  std::span<const std::byte> bytes(const Place& place) const noexcept {
    return {bytes_.get() + place.offset, place.size};
  }

  /// False: it is not all there. Leaves what is shut as it is.
  bool make_whole(uint32_t number);
  void shut(uint32_t number);
  void shut_all();
  bool is_shut() const noexcept { return shut_; }
  /// Whether the place is as its state says.
  bool right(uint32_t number) const;
  /// Whether everything between the places is as it was.
  bool gaps_right() const;

 private:
  std::unique_ptr<std::byte[]> bytes_;
  uint64_t size_;
  uint64_t used_ = 0;
  bool shut_ = false;
  std::vector<Place> places_;
};

}  // namespace fabric::swarm
