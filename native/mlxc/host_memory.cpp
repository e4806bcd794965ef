#include "host_memory.hpp"

#include <cstring>

#include <unistd.h>

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

bool aligned(const void* data, mx::Dtype dtype) { return reinterpret_cast<uintptr_t>(data) % mx::size_of(dtype) == 0; }

mx::array borrowed(void* data, mx::Shape shape, mx::Dtype dtype, std::function<void()> dropped) {
  if (!host_allocator())
    return mx::array(data, std::move(shape), dtype, [dropped = std::move(dropped)](void*) { dropped(); });
  // MLX's CPU buffers point at a size_t that precedes the data. It is read, so it must be there: at the start of a mapped
  // file the page before may not exist.
  static const auto page_size = uintptr_t(sysconf(_SC_PAGESIZE));
  if (reinterpret_cast<uintptr_t>(data) % page_size < sizeof(size_t) || !aligned(data, dtype)) {
    auto copy = copied(data, std::move(shape), dtype);
    dropped();
    return copy;
  }
  mx::allocator::Buffer buffer(static_cast<size_t*>(data) - 1);
  mx::allocator::Data owner(buffer, [dropped = std::move(dropped)](mx::allocator::Buffer) { dropped(); });
  return mx::array(std::move(owner), std::move(shape), dtype);
}

} // namespace mlxc
