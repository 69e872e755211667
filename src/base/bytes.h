#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fabric/result.h>

// Little-endian encoding. Numbers are read and written byte by byte, so neither alignment nor the
// host's byte order matters; compilers turn it into one load or store.

namespace fabric {

/// Reads bytes that may be truncated or hostile. A read past the end returns zero and puts the
/// reader into a failed state for good, so that a decoder reads all its fields and checks ok()
/// once.
///
/// Lifetime: borrows the bytes; bytes() and text() return views into them.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  uint8_t u8() noexcept { return number<uint8_t>(); }
  uint16_t u16() noexcept { return number<uint16_t>(); }
  uint32_t u32() noexcept { return number<uint32_t>(); }
  uint64_t u64() noexcept { return number<uint64_t>(); }
  int32_t i32() noexcept { return static_cast<int32_t>(u32()); }
  int64_t i64() noexcept { return static_cast<int64_t>(u64()); }

  /// The next `count` bytes, or none of them.
  std::span<const std::byte> bytes(size_t count) noexcept {
    if (!ok_ || count > rest_.size()) {
      fail();
      return {};
    }
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  std::string_view text(size_t count) noexcept {
    const auto taken = bytes(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  std::span<const std::byte> rest() noexcept { return bytes(rest_.size()); }

  size_t remaining() const noexcept { return rest_.size(); }
  bool ok() const noexcept { return ok_; }
  /// A field was out of its range: treated like truncation.
  void fail() noexcept {
    ok_ = false;
    rest_ = {};
  }
  void require(bool condition) noexcept {
    if (!condition) fail();
  }
  /// kBadFormat when anything was missing or out of range.
  Result<void> status(const char* what) const {
    if (!ok_) return fabric::fail(Errc::kBadFormat, what);
    return {};
  }

 private:
  template <class T>
  T number() noexcept {
    uint64_t value = 0;
    int shift = 0;
    for (const std::byte b : bytes(sizeof(T))) {
      value |= static_cast<uint64_t>(b) << shift;
      shift += 8;
    }
    return static_cast<T>(value);
  }

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

/// Appends to its own buffer, up to a limit. A value that does not fit is not written and puts the
/// writer into a failed state for good.
class ByteWriter {
 public:
  explicit ByteWriter(size_t limit = SIZE_MAX) noexcept : limit_(limit) {}

  void u8(uint8_t value) { number(value); }
  void u16(uint16_t value) { number(value); }
  void u32(uint32_t value) { number(value); }
  void u64(uint64_t value) { number(value); }
  void i32(int32_t value) { number(static_cast<uint32_t>(value)); }
  void i64(int64_t value) { number(static_cast<uint64_t>(value)); }

  void bytes(std::span<const std::byte> more) {
    if (!ok_ || more.size() > limit_ - buffer_.size()) {
      ok_ = false;
      return;
    }
    buffer_.insert(buffer_.end(), more.begin(), more.end());
  }
  void text(std::string_view more) {
    bytes(std::as_bytes(std::span<const char>(more.data(), more.size())));
  }

  size_t size() const noexcept { return buffer_.size(); }
  bool ok() const noexcept { return ok_; }
  std::span<const std::byte> view() const noexcept { return buffer_; }
  std::vector<std::byte> take() noexcept { return std::move(buffer_); }

 private:
  template <class T>
  void number(T value) {
    std::byte le[sizeof(T)];
    for (size_t i = 0; i < sizeof(T); ++i) {
      le[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
    }
    bytes(le);
  }

  std::vector<std::byte> buffer_;
  size_t limit_;
  bool ok_ = true;
};

}  // namespace fabric
