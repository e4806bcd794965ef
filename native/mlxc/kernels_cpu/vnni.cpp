// What AVX-512 does better with the instructions for neural networks.
#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,fma,prefer-vector-width=512")
#endif
#define MLXC_LANES 16
#define MLXC_VNNI
#include "bytes.hpp"

namespace mlxc::kernels {

void convolve_bytes_vnni(
    SeenBytes seen, const int8_t* weights, const Starts& starts, int32_t* out, int n, const Window& w) {
  all_bytes(seen, weights, starts, out, n, w);
}

} // namespace mlxc::kernels
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
