#include "checks.hpp"

namespace mlxc {

void check_as_strided(
    const mx::array& a, const int* shape, size_t ndim, const int64_t* strides, size_t nstrides, size_t offset) {
  if (ndim != nstrides) bad_argument("[as_strided] shape and strides have different lengths");
  const auto dims = c_shape(shape, ndim);
  if (!strides && nstrides) bad_argument("NULL data with a non-zero size");
  for (auto d : dims)
    if (d == 0) return;
  // Positions of the first and the last element; 128 bits, so that no product of an int and an int64 overflows.
  __int128 low = offset, high = offset;
  for (size_t i = 0; i < ndim; ++i) (strides[i] < 0 ? low : high) += __int128(dims[i] - 1) * strides[i];
  if (low < 0 || high >= __int128(a.size())) bad_argument("[as_strided] reads outside the array");
}

void check_new_shape(const int* shape, size_t ndim) {
  bool open = false, empty = false;
  for (auto d : c_span<mx::Shape>(shape, ndim)) {
    if (d < -1) bad_argument("negative dimension");
    open |= d == -1;
    empty |= d == 0;
  }
  if (open && empty) bad_argument("-1 cannot be inferred beside a dimension of 0");
}

void check_axes(const mx::array& a, const int* axes, size_t n) {
  const int ndim = int(a.ndim());
  for (auto axis : c_span<Ints>(axes, n))
    if (axis < -ndim || axis >= ndim) bad_argument("axis out of range");
}

void check_start(const mx::array& a, const mx::array& start, size_t n_axes, const mx::array* update) {
  if (start.size() != n_axes) bad_argument("[slice] the number of starts is not that of axes");
  if (update && update->ndim() > a.ndim()) bad_argument("[slice_update] the update has more dimensions than the array");
}

void check_offset(int offset) {
  if (offset < -(1 << 30) || offset > (1 << 30)) bad_argument("[diagonal] offset out of range");
}

void check_has_rows(const mx::array& x) {
  if (x.ndim() > 1 && x.shape(-2) == 0) bad_argument("[quantized_matmul] the first operand has no rows");
}

void check_not_empty(const mx::array& a) {
  if (a.size() == 0) bad_argument("[linalg] the matrix has no elements");
}

} // namespace mlxc
