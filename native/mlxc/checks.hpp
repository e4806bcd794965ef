// Arguments that MLX takes unchecked and that would end the process or read outside an array, as far as they can be
// seen before evaluation. Index values (take, gather, scatter, slice_dynamic) cannot: they are the caller's to check.
#pragma once

#include "handles.hpp"

namespace mlxc {

// as_strided: every element it would read lies inside the (flattened) array.
void check_as_strided(
    const mx::array& a, const int* shape, size_t ndim, const int64_t* strides, size_t nstrides, size_t offset);

// reshape, unflatten: -1 stands for what is left, other negative dimensions go unnoticed in an array without elements.
void check_new_shape(const int* shape, size_t ndim);

// number_of_elements: axes that the array has.
void check_axes(const mx::array& a, const int* axes, size_t n);

// slice_dynamic, slice_update_dynamic: one start per axis, and an update that fits into the array.
void check_start(const mx::array& a, const mx::array& start, size_t n_axes, const mx::array* update = nullptr);

// diagonal, trace: an offset whose sums with dimensions do not overflow.
void check_offset(int offset);

// Quantised products divide by the number of rows on the CPU.
void check_has_rows(const mx::array& x);

// Factorisations divide by the number of elements.
void check_not_empty(const mx::array& a);

} // namespace mlxc
