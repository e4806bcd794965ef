// What MLX's CPU allocator leaves unchecked: it hands out NULL when malloc fails, and the next kernel crashes on it.
#pragma once

#include <cstddef>

namespace mlxc {

// Makes MLX's CPU allocator throw when memory runs out. Does nothing for the Metal and CUDA allocators, which do so
// themselves, and after the first call.
void guard_allocations();

// Whether arrays live in plain malloc'ed memory (no GPU back end).
bool host_allocator();

} // namespace mlxc
