// Vectors of MLXC_LANES floats in the compilers' own notation, which GCC and clang turn into any instruction set's.
#pragma once

#include "kernels.hpp"

// Always inlined: a vector that is passed in a call has another ABI in each instruction set.
#define MLXC_INLINE static inline __attribute__((always_inline))

#ifdef __clang__
#define MLXC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MLXC_UNROLL _Pragma("GCC unroll 16")
#endif

namespace mlxc::kernels {
namespace {

constexpr int lanes = MLXC_LANES;

typedef float F __attribute__((vector_size(4 * MLXC_LANES)));
typedef int32_t I __attribute__((vector_size(4 * MLXC_LANES)));
typedef uint32_t U __attribute__((vector_size(4 * MLXC_LANES)));
typedef uint16_t H __attribute__((vector_size(2 * MLXC_LANES)));

// The same types where they may lie at any address.
typedef int32_t I_at __attribute__((vector_size(4 * MLXC_LANES), aligned(1), may_alias));
typedef float F_at __attribute__((vector_size(4 * MLXC_LANES), aligned(1), may_alias));
typedef uint16_t H_at __attribute__((vector_size(2 * MLXC_LANES), aligned(1), may_alias));

MLXC_INLINE F all(float x) { return x - F{}; }  // + would make +0 of -0
MLXC_INLINE U all_bits(uint32_t x) { return U{} + x; }
MLXC_INLINE F abs(F x) { return (F)((U)x & 0x7fffffffu); }
MLXC_INLINE F with_sign_of(F magnitude, F sign) { return (F)((U)magnitude | ((U)sign & 0x80000000u)); }
MLXC_INLINE F max(F a, F b) { return a > b ? a : b; }
MLXC_INLINE F min(F a, F b) { return a < b ? a : b; }

// A NaN stays one: the comparisons are false.
MLXC_INLINE F clamped(F x, float low, float high) {
  x = x < all(low) ? all(low) : x;
  return x > all(high) ? all(high) : x;
}

MLXC_INLINE float sum(F x) {
  float total = 0;
  for (int i = 0; i < lanes; ++i) total += x[i];
  return total;
}

MLXC_INLINE float highest(F x) {
  float found = x[0];
  for (int i = 1; i < lanes; ++i) found = x[i] > found ? x[i] : found;
  return found;
}

#if MLXC_LANES == 8
// All bits of the first n lanes.
MLXC_INLINE I first_lanes(size_t n) { return I{0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)n; }
#endif

// ---- memory: an element type, how a vector of it is read and written
struct Float32 {
  using T = float;
  MLXC_INLINE F load(const T* p) { return *(const F_at*)p; }
  MLXC_INLINE void store(T* p, F x) { *(F_at*)p = x; }
};

struct BFloat16 {
  using T = uint16_t;
  MLXC_INLINE F load(const T* p) { return (F)(__builtin_convertvector(*(const H_at*)p, U) << 16); }
  MLXC_INLINE void store(T* p, F x) {
    U bits = (U)x;
    U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    U quiet = (bits >> 16) | 0x40u;
    *(H_at*)p = __builtin_convertvector(x == x ? rounded : quiet, H);
  }
};

struct Float16 {
  using T = uint16_t;
  // The exponent moves by 112; multiplying instead of adding makes subnormals right.
  MLXC_INLINE F load(const T* p) {
    U bits = __builtin_convertvector(*(const H_at*)p, U);
    U magnitude = (bits & 0x7fffu) << 13;
    U scaled = (U)((F)magnitude * 0x1p112f);
    U special = magnitude | 0x7f800000u;
    return (F)((magnitude >= all_bits(0x0f800000u) ? special : scaled) | ((bits & 0x8000u) << 16));
  }
  MLXC_INLINE void store(T* p, F x) {
    U sign = ((U)x >> 16) & 0x8000u;
    U magnitude = (U)x & 0x7fffffffu;
    U normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // The addition leaves a subnormal result's bits, rounded, at the end of the sum.
    U small = (U)((F)magnitude + 0.5f) - 0x3f000000u;
    U special = magnitude > all_bits(0x7f800000u) ? all_bits(0x7e00u) : all_bits(0x7c00u);
    U narrow = magnitude < all_bits(113u << 23) ? small : normal;
    narrow = magnitude >= all_bits(0x47800000u) ? special : narrow;
    *(H_at*)p = __builtin_convertvector(narrow | sign, H);
  }
};

// Up to `lanes` elements, in pieces whose sizes are powers of two.
template <class T>
MLXC_INLINE void copy_part(T* to, const T* from, size_t n) {
  MLXC_UNROLL
  for (int piece = lanes; piece; piece /= 2)
    if (n & piece) {
      __builtin_memcpy(to, from, piece * sizeof(T));
      to += piece;
      from += piece;
    }
}

// The last n <= lanes elements.
template <class E>
MLXC_INLINE F load_part(const typename E::T* p, size_t n) {
#if MLXC_LANES == 16
  if constexpr (sizeof(*p) == 4) return __builtin_ia32_loadups512_mask((const float*)p, F{}, (1u << n) - 1);
#elif MLXC_LANES == 8
  if constexpr (sizeof(*p) == 4) return __builtin_ia32_maskloadps256((const F*)p, first_lanes(n));
#endif
  typename E::T whole[lanes] = {};
  copy_part(whole, p, n);
  return E::load(whole);
}

template <class E>
MLXC_INLINE void store_part(typename E::T* p, F x, size_t n) {
#if MLXC_LANES == 16
  if constexpr (sizeof(*p) == 4) return __builtin_ia32_storeups512_mask((float*)p, x, (1u << n) - 1);
#elif MLXC_LANES == 8
  if constexpr (sizeof(*p) == 4) return __builtin_ia32_maskstoreps256((F*)p, first_lanes(n), x);
#endif
  typename E::T whole[lanes];
  E::store(whole, x);
  copy_part(p, whole, n);
}

} // namespace
} // namespace mlxc::kernels
