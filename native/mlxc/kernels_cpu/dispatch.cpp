#include "kernels.hpp"

namespace mlxc::kernels {

namespace {

const Table* found[5];
Table vnni; // avx512 with another convolve_bytes
const Table* in_use = nullptr; // an aligned pointer: read and written with atomic builtins

} // namespace

const Table* const* usable() {
  static const bool filled = [] {
    const Table** next = found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool fma = __builtin_cpu_supports("fma");
    if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
      if (__builtin_cpu_supports("avx512vnni")) {
        vnni = avx512;
        vnni.name = "avx512vnni";
        vnni.convolve_bytes = convolve_bytes_vnni;
        *next++ = &vnni;
      }
      *next++ = &avx512;
    }
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
