// The loops, and the table of them for one instruction set.
#pragma once

#include "arithmetic.hpp"
#include "bytes.hpp"
#include "functions.hpp"
#include "levels.hpp"
#include "recurrent.hpp"
#include "windows.hpp"

namespace mlxc::kernels {
namespace {

template <Unary kind>
MLXC_INLINE F apply(F x, float p, float q) {
  if constexpr (kind == exp) return exp_of(x);
  if constexpr (kind == log) return log_of(x);
  if constexpr (kind == sin) return sine_of(x, 0);
  if constexpr (kind == cos) return sine_of(x, 1);
  if constexpr (kind == tanh) return tanh_of(x);
  if constexpr (kind == erf) return erf_of(x);
  if constexpr (kind == sigmoid) return sigmoid_of(x);
  if constexpr (kind == silu) return x * sigmoid_of(p * x);
  if constexpr (kind == gelu) return x * normal_cdf(x);
  if constexpr (kind == softplus) return (x < all(0.0f) ? all(0.0f) : x) + log1p_of_fraction(exp_of((F)((U)x | 0x80000000u)));
  if constexpr (kind == hard_sigmoid) return clamped(p * x + q, 0.0f, 1.0f);
  if constexpr (kind == hard_swish) return x * clamped(p * x + q, 0.0f, 1.0f);
  if constexpr (kind == leaky_relu) return x < all(0.0f) ? p * x : x;
  if constexpr (kind == clip) return clamped(x, p, q);
  if constexpr (kind == levels) {
    F level = rounded(in_integers(x / p)).n;
    return clamped(level, q, q + 255) * p;
  }
}

template <Unary kind, class E>
MLXC_INLINE void map_plain(const typename E::T* in, typename E::T* out, size_t n, float p, float q) {
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) E::store(out + i, apply<kind>(E::load(in + i), p, q));
  if (i < n) store_part<E>(out + i, apply<kind>(load_part<E>(in + i, n - i), p, q), n - i);
}

// Sine and cosine of large arguments, one by one.
template <Unary kind, class E>
void map_large(const typename E::T* in, typename E::T* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    F x = load_part<E>(in + i, 1);
    x[0] = kind == sin ? __builtin_sinf(x[0]) : __builtin_cosf(x[0]);
    store_part<E>(out + i, x, 1);
  }
}

template <Unary kind, class E>
void map(const void* source, void* target, size_t n, float p, float q) {
  auto in = (const typename E::T*)source;
  auto out = (typename E::T*)target;
  if constexpr (kind != sin && kind != cos) return map_plain<kind, E>(in, out, n, p, q);
  constexpr size_t block = 32 * lanes;
  for (size_t i = 0; i < n; i += block) {
    size_t m = n - i < block ? n - i : block;
    F most = all(0.0f);
    size_t j = i;
    for (; j + lanes <= i + m; j += lanes) most = max(abs(E::load(in + j)), most);
    if (j < i + m) most = max(abs(load_part<E>(in + j, i + m - j)), most);
    if (highest(most) > trigonometric_limit)
      map_large<kind, E>(in + i, out + i, m);
    else
      map_plain<kind, E>(in + i, out + i, m, p, q);
  }
}

// exp(x - max) / sum, the sum in float32 over 1024 elements at a time and in float64 across.
template <class E>
MLXC_INLINE void softmax_row(const typename E::T* in, typename E::T* out, size_t n) {
  // The output has room for the exponentials in between where it is float32; else they are computed twice.
  constexpr bool keeps = sizeof(typename E::T) == 4;
  size_t whole = n - n % lanes, rest = n - whole;
  F most = all(-__builtin_inff());
  for (size_t i = 0; i < whole; i += lanes) most = max(E::load(in + i), most);
  float top = highest(most);
  if (rest) {
    F last = load_part<E>(in + whole, rest);
    for (size_t i = 0; i < rest; ++i) top = last[i] > top ? last[i] : top;
  }
  double total = 0;
  for (size_t start = 0; start < whole; start += 1024) {
    size_t end = start + 1024 < whole ? start + 1024 : whole;
    F part = all(0.0f);
    for (size_t i = start; i < end; i += lanes) {
      F e = exp_of(E::load(in + i) - top);
      part += e;
      if constexpr (keeps) E::store(out + i, e);
    }
    total += sum(part);
  }
  F last = exp_of(load_part<E>(in + whole, rest) - top);
  for (size_t i = 0; i < rest; ++i) total += last[i];
  float scale = float(1.0 / total);
  for (size_t i = 0; i < whole; i += lanes)
    E::store(out + i, (keeps ? E::load(out + i) : exp_of(E::load(in + i) - top)) * scale);
  store_part<E>(out + whole, last * scale, rest);
}

