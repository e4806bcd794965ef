// Arguments that MLX takes unchecked and that would read outside an array.
#pragma once

#include "handles.hpp"

namespace mlxc {

// as_strided: every element it would read lies inside the (flattened) array.
void check_as_strided(
    const mx::array& a, const int* shape, size_t ndim, const int64_t* strides, size_t nstrides, size_t offset);

} // namespace mlxc
