#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <fabric/result.h>

#include "base/log.h"
#include "base/shared_pages.h"

namespace fabric::core {

/// The pages that allocate() gave to a region. They are unmapped by unmap() and by nothing else,
/// for that needs the proof that nobody writes there any more (P13): without it the destructor
/// leaks them on purpose.
class OwnedPages {
 public:
  /// Zeroed. `shared`: such that peers can map them, or a warning that they cannot. Fails with
  /// kTooLarge and kExhausted.
  static Result<OwnedPages> allocate(uint64_t bytes, bool huge, bool shared, Log& log);

  OwnedPages() = default;
  OwnedPages(OwnedPages&& other) noexcept { *this = std::move(other); }
  OwnedPages& operator=(OwnedPages&& other) noexcept;
  ~OwnedPages() { leak(); }

  explicit operator bool() const noexcept { return address_ != nullptr; }
  void* address() const noexcept { return address_; }
  uint64_t size_bytes() const noexcept { return bytes_; }
  void unmap() noexcept;

 private:
  void leak() noexcept;

  void* address_ = nullptr;
  uint64_t bytes_ = 0;
  std::optional<SharedPages> shared_{};  ///< none: anonymous pages
};

}  // namespace fabric::core