template <class E>
void softmax(const void* source, void* target, size_t rows, size_t length) {
  auto in = (const typename E::T*)source;
  auto out = (typename E::T*)target;
  for (size_t row = 0; row < rows; ++row) softmax_row<E>(in + row * length, out + row * length, length);
}

void convolve_bytes(
    SeenBytes seen, const int8_t* weights, const Starts& starts, int32_t* out, int n, const Window& w) {
  all_bytes(seen, weights, starts, out, n, w);
}

void sum_bytes(const uint8_t* in, size_t n, int length, int32_t* out) {
  for (size_t i = 0; i < n; ++i, in += length) {
    I sums = {};
    int c = 0;
    for (; c + 4 * lanes <= length; c += 4 * lanes) sums = dot(sums, *(const I_at*)(in + c), I{} + 0x01010101);
    int32_t total = 0;
    for (int j = 0; j < lanes; ++j) total += sums[j];
    for (; c < length; ++c) total += in[c];
    out[i] = total;
  }
}

} // namespace

#define MLXC_MAP(KIND) \
  { map<KIND, Float32>, map<KIND, Float16>, map<KIND, BFloat16> }
#define MLXC_OPERANDS(KIND, TYPE) \
  { combine<KIND, TYPE, both>, combine<KIND, TYPE, scalar_first>, combine<KIND, TYPE, scalar_second> }
#define MLXC_COMBINE(KIND) \
  { MLXC_OPERANDS(KIND, Float32), MLXC_OPERANDS(KIND, Float16), MLXC_OPERANDS(KIND, BFloat16) }
#define MLXC_CONVERT(FROM) \
  { convert<FROM, Float32>, convert<FROM, Float16>, convert<FROM, BFloat16> }
#define MLXC_TEXT_(X) #X
#define MLXC_TEXT(X) MLXC_TEXT_(X)

extern const Table MLXC_ISA = {
    MLXC_TEXT(MLXC_ISA),
    {MLXC_MAP(exp), MLXC_MAP(log), MLXC_MAP(sin), MLXC_MAP(cos), MLXC_MAP(tanh), MLXC_MAP(erf), MLXC_MAP(sigmoid),
     MLXC_MAP(silu), MLXC_MAP(gelu), MLXC_MAP(softplus), MLXC_MAP(hard_sigmoid), MLXC_MAP(hard_swish),
     MLXC_MAP(leaky_relu), MLXC_MAP(clip), MLXC_MAP(levels)},
    {softmax<Float32>, softmax<Float16>, softmax<BFloat16>},
    {MLXC_COMBINE(add), MLXC_COMBINE(subtract), MLXC_COMBINE(multiply), MLXC_COMBINE(divide), MLXC_COMBINE(maximum),
     MLXC_COMBINE(minimum)},
    {MLXC_CONVERT(Float32), MLXC_CONVERT(Float16), MLXC_CONVERT(BFloat16)},
    quantize,
    extremes,
    floats,
    dequantize<int8_t>,
    dequantize<uint8_t>,
    convolve,
    depthwise,
    convolve_bytes,
    sum_bytes,
    pool_sum,
    pool_max,
    unpack,
    recur,
    lstm_cell,
};

} // namespace mlxc::kernels
