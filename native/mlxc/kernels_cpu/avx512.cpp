#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")
#endif
#define MLXC_ISA avx512
#define MLXC_LANES 16
#include "table.hpp"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
