#include "matrix.h"

namespace transformer {

namespace {

constexpr uint32_t kTileVectors = 4;

/// `vectors` rows of y, one panel wide. The product and the sum are two roundings (see
/// exact_math.h), one row of W after the other.
template <uint32_t vectors>
inline void multiply_tile(const float* panel, uint32_t rows, const Matrix::Operands& at) {
  Float4 left[vectors];
  Float4 right[vectors];
  for (uint32_t v = 0; v < vectors; ++v) left[v] = right[v] = broadcast4(0);
  for (uint32_t row = 0; row < rows; ++row) {
    const Float4 weights_left = load4(panel + row * Matrix::kPanelColumns);
    const Float4 weights_right = load4(panel + row * Matrix::kPanelColumns + 4);
    for (uint32_t v = 0; v < vectors; ++v) {
      const Float4 x = broadcast4(at.x[v * at.x_stride + row]);
      left[v] += x * weights_left;
      right[v] += x * weights_right;
    }
  }
  for (uint32_t v = 0; v < vectors; ++v) {
    store4(at.y + v * at.y_stride, left[v]);
    store4(at.y + v * at.y_stride + 4, right[v]);
  }
}

}  // namespace

Matrix::Matrix(uint32_t rows, uint32_t columns, float scale, SeededNumbers& numbers)
    : rows_(rows), columns_(columns), panels_(uint64_t{rows} * columns) {
  for (float& weight : panels_) weight = numbers.uniform() * scale;
}

void Matrix::multiply(const Operands& operands) const {
  for (uint32_t column = 0; column < columns_; column += kPanelColumns) {
    const float* panel = panels_.data() + uint64_t{column} * rows_;
    Operands at = operands;
    at.y += column;
    uint32_t left = operands.count;
    for (; left >= kTileVectors; left -= kTileVectors) {
      multiply_tile<kTileVectors>(panel, rows_, at);
      at.x += kTileVectors * at.x_stride;
      at.y += kTileVectors * at.y_stride;
    }
    for (; left > 0; --left) {
      multiply_tile<1>(panel, rows_, at);
      at.x += at.x_stride;
      at.y += at.y_stride;
    }
  }
}

void Matrix::multiply(std::span<const float> x, std::span<float> y) const {
  multiply({.x = x.data(),
            .x_stride = rows_,
            .y = y.data(),
            .y_stride = columns_,
            .count = static_cast<uint32_t>(x.size() / rows_)});
}

}  // namespace transformer
