// Weights of few bits as floats.
#pragma once

#include "vector.hpp"

namespace mlxc::kernels {
namespace {

// A lane is a row.
template <int bits>
MLXC_INLINE void unpack_lanes(const Levels& levels, int first_row, int from, int length, float* out) {
  const uint32_t* words[lanes];
  size_t blocks[lanes];
  for (int j = 0; j < lanes; ++j) {
    const int row = first_row + j < levels.rows ? first_row + j : levels.rows - 1;
    words[j] = levels.words + row * levels.row_words + size_t(from) * bits / 32;
    blocks[j] = row * levels.row_groups + from / levels.group;
  }
  constexpr int in_word = 32 / bits;
  for (int k = 0; k < length; k += levels.group) {
    F gain, offset;
    for (int j = 0; j < lanes; ++j) {
      gain[j] = levels.gains[blocks[j]];
      offset[j] = levels.offsets[blocks[j]++];
    }
    for (int i = 0; i < levels.group; i += in_word) {
      U word;
      for (int j = 0; j < lanes; ++j) word[j] = *words[j]++;
      MLXC_UNROLL
      for (int l = 0; l < in_word; ++l, out += block) {
        const I level = (I)((word >> (l * bits)) & ((1u << bits) - 1));
        *(F_at*)out = __builtin_convertvector(level, F) * gain + offset;
      }
    }
  }
}

void unpack(const Levels& levels, int first_row, int from, int length, float* out) {
  for (int j = 0; j < block; j += lanes) switch (levels.bits) {
      case 2: unpack_lanes<2>(levels, first_row + j, from, length, out + j); break;
      case 4: unpack_lanes<4>(levels, first_row + j, from, length, out + j); break;
      default: unpack_lanes<8>(levels, first_row + j, from, length, out + j);
    }
}

} // namespace
} // namespace mlxc::kernels
