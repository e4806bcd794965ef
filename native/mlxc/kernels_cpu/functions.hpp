// Elementary functions of a vector of floats. Errors are stated in units of the last place (ulp) of float32, over all
// arguments, measured by tests/runtime/test_cpu_primitives.py; infinities, NaN and subnormal results are as in libm.
#pragma once

#include "vector.hpp"

namespace mlxc::kernels {
namespace {

// Coefficients from the highest power on.
template <class... Rest>
MLXC_INLINE F horner(F x, F y, float next, Rest... rest) {
  y = y * x + next;
  if constexpr (sizeof...(rest) == 0)
    return y;
  else
    return horner(x, y, rest...);
}

template <class... Rest>
MLXC_INLINE F poly(F x, float first, Rest... rest) {
  return horner(x, all(first), rest...);
}

// The nearest integer n of a small x, as float, and in the low bits of `bits`.
struct Rounded {
  F n;
  I bits;
};

MLXC_INLINE Rounded rounded(F x) {
  constexpr float magic = 0x1.8p23f;
  F shifted = x + magic;
  return {shifted - magic, (I)shifted - 0x4b400000};
}

MLXC_INLINE F power_of_two(I n) { return (F)((n + 127) << 23); }

// 2 ulp
MLXC_INLINE F exp_of(F x) {
  x = clamped(x, -104.0f, 89.0f);
  auto [n, k] = rounded(x * 1.44269504f);
  F r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  F p = poly(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  F y = p * (r * r) + r + 1.0f;
  // Twice, because 2^k alone may be out of range where the result is subnormal or just finite.
  I half = k >> 1;
  return y * power_of_two(half) * power_of_two(k - half);
}

// 2 ulp
MLXC_INLINE F log_of(F x) {
  auto subnormal = x < all(0x1p-126f);
  F scaled = subnormal ? x * 0x1p23f : x;
  I bits = (I)scaled;
  F e = __builtin_convertvector(((bits >> 23) & 0xff) - 126, F) - (subnormal ? all(23.0f) : all(0.0f));
  F m = (F)((bits & 0x7fffff) | 0x3f000000);
  auto low = m < all(0.707106781186547524f);
  e = low ? e - 1.0f : e;
  m = (low ? m + m : m) - 1.0f;
  F z = m * m;
  F p = poly(m, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
             -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f);
  F y = p * m * z + e * -2.12194440e-4f - 0.5f * z;
  y = m + y + e * 0.693359375f;
  y = x == all(0.0f) ? all(-__builtin_inff()) : y;
  y = x < all(0.0f) ? all(__builtin_nanf("")) : y;
  return (x == all(__builtin_inff()) || x != x) ? x : y;
}

// log(1 + x) for 0 <= x <= 1: 2 ulp
MLXC_INLINE F log1p_of_fraction(F x) {
  F u = x + 1.0f;
  // What the sum lost comes back as a correction of the first order.
  F lost = x - (u - 1.0f);
  return log_of(u) + lost / u;
}

// 3 ulp
MLXC_INLINE F sigmoid_of(F x) {
  F e = exp_of((F)((U)x | 0x80000000u));
  return (x < all(0.0f) ? e : all(1.0f)) / (e + 1.0f);
}

// 2 ulp
MLXC_INLINE F tanh_of(F x) {
  F t = abs(x);
  F large = 1.0f - 2.0f / (exp_of(clamped(t + t, 0.0f, 20.0f)) + 1.0f);
  F z = x * x;
  F p = poly(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f);
  F small = p * z * x + x;
  return t > all(0.625f) ? with_sign_of(large, x) : small;
}

// The two sides of erf, joined where each is at its best (N. Juffa's coefficients).
constexpr float erf_joint = 0.927734375f;

// 1 - erf(t) for t > erf_joint
MLXC_INLINE F erfc_tail(F t) {
  F s = t * t;
  F r = poly(t, -1.72853470e-5f, 3.83197126e-4f) * s + poly(t, -3.88396438e-3f, 2.42546219e-2f);
  r = horner(t, r, -1.06777877e-1f, -6.34846687e-1f, -1.28717512e-1f);
  return exp_of(r * t - t);
}

MLXC_INLINE F erf_centre(F x) {
  F p = poly(x * x, -5.96761703e-4f, 4.99119423e-3f, -2.67681349e-2f, 1.12819925e-1f, -3.76125336e-1f, 1.28379166e-1f);
  return p * x + x;
}

// 2 ulp
MLXC_INLINE F erf_of(F x) {
  F t = abs(x);
  return t > all(erf_joint) ? with_sign_of(1.0f - erfc_tail(t), x) : erf_centre(x);
}

// The normal distribution's share below x: no cancellation for x << 0.
MLXC_INLINE F normal_cdf(F x) {
  F scaled = x * 0.70710678118654752f;
  F t = abs(scaled);
  F tail = 0.5f * erfc_tail(t);
  F outer = x < all(0.0f) ? tail : 1.0f - tail;
  return t > all(erf_joint) ? outer : 0.5f + 0.5f * erf_centre(scaled);
}

// Beyond this the reduction below loses digits; scalar libm takes over.
constexpr float trigonometric_limit = 8192.0f;

// Sine (phase 0) or cosine (phase 1): absolute error 2^-23
MLXC_INLINE F sine_of(F x, int phase) {
  auto [n, quadrant] = rounded(x * 0.63661977236758134f);
  F r = x - n * 1.5703125f;
  r = r - n * 4.837512969970703125e-4f;
  r = r - n * 7.54978995489188216e-8f;
  F z = r * r;
  F s = poly(z, -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f) * z * r + r;
  F c = poly(z, 2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
  quadrant += phase;
  F y = (quadrant & 1) != 0 ? c : s;
  return (F)((U)y ^ ((U)(quadrant & 2) << 30));
}

} // namespace
} // namespace mlxc::kernels
