// Every matrix product that a model's layers ask a worker for: what is to be prepared before the first step.
#pragma once

#include <cstdint>
#include <vector>

#include "src/model/layout.h"
#include "src/model/product.h"

namespace terrace {

// One call of ProductWorker::multiply, but for its addresses.
struct ProductShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  MatrixView a;  // no data
  MatrixView b;
  std::int64_t c_stride = 0;
  bool accumulate = false;

  // Elements from the first to the last that an operand of these shapes spans.
  std::int64_t a_span() const;
  std::int64_t b_span() const;
  std::int64_t c_span() const { return (rows - 1) * c_stride + columns; }
};

// Each once, for contributions of max_rows rows (a smaller last one has products of its own). Pure.
std::vector<ProductShape> product_shapes(const ModelSizes& sizes);

}  // namespace terrace
