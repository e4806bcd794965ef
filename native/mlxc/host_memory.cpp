#include "host_memory.hpp"

#include <cstring>

#include "allocation.hpp"

namespace mlxc {

mx::array copied(const void* data, mx::Shape shape, mx::Dtype dtype) {
  const size_t bytes = c_nbytes(shape, dtype);
  if (!data && bytes) bad_argument("NULL data");
  guard_allocations();
  mx::array a(mx::allocator::malloc(bytes), std::move(shape), dtype);
  if (bytes) std::memcpy(a.data<char>(), data, bytes);
  return a;
}

// MLX's CPU buffers point at a size_t that precedes the data.
mx::array borrowed(void* data, mx::Shape shape, mx::Dtype dtype, std::function<void()> dropped) {
  if (!host_allocator())
    return mx::array(data, std::move(shape), dtype, [dropped = std::move(dropped)](void*) { dropped(); });
  mx::allocator::Buffer buffer(static_cast<size_t*>(data) - 1);
  mx::allocator::Data owner(buffer, [dropped = std::move(dropped)](mx::allocator::Buffer) { dropped(); });
  return mx::array(std::move(owner), std::move(shape), dtype);
}

} // namespace mlxc
