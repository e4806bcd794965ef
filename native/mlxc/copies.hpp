// Copies of arrays that do not lie row by row.
#pragma once

#include <algorithm>
#include <limits>

#include "cpu_primitives.hpp"

namespace mlxc {

// Axes that are walked in one stride by every operand become one, where its size can be told; axes of size 1 go.
template <class Sizes>
void collapse(Sizes& shape, std::vector<mx::Strides>& strides) {
  constexpr int64_t most = std::numeric_limits<typename Sizes::value_type>::max();
  Sizes sizes;
  std::vector<mx::Strides> steps(strides.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    bool joins = !sizes.empty() && sizes.back() <= most / std::max<int64_t>(shape[axis], 1);
    for (size_t i = 0; joins && i < strides.size(); ++i) joins = steps[i].back() == strides[i][axis] * shape[axis];
    if (joins) {
      sizes.back() *= shape[axis];
      for (size_t i = 0; i < strides.size(); ++i) steps[i].back() = strides[i][axis];
    } else {
      sizes.push_back(shape[axis]);
      for (size_t i = 0; i < strides.size(); ++i) steps[i].push_back(strides[i][axis]);
    }
  }
  shape = std::move(sizes);
  strides = std::move(steps);
}

// Elements of 1, 2, 4 or 8 bytes that lie in strides, to where they lie row by row.
class Copy {
 public:
  Copy(size_t width, mx::Shape shape, mx::Strides strides);
  void operator()(const char* from, char* to) const { run(from, to, *this); }

 private:
  template <class T>
  static void planes(const char* from, char* to, const Copy& copy);

  void (*run)(const char* from, char* to, const Copy& copy);
  // A plane of rows and columns, of which one is dense where there is such an axis, and the axes around it.
  int64_t rows_ = 1, columns_ = 1, row_step_ = 0, column_step_ = 1, to_row_ = 1;
  mx::Shape outer_;
  mx::Strides outer_steps_, outer_to_;
};

// In the place of MLX's Reshape or Contiguous on the CPU, whose copies are up to ten times slower. Null elsewhere.
std::shared_ptr<mx::Primitive> own_copy(mx::Primitive& primitive);

// Of the one for Reshape, which is called CpuRows: the shape that it gives, and a result of another shape.
const mx::Shape& shape_of_rows(const mx::Primitive& rows);
mx::array in_rows(const mx::array& x, mx::Shape shape, mx::Stream stream);

} // namespace mlxc
