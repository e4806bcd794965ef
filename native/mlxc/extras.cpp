#include "extras.h"

#include "allocation.hpp"
#include "handles.hpp"

using namespace mlxc;

#define STRING_(X) #X
#define STRING(X) STRING_(X)

namespace {

// MLX's CPU buffers point at a size_t that precedes the data.
mx::array borrowed(void* data, mx::Shape shape, mx::Dtype dtype, void* payload, void (*dtor)(void*)) {
  if (!host_allocator()) return mx::array(data, std::move(shape), dtype, [payload, dtor](void*) { dtor(payload); });
  mx::allocator::Buffer buffer(static_cast<size_t*>(data) - 1);
  mx::allocator::Data owner(buffer, [payload, dtor](mx::allocator::Buffer) { dtor(payload); });
  return mx::array(std::move(owner), std::move(shape), dtype);
}

mlx_array new_borrowed(void* data, const int* dims, int dim, mlx_dtype type, void* payload, void (*dtor)(void*)) {
  if (!data || !dtor) bad_argument("NULL data or destructor");
  auto shape = c_dims(dims, dim);
  return make<mlx_array>(borrowed(data, std::move(shape), c_dtype(type), payload, dtor));
}

mlx_array new_uninitialized(const int* dims, int dim, mlx_dtype type) {
  auto shape = c_dims(dims, dim);
  const auto dtype = c_dtype(type);
  const size_t bytes = c_nbytes(shape, dtype);
  guard_allocations();
  return make<mlx_array>(mx::allocator::malloc(bytes), std::move(shape), dtype);
}

} // namespace

extern "C" {

const char* mlxc_py_build_mlx_version(void) {
  return STRING(MLX_VERSION_MAJOR) "." STRING(MLX_VERSION_MINOR) "." STRING(MLX_VERSION_PATCH);
}

int mlxc_py_array_is_tracer(bool* res, mlx_array arr) MLXC_TRY(put(res, c_peek(arr).is_tracer());)

mlx_array mlxc_py_array_new_borrowed(
    void* data, const int* shape, int dim, mlx_dtype dtype, void* payload, void (*dtor)(void*))
    MLXC_RETURN({}, new_borrowed(data, shape, dim, dtype, payload, dtor))

mlx_array mlxc_py_array_new_uninitialized(const int* shape, int dim, mlx_dtype dtype)
    MLXC_RETURN({}, new_uninitialized(shape, dim, dtype))

} // extern "C"
