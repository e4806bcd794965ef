// The C handles: which C++ type each one points to, how arguments are read and results are stored.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

// array.h comes first: several MLX headers rely on it without including it.
#include "mlx/array.h"

#include "mlx/backend/cuda/cuda.h"
#include "mlx/backend/metal/metal.h"
#include "mlx/compile.h"
#include "mlx/compile_impl.h"
#include "mlx/distributed/distributed.h"
#include "mlx/distributed/ops.h"
#include "mlx/einsum.h"
#include "mlx/export.h"
#include "mlx/fast.h"
#include "mlx/fft.h"
#include "mlx/graph_utils.h"
#include "mlx/io.h"
#include "mlx/linalg.h"
#include "mlx/memory.h"
#include "mlx/ops.h"
#include "mlx/random.h"
#include "mlx/transforms.h"
#include "mlx/transforms_impl.h"
#include "mlx/version.h"

#include "errors.hpp"
#include "failures.hpp"
#include "generated/mlxc.h"

// Names that MLX's headers use unqualified inside their namespaces, as the generated casts repeat them.
using mlx::core::detail::CompileCacheWeakPtr;
using mlx::core::distributed::Group;
using mlx::core::fft::FFTNorm;

namespace mlxc {

namespace mx = mlx::core;

using Arrays = std::vector<mx::array>;
using ArrayMap = std::unordered_map<std::string, mx::array>;
using StringMap = std::unordered_map<std::string, std::string>;
using Ints = std::vector<int>;
using Strings = std::vector<std::string>;
using DeviceInfo = std::unordered_map<std::string, std::variant<std::string, size_t>>;
using Closure = std::function<Arrays(const Arrays&)>;
using KwargsClosure = std::function<Arrays(const Arrays&, const ArrayMap&)>;
using CustomClosure = std::function<Arrays(const Arrays&, const Arrays&, const Arrays&)>;
using CustomJvp = std::function<Arrays(const Arrays&, const Arrays&, const Ints&)>;
using CustomVmap = std::function<std::pair<Arrays, Ints>(const Arrays&, const Ints&)>;

struct CReader;
struct CWriter;

// What a custom kernel is applied with; the two back ends have one form.
struct KernelConfig {
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  std::tuple<int, int, int> grid{1, 1, 1};
  std::tuple<int, int, int> group{1, 1, 1};
  std::vector<std::pair<std::string, mx::fast::TemplateArg>> template_args;
  std::optional<float> init;
  bool verbose = false;
};

// ---- handle -> C++ type
template <class Handle>
struct Target;

#define MLXC_HANDLE(HANDLE, ...)                 \
  template <>                                    \
  struct Target<HANDLE> {                        \
    using type = __VA_ARGS__;                    \
    static constexpr const char* name = #HANDLE; \
  };
MLXC_HANDLE(mlx_array, mx::array)
MLXC_HANDLE(mlx_string, std::string)
MLXC_HANDLE(mlx_vector_array, Arrays)
MLXC_HANDLE(mlx_vector_vector_array, std::vector<Arrays>)
MLXC_HANDLE(mlx_vector_int, Ints)
MLXC_HANDLE(mlx_vector_string, Strings)
MLXC_HANDLE(mlx_vector_stream, std::vector<mx::Stream>)
MLXC_HANDLE(mlx_map_string_to_array, ArrayMap)
MLXC_HANDLE(mlx_map_string_to_string, StringMap)
MLXC_HANDLE(mlx_device, mx::Device)
MLXC_HANDLE(mlx_device_info, DeviceInfo)
MLXC_HANDLE(mlx_stream, mx::Stream)
MLXC_HANDLE(mlx_stream_thread_local, mx::ThreadLocalStream)
MLXC_HANDLE(mlx_closure, Closure)
MLXC_HANDLE(mlx_closure_kwargs, KwargsClosure)
MLXC_HANDLE(mlx_closure_value_and_grad, mx::ValueAndGradFn)
MLXC_HANDLE(mlx_closure_custom, CustomClosure)
MLXC_HANDLE(mlx_closure_custom_jvp, CustomJvp)
MLXC_HANDLE(mlx_closure_custom_vmap, CustomVmap)
MLXC_HANDLE(mlx_compile_cache, CompileCacheWeakPtr)
MLXC_HANDLE(mlx_distributed_group, Group)
MLXC_HANDLE(mlx_io_reader, std::shared_ptr<CReader>)
MLXC_HANDLE(mlx_io_writer, std::shared_ptr<CWriter>)
MLXC_HANDLE(mlx_io_gguf, mx::GGUFLoad)
MLXC_HANDLE(mlx_function_exporter, mx::FunctionExporter)
MLXC_HANDLE(mlx_imported_function, mx::ImportedFunction)
MLXC_HANDLE(mlx_node_namer, mx::NodeNamer)
MLXC_HANDLE(mlx_fast_metal_kernel_config, KernelConfig)
MLXC_HANDLE(mlx_fast_metal_kernel, mx::fast::CustomKernelFunction)
MLXC_HANDLE(mlx_fast_cuda_kernel_config, KernelConfig)
MLXC_HANDLE(mlx_fast_cuda_kernel, mx::fast::CustomKernelFunction)
#undef MLXC_HANDLE

template <class Handle>
using target_t = typename Target<Handle>::type;

// ---- C -> C++. The helpers are called c_*, because C parameter names (dtype, shape, stream) would hide plain ones.

// The object behind a handle, whatever its state.
template <class Handle>
target_t<Handle>& c_peek(Handle h) {
  if (!h.ctx) empty_handle(Target<Handle>::name);
  return *static_cast<target_t<Handle>*>(h.ctx);
}

// The object behind a handle, to compute with: an array whose evaluation failed is refused.
template <class Handle>
target_t<Handle>& c_ref(Handle h) {
  auto& object = c_peek(h);
  if constexpr (std::is_same_v<Handle, mlx_array>) check_not_failed(object);
  return object;
}

template <class Handle>
const target_t<Handle>& c_ref_or_empty(Handle h) {
  static const target_t<Handle> none{};
  return h.ctx ? c_ref(h) : none;
}

template <class Handle>
std::optional<target_t<Handle>> c_opt(Handle h) {
  if (!h.ctx) return std::nullopt;
  return c_ref(h);
}

mx::Dtype c_dtype(mlx_dtype d);
mlx_dtype from_dtype(mx::Dtype d);
mx::Device::DeviceType c_device_type(mlx_device_type t);
FFTNorm c_fft_norm(mlx_fft_norm n);
mx::CompileMode c_compile_mode(mlx_compile_mode m);

// A shape for new data: no dimension is negative. mlx-c counts dimensions in a size_t here, in an int there.
mx::Shape c_shape(const int* dims, size_t n);
mx::Shape c_dims(const int* dims, int n);

// Bytes of an array of a shape from c_shape or c_dims.
size_t c_nbytes(const mx::Shape& shape, mx::Dtype dtype);

inline std::optional<int> c_opt(mlx_optional_int o) {
  return o.has_value ? std::optional<int>(o.value) : std::nullopt;
}
inline std::optional<float> c_opt(mlx_optional_float o) {
  return o.has_value ? std::optional<float>(o.value) : std::nullopt;
}
inline std::optional<mx::Dtype> c_opt(mlx_optional_dtype o) {
  return o.has_value ? std::optional<mx::Dtype>(c_dtype(o.value)) : std::nullopt;
}

template <class Sequence, class Element>
Sequence c_span(const Element* data, size_t n) {
  if (!data && n) bad_argument("NULL data with a non-zero size");
  return Sequence(data, data + n);
}

// NULL means "not given"; not NULL with size 0 is an empty list.
inline std::optional<Ints> c_opt_ints(const int* data, size_t n) {
  if (!data) return std::nullopt;
  return Ints(data, data + n);
}

inline std::string c_str(const char* text) {
  if (!text) bad_argument("NULL string");
  return text;
}

// ---- C++ -> C

// Whatever made an array: MLX's product of dimensions wraps, and it would allocate what is left and write past that.
void check_size(const mx::Shape& shape);
inline void check_size(const mx::array& a) { check_size(a.shape()); }
inline void check_size(const Arrays& arrays) {
  for (const auto& a : arrays) check_size(a);
}

// A set handle is assigned to in place, an empty one is filled.
template <class Handle, class Value>
void put(Handle* result, Value&& value) {
  using T = target_t<Handle>;
  if (!result) bad_argument("NULL result pointer");
  if constexpr (std::is_same_v<T, mx::array> || std::is_same_v<T, Arrays>) check_size(value);
  if (result->ctx)
    *static_cast<T*>(result->ctx) = T(std::forward<Value>(value));
  else
    result->ctx = new T(std::forward<Value>(value));
}

template <class Handle0, class Handle1, class Pair>
void put(Handle0* first, Handle1* second, Pair&& pair) {
  if (!first || !second) bad_argument("NULL result pointer");
  put(first, std::move(std::get<0>(pair)));
  put(second, std::move(std::get<1>(pair)));
}

template <class T>
void put_value(T* result, T value) {
  if (!result) bad_argument("NULL result pointer");
  *result = value;
}
inline void put(size_t* result, size_t value) { put_value(result, value); }
inline void put(bool* result, bool value) { put_value(result, value); }
inline void put(int* result, int value) { put_value(result, value); }

template <class Handle, class... Args>
Handle make(Args&&... args) {
  return Handle{new target_t<Handle>(std::forward<Args>(args)...)};
}

template <class Handle>
int drop(Handle h) MLXC_TRY(delete static_cast<target_t<Handle>*>(h.ctx);)

} // namespace mlxc
