// Custom Metal and CUDA kernels.
#include "handles.hpp"

using namespace mlxc;

namespace {

void add_output(KernelConfig& config, const int* shape, size_t ndim, mlx_dtype dtype) {
  auto dims = c_shape(shape, ndim);
  const auto type = c_dtype(dtype);
  config.shapes.push_back(std::move(dims));
  config.dtypes.push_back(type);
}

Arrays apply(const mx::fast::CustomKernelFunction& kernel, const Arrays& inputs, const KernelConfig& c, mlx_stream s) {
  return kernel(
      inputs, c.shapes, c.dtypes, c.grid, c.group, c.template_args, c.init, c.verbose, c_ref(s));
}

} // namespace

extern "C" {

// The header text of the kernel may be NULL.
#define KERNEL(K, OPTION_TYPE, OPTION, BUILD)                                                                \
  K##_config K##_config_new(void) MLXC_RETURN({}, make<K##_config>())                                        \
  void K##_config_free(K##_config c) { drop(c); }                                                            \
  int K##_config_add_output_arg(K##_config c, const int* shape, size_t size, mlx_dtype dtype)                \
      MLXC_TRY(add_output(c_ref(c), shape, size, dtype);)                                                    \
  int K##_config_set_grid(K##_config c, int x, int y, int z) MLXC_TRY(c_ref(c).grid = {x, y, z};)            \
  int K##_config_set_thread_group(K##_config c, int x, int y, int z) MLXC_TRY(c_ref(c).group = {x, y, z};)   \
  int K##_config_set_init_value(K##_config c, float value) MLXC_TRY(c_ref(c).init = value;)                  \
  int K##_config_set_verbose(K##_config c, bool verbose) MLXC_TRY(c_ref(c).verbose = verbose;)               \
  int K##_config_add_template_arg_dtype(K##_config c, const char* name, mlx_dtype dtype)                     \
      MLXC_TRY(c_ref(c).template_args.emplace_back(c_str(name), c_dtype(dtype));)                            \
  int K##_config_add_template_arg_int(K##_config c, const char* name, int value)                             \
      MLXC_TRY(c_ref(c).template_args.emplace_back(c_str(name), value);)                                     \
  int K##_config_add_template_arg_bool(K##_config c, const char* name, bool value)                           \
      MLXC_TRY(c_ref(c).template_args.emplace_back(c_str(name), value);)                                     \
  K K##_new(                                                                                                 \
      const char* name, mlx_vector_string input_names, mlx_vector_string output_names, const char* source,   \
      const char* header, bool ensure_row_contiguous, OPTION_TYPE OPTION)                                    \
      MLXC_RETURN({}, make<K>(mx::fast::BUILD(                                                               \
          c_str(name), c_ref(input_names), c_ref(output_names), c_str(source), header ? header : "",         \
          ensure_row_contiguous, OPTION)))                                                                   \
  void K##_free(K k) { drop(k); }                                                                            \
  int K##_apply(mlx_vector_array* res, K k, mlx_vector_array inputs, K##_config config, mlx_stream s)        \
      MLXC_TRY(put(res, apply(c_ref(k), c_ref(inputs), c_ref(config), s));)
KERNEL(mlx_fast_metal_kernel, bool, atomic_outputs, metal_kernel)
KERNEL(mlx_fast_cuda_kernel, int, shared_memory, cuda_kernel)
#undef KERNEL

} // extern "C"
