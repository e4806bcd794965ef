#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define MLXC_ISA avx2
#define MLXC_LANES 8
#include "table.hpp"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
