// Products against float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "backend/geometry.h"

namespace gem::testing {

// The error of a product, relative to the lengths of row and column. Bounds of f32 sums, and of activations
// of 15 to 16 bits a block of 32.
constexpr double kF32Product = 2e-6;
constexpr double kSixteenBitProduct = 3e-5;
inline void expect_product(const Matrix& m, std::span<const float> x, std::span<const float> y,
                           const char* what, double bound = kF32Product) {
  std::vector<float> row(m.cols);
  double worst = 0;
  for (std::uint32_t i = 0; i < m.rows; ++i) {
    m.expand_row(i, row.data());
    double sum = 0, left = 0, right = 0;
    for (std::uint32_t c = 0; c < m.cols; ++c) {
      sum += double{row[c]} * double{x[c]};
      left += double{row[c]} * double{row[c]};
      right += double{x[c]} * double{x[c]};
    }
    worst = std::max(worst, std::fabs(sum - double{y[i]}) / std::sqrt(left * right));
  }
  EXPECT_LT(worst, bound) << what;
}

}  // namespace gem::testing
