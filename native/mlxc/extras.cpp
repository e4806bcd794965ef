#include "extras.h"

#include "allocation.hpp"
#include "handles.hpp"
#include "host_memory.hpp"

using namespace mlxc;

#define STRING_(X) #X
#define STRING(X) STRING_(X)

namespace {

mlx_array new_borrowed(void* data, const int* dims, int dim, mlx_dtype type, void* payload, void (*dtor)(void*)) {
  if (!data || !dtor) bad_argument("NULL data or destructor");
  auto shape = c_dims(dims, dim);
  return make<mlx_array>(borrowed(data, std::move(shape), c_dtype(type), [payload, dtor] { dtor(payload); }));
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
