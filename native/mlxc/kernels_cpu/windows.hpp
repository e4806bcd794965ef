// Convolution and pooling of one chunk of output positions.
#pragma once

#include "tiles.hpp"

namespace mlxc::kernels {
namespace {

// `positions` positions by `blocks` blocks of one group's output channels, of which `wanted` exist; `positions` beyond
// `n` see padding and are not stored.
template <int positions, int blocks>
void convolve_tile(
    Seen seen, int skipped, const float* weights, const float* bias, float* out, int n, int wanted, const Window& w) {
  constexpr int width = blocks * vectors;
  const int kernel = w.kernel_height * w.kernel_width, channels = w.channels / w.groups;
  const size_t block_size = size_t(kernel) * channels * block;
  F sums[positions][width];
  float start[width * lanes] = {};
  if (bias)
    for (int i = 0; i < wanted && i < width * lanes; ++i) start[i] = bias[i];
  MLXC_UNROLL
  for (int i = 0; i < positions; ++i) {
    MLXC_UNROLL
    for (int v = 0; v < width; ++v) sums[i][v] = *(const F_at*)(start + v * lanes);
  }
  for (int k = 0; k < kernel; ++k, seen += chunk) {
    const float* pixel[positions];
    MLXC_UNROLL
    for (int i = 0; i < positions; ++i) pixel[i] = seen[i] + skipped;
    for (int c = 0; c < channels; ++c, weights += block) {
      F row[width];
      MLXC_UNROLL
      for (int v = 0; v < width; ++v)
        row[v] = *(const F_at*)(weights + size_t(v / vectors) * block_size + (v % vectors) * lanes);
      MLXC_UNROLL
      for (int i = 0; i < positions; ++i) {
        F x = all(pixel[i][c]);
        MLXC_UNROLL
        for (int v = 0; v < width; ++v) sums[i][v] += x * row[v];
      }
    }
  }
  MLXC_UNROLL
  for (int i = 0; i < positions; ++i) {
    float* to = out + size_t(i) * w.out_channels;
    MLXC_UNROLL
    for (int v = 0; v < width; ++v) {
      const int left = i < n ? wanted - v * lanes : 0;
      if (left >= lanes)
        *(F_at*)(to + v * lanes) = sums[i][v];
      else if (left > 0)
        store_part<Float32>(to + v * lanes, sums[i][v], left);
    }
  }
}

template <int blocks>
MLXC_INLINE void convolve_blocks(
    Seen seen, int skipped, const float* weights, const float* bias, float* out, int n, int wanted, const Window& w) {
  int i = 0;
  for (; i + small_tile < n; i += tile)
    convolve_tile<tile, blocks>(
        seen + i, skipped, weights, bias, out + size_t(i) * w.out_channels, n - i, wanted, w);
  if (i < n)
    convolve_tile<small_tile, blocks>(
        seen + i, skipped, weights, bias, out + size_t(i) * w.out_channels, n - i, wanted, w);
}

void convolve(Seen seen, const float* weights, const float* bias, float* out, int n, const Window& w) {
  const int channels = w.channels / w.groups, made = w.out_channels / w.groups;
  const size_t block_size = size_t(w.kernel_height) * w.kernel_width * channels * block;
  const int all_blocks = (made + block - 1) / block;
  for (int group = 0; group < w.groups; ++group) {
    for (int done = 0; done < all_blocks;) {
      const int rest = all_blocks - done, first = done * block, skipped = group * channels;
      const float* b = bias ? bias + group * made + first : nullptr;
      float* to = out + group * made + first;
      const int now = blocks_now(rest);
      if constexpr (most_blocks == 3) {
        if (now == 3) convolve_blocks<3>(seen, skipped, weights, b, to, n, made - first, w);
        if (now == 2) convolve_blocks<2>(seen, skipped, weights, b, to, n, made - first, w);
      }
      if (now == 1) convolve_blocks<1>(seen, skipped, weights, b, to, n, made - first, w);
      done += now;
      weights += now * block_size;
    }
  }
}

// Channels are independent in what follows: `count` of them, from c on, at a time.
MLXC_INLINE F some(const float* p, int count) { return count == lanes ? Float32::load(p) : load_part<Float32>(p, count); }

MLXC_INLINE void put_some(float* p, F x, int count) {
  if (count == lanes)
    Float32::store(p, x);
  else
    store_part<Float32>(p, x, count);
}

struct WeightedSum {
  const float *weights, *bias;
  int channels;
  MLXC_INLINE F first(const WeightedSum& s, int c, int count) { return s.bias ? some(s.bias + c, count) : F{}; }
  MLXC_INLINE F weight(const WeightedSum& s, int k, int c, int count) {
    return some(s.weights + size_t(k) * s.channels + c, count);
  }
  MLXC_INLINE F step(F found, F x, F weight) { return found + x * weight; }
  MLXC_INLINE F last(const WeightedSum&, F found) { return found; }
};

struct Sum {
  float scale;
  MLXC_INLINE F first(const Sum&, int, int) { return F{}; }
  MLXC_INLINE F weight(const Sum&, int, int, int) { return F{}; }
  MLXC_INLINE F step(F found, F x, F) { return found + x; }
  MLXC_INLINE F last(const Sum& s, F found) { return found * s.scale; }
};

struct Maximum {
  MLXC_INLINE F first(const Maximum&, int, int) { return all(-__builtin_inff()); }
  MLXC_INLINE F weight(const Maximum&, int, int, int) { return F{}; }
  // A NaN stays.
  MLXC_INLINE F step(F found, F x, F) { return ((x > found) | (x != x)) != 0 ? x : found; }
  MLXC_INLINE F last(const Maximum&, F found) { return found; }
};

template <int positions, class Op>
MLXC_INLINE void slide_tile(Seen seen, float* out, int c, int count, const Window& w, const Op& op) {
  const int kernel = w.kernel_height * w.kernel_width;
  F found[positions];
  MLXC_UNROLL
  for (int i = 0; i < positions; ++i) found[i] = Op::first(op, c, count);
  for (int k = 0; k < kernel; ++k, seen += chunk) {
    F weight = Op::weight(op, k, c, count);
    MLXC_UNROLL
    for (int i = 0; i < positions; ++i) found[i] = Op::step(found[i], some(seen[i] + c, count), weight);
  }
  MLXC_UNROLL
  for (int i = 0; i < positions; ++i) put_some(out + size_t(i) * w.channels + c, Op::last(op, found[i]), count);
}

template <int positions, class Op>
MLXC_INLINE void slide(Seen seen, float* out, int n, const Window& w, const Op& op) {
  const int whole = w.channels - w.channels % lanes, rest = w.channels - whole;
  int i = 0;
  for (; i + positions <= n; i += positions, seen += positions, out += size_t(positions) * w.channels) {
    for (int c = 0; c < whole; c += lanes) slide_tile<positions>(seen, out, c, lanes, w, op);
    if (rest) slide_tile<positions>(seen, out, whole, rest, w, op);
  }
  for (; i < n; ++i, ++seen, out += w.channels) {
    for (int c = 0; c < whole; c += lanes) slide_tile<1>(seen, out, c, lanes, w, op);
    if (rest) slide_tile<1>(seen, out, whole, rest, w, op);
  }
}

// The pixels that neighbouring positions of one line see, each read once for all of them.
constexpr int neighbours = 8, tallest = 8;

template <int width>
using Pixels = const float* [tallest][neighbours + width - 1];

template <int width>
MLXC_INLINE void neighbours_tile(
    const Pixels<width>& pixels, const WeightedSum& op, float* out, int n, int c, int count, const Window& w) {
  F sums[neighbours];
  MLXC_UNROLL
  for (int i = 0; i < neighbours; ++i) sums[i] = WeightedSum::first(op, c, count);
  for (int y = 0; y < w.kernel_height; ++y) {
    F weights[width];
    MLXC_UNROLL
    for (int k = 0; k < width; ++k) weights[k] = WeightedSum::weight(op, y * width + k, c, count);
    MLXC_UNROLL
    for (int j = 0; j < neighbours + width - 1; ++j) {
      F x = some(pixels[y][j] + c, count);
      MLXC_UNROLL
      for (int k = 0; k < width; ++k)
        if (j >= k && j - k < neighbours) sums[j - k] += x * weights[k];
    }
  }
  MLXC_UNROLL
  for (int i = 0; i < neighbours; ++i)
    if (i < n) put_some(out + size_t(i) * w.channels + c, sums[i], count);
}

// Of positions from column x of a line on, where neighbours see windows one pixel apart.
template <int width>
void depthwise_lines(Seen seen, const WeightedSum& op, float* out, int n, int x, const Window& w) {
  const int whole = w.channels - w.channels % lanes, rest = w.channels - whole;
  Pixels<width> pixels;
  for (int i = 0; i < n;) {
    int m = n - i < w.out_width - x ? n - i : w.out_width - x;
    m = m < neighbours ? m : neighbours;
    // what the last of them sees follows what each sees first; the rest of the tile sees anything
    for (int y = 0; y < w.kernel_height; ++y)
      for (int j = 0; j < neighbours + width - 1; ++j) {
        const int behind = j - (m - 1) < width - 1 ? j - (m - 1) : width - 1;
        pixels[y][j] = seen[size_t(y * width + (j < m ? 0 : behind)) * chunk + i + (j < m ? j : m - 1)];
      }
    float* to = out + size_t(i) * w.channels;
    for (int c = 0; c < whole; c += lanes) neighbours_tile<width>(pixels, op, to, m, c, lanes, w);
    if (rest) neighbours_tile<width>(pixels, op, to, m, whole, rest, w);
    i += m;
    x = x + m == w.out_width ? 0 : x + m;
  }
}

void depthwise(Seen seen, const float* weights, const float* bias, float* out, int n, int x, const Window& w) {
  const WeightedSum op{weights, bias, w.channels};
  const bool apart = w.stride_x == 1 && w.dilation_x == 1 && w.kernel_height <= tallest;
  if (apart && w.kernel_width == 3) return depthwise_lines<3>(seen, op, out, n, x, w);
  if (apart && w.kernel_width == 5) return depthwise_lines<5>(seen, op, out, n, x, w);
  slide<8>(seen, out, n, w, op);
}

void pool_sum(Seen seen, float* out, int n, const Window& w, float scale) { slide<4>(seen, out, n, w, Sum{scale}); }
void pool_max(Seen seen, float* out, int n, const Window& w, float) { slide<4>(seen, out, n, w, Maximum{}); }

} // namespace
} // namespace mlxc::kernels
