// Convolution of bytes, one chunk of output positions, in exact integers.
#pragma once

#include "tiles.hpp"

namespace mlxc::kernels {
namespace {

typedef int16_t S16 __attribute__((vector_size(4 * MLXC_LANES)));
typedef uint16_t U16 __attribute__((vector_size(4 * MLXC_LANES)));

#if defined(__x86_64__) && !defined(MLXC_VNNI)
// Products of 16-bit integers, neighbours summed in 32 bits.
MLXC_INLINE I paired(S16 a, S16 b) {
#if MLXC_LANES == 4
  return (I)__builtin_ia32_pmaddwd128(a, b);
#elif MLXC_LANES == 8
  return (I)__builtin_ia32_pmaddwd256(a, b);
#elif defined(__clang__)
  return (I)__builtin_ia32_pmaddwd512(a, b);
#else
  return (I)__builtin_ia32_pmaddwd512_mask(a, b, I{}, -1);
#endif
}
#endif

// sum + the four unsigned bytes of each lane times the four signed ones: every partial sum is exact.
MLXC_INLINE I dot(I sum, I bytes, I weights) {
#if defined(MLXC_VNNI)
  // in assembler because GCC and clang name the builtin differently
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(weights));
  return sum;
#elif defined(__x86_64__)
  const S16 low = (S16)bytes & 0xff, high = (S16)((U16)bytes >> 8);
  return sum + paired(low, (S16)((U16)weights << 8) >> 8) + paired(high, (S16)weights >> 8);
#else
  for (int shift = 24; shift >= 0; shift -= 8) sum += (I)(((U)bytes << shift) >> 24) * ((I)((U)weights << shift) >> 24);
  return sum;
#endif
}

MLXC_INLINE I four_bytes(const uint8_t* p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, 4);
  return I{} + bytes;
}

// As convolve_tile in windows.hpp.
template <int positions, int blocks>
void bytes_tile(
    SeenBytes seen, int skipped, const int8_t* weights, const Starts& starts, int32_t* out, int n, int wanted,
    const Window& w) {
  constexpr int width = blocks * vectors;
  const int kernel = w.kernel_height * w.kernel_width, channels = w.channels / w.groups;
  const size_t block_size = size_t(kernel) * channels * block;
  I sums[positions][width];
  MLXC_UNROLL
  for (int i = 0; i < positions; ++i) {
    MLXC_UNROLL
    for (int v = 0; v < width; ++v) {
      sums[i][v] = *(const I_at*)(starts.start + v * lanes);
      if (starts.zeros) sums[i][v] -= *(const I_at*)(starts.zeros + v * lanes) * starts.sums[i];
    }
  }
  for (int k = 0; k < kernel; ++k, seen += chunk) {
    const uint8_t* pixel[positions];
    MLXC_UNROLL
    for (int i = 0; i < positions; ++i) pixel[i] = seen[i] + skipped;
    for (int c = 0; c < channels; c += 4, weights += 4 * block) {
      I row[width];
      MLXC_UNROLL
      for (int v = 0; v < width; ++v)
        row[v] = *(const I_at*)(weights + size_t(v / vectors) * block_size + (v % vectors) * 4 * lanes);
      MLXC_UNROLL
      for (int i = 0; i < positions; ++i) {
        I x = four_bytes(pixel[i] + c);
        MLXC_UNROLL
        for (int v = 0; v < width; ++v) sums[i][v] = dot(sums[i][v], x, row[v]);
      }
    }
  }
  MLXC_UNROLL
  for (int i = 0; i < positions; ++i) {
    int32_t* to = out + size_t(i) * w.out_channels;
    MLXC_UNROLL
    for (int v = 0; v < width; ++v) {
      const int left = i < n ? wanted - v * lanes : 0;
      if (left >= lanes)
        *(I_at*)(to + v * lanes) = sums[i][v];
      else
        for (int j = 0; j < left; ++j) to[v * lanes + j] = sums[i][v][j];
    }
  }
}

template <int blocks>
MLXC_INLINE void bytes_blocks(
    SeenBytes seen, int skipped, const int8_t* weights, Starts starts, int32_t* out, int n, int wanted, const Window& w) {
  for (int i = 0; i < n;) {
    const int left = n - i, done = left > small_tile ? tile : left > 1 ? small_tile : 1;
    if (done == tile)
      bytes_tile<tile, blocks>(seen + i, skipped, weights, starts, out, left, wanted, w);
    else if (done > 1)
      bytes_tile<small_tile, blocks>(seen + i, skipped, weights, starts, out, left, wanted, w);
    else
      bytes_tile<1, blocks>(seen + i, skipped, weights, starts, out, left, wanted, w);
    i += done;
    starts.sums += done;
    out += size_t(done) * w.out_channels;
  }
}

MLXC_INLINE void all_bytes(
    SeenBytes seen, const int8_t* weights, Starts starts, int32_t* out, int n, const Window& w) {
  const int channels = w.channels / w.groups, made = w.out_channels / w.groups;
  const size_t block_size = size_t(w.kernel_height) * w.kernel_width * channels * block;
  const int all_blocks = (made + block - 1) / block;
  for (int group = 0; group < w.groups; ++group, starts.sums += seen_sums) {
    for (int done = 0; done < all_blocks;) {
      const int now = blocks_now(all_blocks - done), first = done * block, skipped = group * channels;
      int32_t* to = out + group * made + first;
      if constexpr (most_blocks == 3) {
        if (now == 3) bytes_blocks<3>(seen, skipped, weights, starts, to, n, made - first, w);
        if (now == 2) bytes_blocks<2>(seen, skipped, weights, starts, to, n, made - first, w);
      }
      if (now == 1) bytes_blocks<1>(seen, skipped, weights, starts, to, n, made - first, w);
      done += now;
      weights += now * block_size;
      starts.start += now * block;
      if (starts.zeros) starts.zeros += now * block;
    }
  }
}

} // namespace
} // namespace mlxc::kernels
