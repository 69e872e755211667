#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <fabric/result.h>

#include "base/log.h"
#include "base/shared_pages.h"

namespace fabric::core {

/// The pages of a region from allocate(). Only unmap() unmaps them, because that needs the proof
/// that no write can land there any more (contracts.md P13): the destructor leaks them on purpose.
class OwnedPages {
 public:
  /// Zeroed pages. `shared`: a memfd that peers can map; if the system has none, logs a warning and
  /// allocates anonymous pages. Fails with kTooLarge and kExhausted.
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
