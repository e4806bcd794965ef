// What primitives with windows that slide over an image share.
#pragma once

#include "elementwise.hpp"

namespace mlxc {

// Of an image and the numbers of `window` in extras.h, checked.
kernels::Window window_of(const mx::array& x, const int* window, size_t n);

inline bool same(const kernels::Window& a, const kernels::Window& b) { return !std::memcmp(&a, &b, sizeof a); }

// Images that lie one after the other.
template <class T>
kernels::Images<T> row_by_row(const T* first, const kernels::Window& w) {
  const int64_t line = int64_t(w.width) * w.channels;
  return {first, w.height * line, line, w.channels};
}

// The images of an array where they lie, or a copy where the channels of a pixel do not lie side by side.
kernels::Images<float> images_of(const mx::array& x, const kernels::Window& w, mx::cpu::CommandEncoder& encoder);

// f(what a chunk of positions sees, the output's first element, how many) for all positions of all images, whose
// outside is `fill`.
template <class In, class Out, class Function>
void each_chunk(kernels::Images<In> images, Out* out, int batch, const kernels::Window& w, In fill, Function f) {
  const std::vector<In> padding(w.channels, fill);
  // A little longer than a chunk: kernels look at whole tiles of positions.
  std::vector<const In*> seen(size_t(w.kernel_height) * w.kernel_width * kernels::chunk + 16, padding.data());
  const int positions = w.out_height * w.out_width;
  for (int image = 0; image < batch; ++image, images.first += images.image)
    for (int first = 0; first < positions; first += kernels::chunk) {
      const int n = std::min(kernels::chunk, positions - first);
      kernels::look(seen.data(), images, padding.data(), first, n, w);
      f(seen.data(), out, n);
      out += size_t(n) * w.out_channels;
    }
}

// A primitive that makes a chunk of pixels at a time, and may do elementwise work on each while it is in the cache.
class CpuWindowed : public CpuPrimitive {
 public:
  CpuWindowed(mx::Stream stream, const kernels::Window& window, size_t inputs, std::vector<Operation> after)
      : CpuPrimitive(stream), window_(window), inputs_(inputs), after_(std::move(after)) {}

  // The same with such work: on its result, as float32, and further inputs of one element, as many as a pixel has, or as
  // many as the result has.
  virtual std::shared_ptr<CpuPrimitive> followed_by(std::vector<Operation> operations) = 0;

  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const CpuWindowed&>(other);
    return same(window_, o.window_) && std::equal(after_.begin(), after_.end(), o.after_.begin(), o.after_.end(), alike);
  }

 protected:
  std::vector<std::pair<const float*, size_t>> others(
      const std::vector<mx::array>& inputs, mx::cpu::CommandEncoder& encoder) const {
    std::vector<std::pair<const float*, size_t>> found;
    for (size_t i = inputs_; i < inputs.size(); ++i) found.emplace_back(dense(inputs[i], encoder), inputs[i].size());
    return found;
  }

  const kernels::Window window_;
  const size_t inputs_; // without those of what comes after
  const std::vector<Operation> after_;
};

} // namespace mlxc
