// Products against float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "backend/geometry.h"

namespace gem::testing {

// The error of a product of f32 grade: relative to the lengths of row and column. (Tensor cores cut off what
// they shift to a common exponent: 1.2e-6 was seen where codes and minima of two bits cancel.)
inline void expect_product(const Matrix& m, std::span<const float> x, std::span<const float> y,
                           const char* what) {
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
  EXPECT_LT(worst, 2e-6) << what;
}

}  // namespace gem::testing
