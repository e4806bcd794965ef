#include "copies.hpp"

#include <algorithm>
#include <cstring>

namespace mlxc {

namespace {

// In steps of 16 columns: where the rows' axis is the dense one (a transposed image), each cache line that is read then
// serves several rows.
template <class T>
void copy_plane(
    const T* from, T* to, int64_t rows, int64_t columns, int64_t row_step, int64_t column_step, int64_t to_row) {
  if (column_step == 1) {
    for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * to_row, from + r * row_step, columns * sizeof(T));
    return;
  }
  for (int64_t first = 0; first < columns; first += 16) {
    const int64_t end = std::min(first + 16, columns);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = first; c < end; ++c) to[r * to_row + c] = from[r * row_step + c * column_step];
  }
}

} // namespace

Copy::Copy(size_t width, mx::Shape shape, mx::Strides strides) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) shape = {0}, strides = {1};
  std::vector<mx::Strides> all{std::move(strides)};
  collapse(shape, all);
  const auto& steps = all[0];
  const int last = int(shape.size()) - 1;
  int rows = last - 1;
  if (last >= 0) {
    columns_ = shape[last];
    column_step_ = steps[last];
    const auto dense = std::find(steps.begin(), steps.end(), 1);
    if (column_step_ != 1 && dense != steps.end()) rows = int(dense - steps.begin());
  }
  int64_t to = columns_;
  for (int axis = last - 1; axis >= 0; to *= shape[axis--]) {
    if (axis == rows) {
      rows_ = shape[axis];
      row_step_ = steps[axis];
      to_row_ = to;
    } else {
      outer_.push_back(shape[axis]);
      outer_steps_.push_back(steps[axis]);
      outer_to_.push_back(to);
    }
  }
  switch (width) {
    case 1: run = planes<uint8_t>; break;
    case 2: run = planes<uint16_t>; break;
    case 4: run = planes<uint32_t>; break;
    case 8: run = planes<uint64_t>; break;
    default: bad_argument("elements of 1, 2, 4 or 8 bytes are needed");
  }
}

template <class T>
void Copy::planes(const char* from, char* to, const Copy& copy) {
  auto source = reinterpret_cast<const T*>(from);
  auto target = reinterpret_cast<T*>(to);
  std::vector<int> at(copy.outer_.size(), 0);
  for (;;) {
    copy_plane(source, target, copy.rows_, copy.columns_, copy.row_step_, copy.column_step_, copy.to_row_);
    size_t axis = 0;
    for (; axis < at.size(); ++axis) {
      source += copy.outer_steps_[axis];
      target += copy.outer_to_[axis];
      if (++at[axis] < copy.outer_[axis]) break;
      source -= copy.outer_steps_[axis] * copy.outer_[axis];
      target -= copy.outer_to_[axis] * copy.outer_[axis];
      at[axis] = 0;
    }
    if (axis == at.size()) return;
  }
}

const float* dense(const mx::array& a, mx::cpu::CommandEncoder& encoder) {
  if (a.flags().row_contiguous) return a.data<float>();
  mx::array copy(a.shape(), a.dtype(), nullptr, {});
  copy.set_data(mx::allocator::malloc(copy.nbytes()));
  auto target = copy.data<char>();
  encoder.add_temporary(copy);
  encoder.dispatch([source = a.data<char>(), target, all = Copy(sizeof(float), a.shape(), a.strides())] {
    all(source, target);
  });
  return reinterpret_cast<const float*>(target);
}

} // namespace mlxc
