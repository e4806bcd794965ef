// Arrays of bytes that lie in host memory.
#pragma once

#include "handles.hpp"

namespace mlxc {

// An evaluated array with a copy of the bytes. Bad argument where there should be some and `data` is NULL.
mx::array copied(const void* data, mx::Shape shape, mx::Dtype dtype);

// Whether elements lie at multiples of their size, as loops may need it.
bool aligned(const void* data, mx::Dtype dtype);

// An evaluated array that reads the bytes where they are, also on the CPU; `dropped` is called with the last reference.
// Where MLX could not read them there they are copied, and `dropped` is called at once.
mx::array borrowed(void* data, mx::Shape shape, mx::Dtype dtype, std::function<void()> dropped);

} // namespace mlxc
