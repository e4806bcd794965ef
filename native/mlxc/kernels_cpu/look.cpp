#include "kernels.hpp"

namespace mlxc::kernels {

namespace {

constexpr int ceil_div(int a, int b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
constexpr int within(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

template <class T>
void look_at(const T** seen, const Images<T>& images, const T* padding, int first, int n, const Window& w) {
  const int first_y = first / w.out_width, first_x = first % w.out_width;
  for (int kx = 0; kx < w.kernel_width; ++kx) {
    // the output columns from `low` to `high` see the image, at pixel x * stride_x + offset
    const int offset = kx * w.dilation_x - w.left;
    const int low = within(ceil_div(-offset, w.stride_x), 0, w.out_width);
    const int high = within(ceil_div(w.width - offset, w.stride_x), low, w.out_width);
    const int64_t step = w.stride_x * images.pixel;
    for (int i = 0, y = first_y, x = first_x; i < n; ++y) {
      const int last = within(x + n - i, 0, w.out_width);
      const int begin = within(low, x, last), end = within(high, begin, last);
      for (int ky = 0; ky < w.kernel_height; ++ky) {
        const int row = y * w.stride_y - w.top + ky * w.dilation_y;
        const bool inside = unsigned(row) < unsigned(w.height);
        const T** column = seen + size_t(ky * w.kernel_width + kx) * chunk + i;
        const int from = inside ? begin : last, to = inside ? end : last;
        const int64_t at = row * images.line + (int64_t(from) * w.stride_x + offset) * images.pixel;
        const T* pixel = from < to ? images.first + at : padding;
        for (int at = x; at < from; ++at) *column++ = padding;
        for (int at = from; at < to; ++at, pixel += step) *column++ = pixel;
        for (int at = to; at < last; ++at) *column++ = padding;
      }
      i += last - x;
      x = 0;
    }
  }
}

} // namespace

void look(const float** seen, const Images<float>& images, const float* padding, int first, int n, const Window& w) {
  look_at(seen, images, padding, first, n, w);
}

void look(
    const uint8_t** seen, const Images<uint8_t>& images, const uint8_t* padding, int first, int n, const Window& w) {
  look_at(seen, images, padding, first, n, w);
}

} // namespace mlxc::kernels
