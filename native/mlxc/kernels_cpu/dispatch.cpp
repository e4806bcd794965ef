#include "kernels.hpp"

namespace mlxc::kernels {

namespace {

const Table* found[4];
const Table* in_use = nullptr; // an aligned pointer: read and written with atomic builtins

} // namespace

const Table* const* usable() {
  static const bool filled = [] {
    const Table** next = found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool fma = __builtin_cpu_supports("fma");
    if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
      *next++ = &avx512;
    if (fma && __builtin_cpu_supports("avx2")) *next++ = &avx2;
#endif
    *next = &baseline;
    return true;
  }();
  (void)filled;
  return found;
}

const Table& chosen() {
  auto table = __atomic_load_n(&in_use, __ATOMIC_RELAXED);
  return table ? *table : *usable()[0];
}

void use(const Table& table) { __atomic_store_n(&in_use, &table, __ATOMIC_RELAXED); }

} // namespace mlxc::kernels
