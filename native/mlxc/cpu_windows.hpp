// What primitives with windows that slide over an image share.
#pragma once

#include "cpu_primitives.hpp"

namespace mlxc {

// Of an image and the numbers of `window` in extras.h, checked.
kernels::Window window_of(const mx::array& x, const int* window, size_t n);

inline bool same(const kernels::Window& a, const kernels::Window& b) { return !std::memcmp(&a, &b, sizeof a); }

// f(what a chunk of positions sees, the output's first element, how many) for all positions of all images, whose
// outside is `fill`.
template <class In, class Out, class Function>
void each_chunk(const In* images, Out* out, int batch, const kernels::Window& w, In fill, Function f) {
  const std::vector<In> padding(w.channels, fill);
  // A little longer than a chunk: kernels look at whole tiles of positions.
  std::vector<const In*> seen(size_t(w.kernel_height) * w.kernel_width * kernels::chunk + 16, padding.data());
  const int positions = w.out_height * w.out_width;
  for (int image = 0; image < batch; ++image, images += size_t(w.height) * w.width * w.channels)
    for (int first = 0; first < positions; first += kernels::chunk) {
      const int n = std::min(kernels::chunk, positions - first);
      kernels::look(seen.data(), images, padding.data(), first, n, w);
      f(seen.data(), out, n);
      out += size_t(n) * w.out_channels;
    }
}

} // namespace mlxc
