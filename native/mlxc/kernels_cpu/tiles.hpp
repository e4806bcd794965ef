// How a convolution is cut into pieces that stay in registers.
#pragma once

#include "vector.hpp"

namespace mlxc::kernels {
namespace {

constexpr int vectors = block / lanes; // per block of channels

// As many accumulators as the registers hold beside the weights: positions at a time, blocks at a time.
#if MLXC_LANES == 16
constexpr int tile = 8, most_blocks = 3;
#elif MLXC_LANES == 8
constexpr int tile = 6, most_blocks = 1;
#elif defined(__aarch64__)
constexpr int tile = 6, most_blocks = 1;
#else
constexpr int tile = 2, most_blocks = 1;
#endif
constexpr int small_tile = tile > 4 ? 4 : tile;

// The blocks to do together when so many are left. Never 3 + 1: one block alone has too few sums to hide the latency of
// an addition.
constexpr int blocks_now(int left) {
  if (most_blocks < 3) return 1;
  return left == 3 || left > 4 ? 3 : left > 1 ? 2 : 1;
}

} // namespace
} // namespace mlxc::kernels
