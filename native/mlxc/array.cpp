// mlx_array: construction, properties, data.
#include <complex>
#include <cstring>
#include <sstream>

#include "allocation.hpp"
#include "handles.hpp"
#include "host_memory.hpp"

using namespace mlxc;
using mx::array;

namespace {

array from_data(const void* data, const int* dims, int ndim, mlx_dtype type) {
  return copied(data, c_dims(dims, ndim), c_dtype(type));
}

// The caller owns the data until this returns an array; on failure `dtor` is not called.
array from_managed(void* data, const int* dims, int ndim, mlx_dtype type, void* payload, void (*dtor)(void*)) {
  auto shape = c_dims(dims, ndim);
  const auto dtype = c_dtype(type);
  const size_t bytes = c_nbytes(shape, dtype);
  if (!data && bytes) bad_argument("NULL data");
  guard_allocations();
  return array(data, std::move(shape), dtype, [payload, dtor](void*) {
    if (dtor) dtor(payload);
  });
}

// Pointer to the data of an evaluated array; one without data is an error, where MLX itself would crash.
const void* data_of(mlx_array h) {
  auto& a = c_ref(h);
  if (a.status() == array::Status::unscheduled || !a.data_shared_ptr())
    bad_argument("array has no data yet: evaluate it first");
  if (!a.is_available()) await(a);
  return a.data<char>();
}

// MLX reinterprets; a type of another size would read past the element.
template <class T, class Result>
void item(Result* result, mlx_array h) {
  static_assert(sizeof(T) == sizeof(Result));
  auto& a = c_ref(h);
  if (!result) bad_argument("NULL result pointer");
  if (a.itemsize() != sizeof(T)) bad_argument("item: the array's elements have another size");
  if (a.size() != 1) bad_argument("item: the array has not exactly one element");
  evaluate({a});
  const T value = a.item<T>();
  std::memcpy(result, &value, sizeof value);
}

// MLX's fused divmod of integers ends the process at a zero divisor; the two functions it stands for do not.
Arrays quotient_and_remainder(const array& a, const array& b, mlx_stream s) {
  if (!mx::issubdtype(mx::promote_types(a.dtype(), b.dtype()), mx::integer)) return mx::divmod(a, b, c_ref(s));
  return {mx::floor_divide(a, b, c_ref(s)), mx::remainder(a, b, c_ref(s))};
}

std::string text_of(mlx_array h) {
  auto a = c_ref(h);
  evaluate({a});
  std::ostringstream text;
  text << a;
  return text.str();
}

} // namespace

