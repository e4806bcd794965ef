// Host bytes to and from a CUDA device's own memory. MLX keeps host arrays in managed memory, whose pages move to the
// device by faults, one by one, whenever a kernel reads what the host wrote: a copy by the driver is ten times faster.
#include "cuda_driver.hpp"
#include "extras.h"

using namespace mlxc;

namespace {

mlx_array new_on_device(const void* data, const int* dims, int dim, mlx_dtype type, int index) {
  auto shape = c_dims(dims, dim);
  auto& own = cuda::device(index);
  cuda::Device::Current here(own);
  auto made = own.make(std::move(shape), c_dtype(type));
  if (made.nbytes()) {
    if (!data) bad_argument("NULL data");
    own.fill(cuda::buffer_of(made)->data, data, made.nbytes());
  }
  return make<mlx_array>(std::move(made));
}

void copy_to(void* to, mlx_array handle) {
  auto& a = c_ref(handle);
  if (!a.data_shared_ptr() || a.status() == mx::array::Status::unscheduled)
    bad_argument("array has no data yet: evaluate it first");
  if (!a.flags().row_contiguous) bad_argument("the array is not row-contiguous");
  if (!a.nbytes()) return;
  if (!to) bad_argument("NULL destination");
  if (!a.is_available()) await(a);
  const auto* buffer = cuda::buffer_of(a);
  auto& own = cuda::device(buffer->device < 0 ? 0 : buffer->device); // any device reads managed memory
  cuda::Device::Current here(own);
  own.read(to, static_cast<const char*>(buffer->data) + a.offset(), a.nbytes());
}

} // namespace

extern "C" {

bool mlxc_py_has_device_memory(void) MLXC_RETURN(false, cuda::driver().complete)

mlx_array mlxc_py_array_new_on_device(const void* data, const int* shape, int dim, mlx_dtype dtype, int device)
    MLXC_RETURN({}, new_on_device(data, shape, dim, dtype, device))

int mlxc_py_array_copy_to(void* to, mlx_array a) MLXC_TRY(copy_to(to, a);)

} // extern "C"
