#include "kernels.hpp"

namespace mlxc::kernels {

namespace {

template <class T>
void look_at(const T** seen, const T* image, const T* padding, int first, int n, const Window& w) {
  int y = first / w.out_width, x = first % w.out_width;
  for (int i = 0; i < n; ++i) {
    const T** column = seen + i;
    for (int ky = 0; ky < w.kernel_height; ++ky) {
      const int row = y * w.stride_y - w.top + ky * w.dilation_y;
      const T* line = unsigned(row) < unsigned(w.height) ? image + size_t(row) * w.width * w.channels : nullptr;
      for (int kx = 0; kx < w.kernel_width; ++kx, column += chunk) {
        const int pixel = x * w.stride_x - w.left + kx * w.dilation_x;
        *column = line && unsigned(pixel) < unsigned(w.width) ? line + size_t(pixel) * w.channels : padding;
      }
    }
    if (++x == w.out_width) x = 0, ++y;
  }
}

} // namespace

void look(const float** seen, const float* image, const float* padding, int first, int n, const Window& w) {
  look_at(seen, image, padding, first, n, w);
}

void look(const uint8_t** seen, const uint8_t* image, const uint8_t* padding, int first, int n, const Window& w) {
  look_at(seen, image, padding, first, n, w);
}

} // namespace mlxc::kernels
