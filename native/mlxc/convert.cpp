// C enum values and shapes -> MLX's.
#include <iterator>

#include "handles.hpp"

namespace mlxc {
namespace {

// In the order of mlx_dtype.
const mx::Dtype kDtypes[] = {
    mx::bool_, mx::uint8, mx::uint16, mx::uint32, mx::uint64, mx::int8, mx::int16,
    mx::int32, mx::int64, mx::float16, mx::float32, mx::float64, mx::bfloat16, mx::complex64};

} // namespace

mx::Dtype c_dtype(mlx_dtype d) {
  if (size_t(d) >= std::size(kDtypes)) bad_argument("unknown dtype");
  return kDtypes[d];
}

mlx_dtype from_dtype(mx::Dtype d) {
  for (size_t i = 0; i < std::size(kDtypes); ++i)
    if (kDtypes[i].val() == d.val()) return mlx_dtype(i);
  bad_argument("dtype has no C value");
}

mx::Device::DeviceType c_device_type(mlx_device_type t) {
  if (t == MLX_CPU) return mx::Device::cpu;
  if (t == MLX_GPU) return mx::Device::gpu;
  bad_argument("unknown device type");
}

FFTNorm c_fft_norm(mlx_fft_norm n) {
  switch (n) {
    case MLX_FFT_NORM_BACKWARD: return FFTNorm::Backward;
    case MLX_FFT_NORM_ORTHO: return FFTNorm::Ortho;
    case MLX_FFT_NORM_FORWARD: return FFTNorm::Forward;
  }
  bad_argument("unknown FFT norm");
}

mx::CompileMode c_compile_mode(mlx_compile_mode m) {
  switch (m) {
    case MLX_COMPILE_MODE_DISABLED: return mx::CompileMode::disabled;
    case MLX_COMPILE_MODE_NO_SIMPLIFY: return mx::CompileMode::no_simplify;
    case MLX_COMPILE_MODE_NO_FUSE: return mx::CompileMode::no_fuse;
    case MLX_COMPILE_MODE_ENABLED: return mx::CompileMode::enabled;
  }
  bad_argument("unknown compile mode");
}

void check_size(const mx::Shape& shape) {
  size_t bytes = 16; // twice the widest element's, because MLX counts in int64_t, too
  bool overflow = false, empty = false;
  for (auto d : shape) {
    overflow |= __builtin_mul_overflow(bytes, size_t(d), &bytes);
    empty |= d == 0;
  }
  if (overflow && !empty) bad_argument("array too large: its bytes cannot be counted in 64 bits");
}

mx::Shape c_shape(const int* dims, size_t n) {
  auto shape = c_span<mx::Shape>(dims, n);
  for (auto d : shape)
    if (d < 0) bad_argument("negative dimension");
  check_size(shape);
  return shape;
}

mx::Shape c_dims(const int* dims, int n) {
  if (n < 0) bad_argument("negative number of dimensions");
  return c_shape(dims, size_t(n));
}

size_t c_nbytes(const mx::Shape& shape, mx::Dtype dtype) {
  size_t bytes = dtype.size();
  for (auto d : shape) bytes *= size_t(d);
  return bytes;
}

} // namespace mlxc
