// Arithmetic of two operands, conversions, linear quantisation.
#pragma once

#include "vector.hpp"

namespace mlxc::kernels {
namespace {

typedef int8_t S8 __attribute__((vector_size(MLXC_LANES)));
typedef uint8_t U8 __attribute__((vector_size(MLXC_LANES)));
typedef int8_t S8_at __attribute__((vector_size(MLXC_LANES), aligned(1), may_alias));
typedef uint8_t U8_at __attribute__((vector_size(MLXC_LANES), aligned(1), may_alias));

// A NaN in either operand stays.
MLXC_INLINE F combined(Binary kind, F a, F b) {
  switch (kind) {
    case add: return a + b;
    case subtract: return a - b;
    case multiply: return a * b;
    case divide: return a / b;
    case maximum: return ((a > b) | (a != a)) != 0 ? a : b;
    default: return ((a < b) | (a != a)) != 0 ? a : b;
  }
}

template <Binary kind, class E, Operands operands>
void combine(const void* first, const void* second, void* target, size_t n) {
  auto a = (const typename E::T*)first;
  auto b = (const typename E::T*)second;
  auto out = (typename E::T*)target;
  const F left = all(load_part<E>(a, 1)[0]), right = all(load_part<E>(b, 1)[0]);
  const bool moves_a = operands != scalar_first, moves_b = operands != scalar_second;
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    E::store(out + i, combined(kind, moves_a ? E::load(a + i) : left, moves_b ? E::load(b + i) : right));
  if (i == n) return;
  F x = moves_a ? load_part<E>(a + i, n - i) : left, y = moves_b ? load_part<E>(b + i, n - i) : right;
  store_part<E>(out + i, combined(kind, x, y), n - i);
}

template <class From, class To>
void convert(const void* source, void* target, size_t n) {
  auto in = (const typename From::T*)source;
  auto out = (typename To::T*)target;
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) To::store(out + i, From::load(in + i));
  if (i < n) store_part<To>(out + i, load_part<From>(in + i, n - i), n - i);
}

// A level beyond 2^20 is out of every range anyway, and rounding is exact up to there. A NaN becomes the least.
MLXC_INLINE F in_integers(F x) {
  x = x >= all(-0x1p20f) ? x : all(-0x1p20f);
  return x <= all(0x1p20f) ? x : all(0x1p20f);
}

MLXC_INLINE U8 level(F x, float scale, int zero, int low, int high) {
  I found = (I)(in_integers(x / scale) + 0x1.8p23f) - 0x4b400000 + zero;
  found = found < low ? I{} + low : found;
  found = found > high ? I{} + high : found;
  return __builtin_convertvector(found, U8);
}

void quantize(const void* source, void* target, size_t n, float scale, int zero, int low, int high) {
  auto in = (const float*)source;
  auto out = (uint8_t*)target;
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) *(U8_at*)(out + i) = level(Float32::load(in + i), scale, zero, low, high);
  if (i == n) return;
  U8 last = level(load_part<Float32>(in + i, n - i), scale, zero, low, high);
  for (size_t j = 0; i < n; ++i, ++j) out[i] = last[j];
}

void extremes(const float* in, size_t n, float* low, float* high) {
  F least = all(*low), most = all(*high);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    F x = Float32::load(in + i);
    least = min(x, least);
    most = max(x, most);
  }
  for (int j = 0; j < lanes; ++j) {
    *low = least[j] < *low ? least[j] : *low;
    *high = most[j] > *high ? most[j] : *high;
  }
  for (; i < n; ++i) {
    *low = in[i] < *low ? in[i] : *low;
    *high = in[i] > *high ? in[i] : *high;
  }
}

void floats(const int32_t* in, float* out, size_t n) {
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) *(F_at*)(out + i) = __builtin_convertvector(*(const I_at*)(in + i), F);
  for (; i < n; ++i) {
    const int32_t x = in[i];
    out[i] = float(x);
  }
}

template <class T>
void dequantize(const void* source, void* target, size_t n, float scale, int zero) {
  auto in = (const T*)source;
  auto out = (float*)target;
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    I x;
    if constexpr (T(-1) < 0)
      x = __builtin_convertvector(*(const S8_at*)(in + i), I);
    else
      x = __builtin_convertvector(*(const U8_at*)(in + i), I);
    Float32::store(out + i, __builtin_convertvector(x - zero, F) * scale);
  }
  for (; i < n; ++i) out[i] = float(int(in[i]) - zero) * scale;
}

} // namespace
} // namespace mlxc::kernels