extern "C" {

mlx_array mlx_array_new(void) { return {}; }
int mlx_array_free(mlx_array a) { return drop(a); }
int mlx_array_set(mlx_array* d, mlx_array s) MLXC_TRY(put(d, c_peek(s));)
int mlx_array_tostring(mlx_string* d, mlx_array a) MLXC_TRY(put(d, text_of(a));)

#define SCALAR(NAME, T, ...)                                                          \
  mlx_array mlx_array_new_##NAME(T val) MLXC_RETURN({}, make<mlx_array>(__VA_ARGS__)) \
  int mlx_array_set_##NAME(mlx_array* arr, T val) MLXC_TRY(put(arr, array(__VA_ARGS__));)
SCALAR(bool, bool, val)
SCALAR(int, int, val)
SCALAR(float32, float, val)
SCALAR(float, float, val)
SCALAR(float64, double, val, mx::float64)
SCALAR(double, double, val, mx::float64)
#undef SCALAR

mlx_array mlx_array_new_complex(float re, float im)
    MLXC_RETURN({}, make<mlx_array>(std::complex<float>(re, im)))
int mlx_array_set_complex(mlx_array* arr, float re, float im)
    MLXC_TRY(put(arr, array(std::complex<float>(re, im)));)

mlx_array mlx_array_new_data(const void* data, const int* shape, int dim, mlx_dtype dtype)
    MLXC_RETURN({}, make<mlx_array>(from_data(data, shape, dim, dtype)))
int mlx_array_set_data(mlx_array* arr, const void* data, const int* shape, int dim, mlx_dtype dtype)
    MLXC_TRY(put(arr, from_data(data, shape, dim, dtype));)
mlx_array mlx_array_new_data_managed(void* data, const int* shape, int dim, mlx_dtype dtype, void (*dtor)(void*))
    MLXC_RETURN({}, make<mlx_array>(from_managed(data, shape, dim, dtype, data, dtor)))
mlx_array mlx_array_new_data_managed_payload(
    void* data, const int* shape, int dim, mlx_dtype dtype, void* payload, void (*dtor)(void*))
    MLXC_RETURN({}, make<mlx_array>(from_managed(data, shape, dim, dtype, payload, dtor)))

size_t mlx_dtype_size(mlx_dtype dtype) MLXC_RETURN(0, c_dtype(dtype).size())
size_t mlx_array_itemsize(mlx_array a) MLXC_RETURN(0, c_peek(a).itemsize())
size_t mlx_array_size(mlx_array a) MLXC_RETURN(0, c_peek(a).size())
size_t mlx_array_nbytes(mlx_array a) MLXC_RETURN(0, c_peek(a).nbytes())
size_t mlx_array_ndim(mlx_array a) MLXC_RETURN(0, c_peek(a).ndim())
const int* mlx_array_shape(mlx_array a) MLXC_RETURN(nullptr, c_peek(a).shape().data())
// Declared as size_t in mlx-c; the values are int64, and negative strides occur.
const size_t* mlx_array_strides(mlx_array a)
    MLXC_RETURN(nullptr, reinterpret_cast<const size_t*>(c_peek(a).strides().data()))
int mlx_array_dim(mlx_array a, int dim) MLXC_RETURN(0, c_peek(a).shape(dim))
mlx_dtype mlx_array_dtype(mlx_array a) MLXC_RETURN(MLX_BOOL, from_dtype(c_peek(a).dtype()))

int mlx_array_eval(mlx_array a) MLXC_TRY(evaluate({c_ref(a)});)
int mlx_eval(mlx_vector_array outputs) MLXC_TRY(evaluate(c_ref(outputs));)
int mlx_async_eval(mlx_vector_array outputs) MLXC_TRY(start_evaluation(c_ref(outputs));)

int mlx_divmod(mlx_vector_array* res, mlx_array a, mlx_array b, mlx_stream s)
    MLXC_TRY(put(res, quotient_and_remainder(c_ref(a), c_ref(b), s));)

#define ACCESS(NAME, T, RESULT)                                                             \
  int mlx_array_item_##NAME(RESULT* res, mlx_array a) MLXC_TRY(item<T>(res, a);)            \
  const RESULT* mlx_array_data_##NAME(mlx_array a)                                          \
      MLXC_RETURN(nullptr, static_cast<const RESULT*>(data_of(a)))
ACCESS(bool, bool, bool)
ACCESS(uint8, uint8_t, uint8_t)
ACCESS(uint16, uint16_t, uint16_t)
ACCESS(uint32, uint32_t, uint32_t)
ACCESS(uint64, uint64_t, uint64_t)
ACCESS(int8, int8_t, int8_t)
ACCESS(int16, int16_t, int16_t)
ACCESS(int32, int32_t, int32_t)
ACCESS(int64, int64_t, int64_t)
ACCESS(float32, float, float)
ACCESS(float64, double, double)
ACCESS(complex64, mx::complex64_t, mlx_complex64_t)
// Official mlx-c has these four on AArch64 only.
ACCESS(float16, mx::float16_t, float16_t)
ACCESS(bfloat16, mx::bfloat16_t, bfloat16_t)
#undef ACCESS

int _mlx_array_is_available(bool* res, mlx_array a) MLXC_TRY(put(res, c_ref(a).is_available());)
int _mlx_array_wait(mlx_array a) MLXC_TRY(await(c_ref(a));)
int _mlx_array_is_contiguous(bool* res, mlx_array a) MLXC_TRY(put(res, bool(c_peek(a).flags().contiguous));)
int _mlx_array_is_row_contiguous(bool* res, mlx_array a) MLXC_TRY(put(res, bool(c_peek(a).flags().row_contiguous));)
int _mlx_array_is_col_contiguous(bool* res, mlx_array a) MLXC_TRY(put(res, bool(c_peek(a).flags().col_contiguous));)

} // extern "C"
