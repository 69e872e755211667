#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exact_math.h"

namespace transformer {

/// The weights of y = x W.
///
/// Every element of y is a sum over the rows of W from the first to the last, whatever the number
/// of vectors x: a prompt gives the same bits at once, in chunks and token by token.
class Matrix {
 public:
  Matrix() = default;
  /// Uniform weights in [-scale, scale). `columns` is a multiple of kPanelColumns.
  Matrix(uint32_t rows, uint32_t columns, float scale, SeededNumbers& numbers);

  uint32_t rows() const { return rows_; }
  uint32_t columns() const { return columns_; }

  /// y[count][columns] = x[count][rows] W. With strides: vectors that are parts of longer ones.
  struct Operands {
    const float* x = nullptr;
    uint64_t x_stride = 0;
    float* y = nullptr;
    uint64_t y_stride = 0;
    uint32_t count = 0;
  };
  void multiply(const Operands& operands) const;
  /// The same without gaps between the vectors.
  void multiply(std::span<const float> x, std::span<float> y) const;

  /// Columns that are stored together: [columns / kPanelColumns][rows][kPanelColumns]. A tile of
  /// four vectors and one panel keeps its sums in eight of the sixteen vector registers.
  static constexpr uint32_t kPanelColumns = 8;

 private:
  uint32_t rows_ = 0;
  uint32_t columns_ = 0;
  std::vector<float> panels_{};
};

}  // namespace transformer
