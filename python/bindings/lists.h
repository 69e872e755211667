#pragma once

// Page indices and other numbers of a call, from arrays without a copy where that is possible.

#include "native.h"

namespace fabric_python {

using PyPageList = Held<fabric::PageList>;
using PyWriteList = Held<fabric::WriteList>;

/// A list of page indices: uint32 and int32 arrays are used as they are. int64 arrays, ranges and
/// other sequences of int are converted, with every number checked.
///
/// Lifetime: the Python object is borrowed for the call.
class PageIndices {
 public:
  /// Throws with `name`: TypeError for another type, ValueError for a number out of range.
  PageIndices(nb::handle object, const char* name);
  PageIndices(const PageIndices&) = delete;
  ~PageIndices();
  std::span<const uint32_t> get() const noexcept { return span_; }

 private:
  bool from_buffer(nb::handle object, const char* name);
  void from_sequence(nb::handle object, const char* name);
  template <class T>
  void convert(const T* numbers, size_t count, const char* name);

  std::span<const uint32_t> span_{};
  std::vector<uint32_t> converted_{};
  Py_buffer view_{};
  bool has_view_ = false;
};

/// One number for all, or a sequence (list, tuple, integer array) with one for each.
class Offsets {
 public:
  Offsets(nb::handle object, const char* name);
  /// Throws with the name when a sequence has another length.
  void expect_count(size_t count) const;
  std::optional<size_t> count() const;
  uint64_t operator[](size_t i) const { return numbers_.size() == 1 ? numbers_[0] : numbers_[i]; }

 private:
  std::vector<uint64_t> numbers_{};
  bool single_ = false;
  const char* name_;
};

}  // namespace fabric_python
