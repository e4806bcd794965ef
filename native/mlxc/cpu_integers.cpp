// Quantised layers on the CPU: convolution of 8-bit integers in exact int32, quantisation to the range of the data.
#include <algorithm>
#include <cmath>

#include "cpu_windows.hpp"
#include "extras.h"

using namespace mlxc;

namespace mlxc {

LinearRange linear_range(float low, float high) {
  const float scale = high == low ? 1 : (high - low) / 255;
  return {scale, uint8_t(std::nearbyint(std::clamp(-low / scale, 0.0f, 255.0f)))};
}

} // namespace mlxc

namespace {

using kernels::Window;

// The bytes of an image, channels last and dense, with every group's channels filled up with zeros to a multiple of 4;
// signed ones are moved into the unsigned range.
struct ByteImage {
  const char* source;
  mx::Shape shape; // batch, height, width, groups, channels of a group
  mx::Strides strides;
  int filled; // channels of a group in the copy
  uint8_t moved;

  void copy(uint8_t* to) const {
    const int64_t pixel = int64_t(shape[3]) * filled;
    for (int n = 0; n < shape[0]; ++n)
      for (int y = 0; y < shape[1]; ++y)
        for (int g = 0; g < shape[3]; ++g) {
          const char* from = source + n * strides[0] + y * strides[1] + g * strides[3];
          line(from, to + (int64_t(n) * shape[1] + y) * shape[2] * pixel + int64_t(g) * filled, pixel);
        }
  }

 private:
  // In steps of 64 channels: where the columns' axis is the dense one, each cache line that is read serves them all.
  void line(const char* from, uint8_t* to, int64_t pixel) const {
    for (int first = 0; first < shape[4]; first += 64) {
      const int end = std::min(first + 64, shape[4]);
      for (int x = 0; x < shape[2]; ++x)
        for (int c = first; c < end; ++c)
          to[x * pixel + c] = uint8_t(from[x * strides[2] + c * strides[4]]) ^ moved;
    }
  }
};

// What each position sees in all, by groups: its sum of bytes, which the weights' zero points multiply.
class WindowSums {
 public:
  // `outside`: the sum of what a group sees of a pixel outside the image.
  WindowSums(const uint8_t* images, int batch, const Window& w, int32_t outside)
      : window_(w), images_(images), outside_(outside), sums_(size_t(batch) * w.height * w.width * w.groups) {
    kernels::chosen().sum_bytes(images, sums_.size(), w.channels / w.groups, sums_.data());
  }

  // [groups][kernels::seen_sums], of n positions.
  void fill(kernels::SeenBytes seen, int32_t* to, int n) const {
    const int kernel = window_.kernel_height * window_.kernel_width;
    for (int g = 0; g < window_.groups; ++g, to += kernels::seen_sums)
      for (int i = 0; i < n; ++i) {
        int32_t sum = 0;
        for (int k = 0; k < kernel; ++k) {
          const size_t pixel = size_t(seen[size_t(k) * kernels::chunk + i] - images_) / window_.channels;
          sum += pixel < sums_.size() / window_.groups ? sums_[pixel * window_.groups + g] : outside_;
        }
        to[i] = sum;
      }
  }

 private:
  const Window window_;
  const uint8_t* images_;
  int32_t outside_;
  std::vector<int32_t> sums_;
};

// Inputs: image, packed weights, the image's zero point, for each output channel the weights' sum, and maybe their zero
// points.
class CpuIntegerConvolution : public CpuWindowed {
 public:
  using CpuWindowed::CpuWindowed;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    auto& encoder = mx::cpu::get_command_encoder(stream());
    Run run{};
    run.window = window_;
    run.image = bytes(inputs[0], run.window, encoder);
    run.batch = inputs[0].shape(0);
    run.each = window_.channels / window_.groups;
    run.weights = inputs[1].data<int8_t>();
    run.sums = inputs[3].data<int32_t>();
    run.zeros = inputs_ > 4 ? inputs[4].data<int32_t>() : nullptr;
    encoder.dispatch([run, zero = inputs[2].data<uint8_t>(), moved = inputs[0].dtype() == mx::int8 ? 0x80 : 0,
                      out = out.data<int32_t>(), after = after_, others = others(inputs, encoder)] {
      if (after.empty()) return run.all(*zero ^ moved, out, [](int32_t*, int) {});
      const auto& table = kernels::chosen();
      const int channels = run.window.out_channels;
      Loop loop(after, channels, others);
      run.all(*zero ^ moved, out, [&](int32_t* to, int n) {
        auto made = reinterpret_cast<float*>(to);
        table.floats(to, made, size_t(n) * channels);
        loop.rows(made, (to - out) / channels, n);
      });
    });
  }

  std::shared_ptr<CpuPrimitive> followed_by(std::vector<Operation> operations) override {
    return std::make_shared<CpuIntegerConvolution>(stream(), window_, inputs_, std::move(operations));
  }
  const char* name() const override { return "CpuIntegerConvolution"; }

 private:
  static const uint8_t* bytes(const mx::array& x, Window& w, mx::cpu::CommandEncoder& encoder) {
    const int each = w.channels / w.groups, filled = (each + 3) / 4 * 4;
    if (x.flags().row_contiguous && filled == each && x.dtype() == mx::uint8) return x.data<uint8_t>();
    w.channels = filled * w.groups;
    mx::array copy({x.shape(0), w.height, w.width, w.channels}, mx::uint8, nullptr, {});
    copy.set_data(mx::allocator::malloc(copy.nbytes()));
    encoder.add_temporary(copy);
    const auto& s = x.strides();
    ByteImage given{x.data<char>(), {x.shape(0), w.height, w.width, w.groups, each}, {s[0], s[1], s[2], s[3] * each, s[3]},
                    filled, uint8_t(x.dtype() == mx::int8 ? 0x80 : 0)};
    encoder.dispatch([given = std::move(given), to = copy.data<uint8_t>(), n = copy.nbytes()] {
      if (given.filled != given.shape[4]) std::memset(to, 0, n);
      given.copy(to);
    });
    return copy.data<uint8_t>();
  }

  // The sum of (x - zero) * (w - z) is that of x * w, less that of w times zero, less that of x - zero times z.
  struct Run {
    Window window;
    const uint8_t* image;
    int batch, each; // the channels of a group that are there
    const int8_t* weights;
    const int32_t *sums, *zeros;

    // after(the first of some pixels, how many): what is done next with them
    template <class After>
    void all(int zero, int32_t* out, After after) const {
      const auto& w = window;
      const int made = w.out_channels / w.groups, padded = (made + kernels::block - 1) / kernels::block * kernels::block;
      const int32_t all_zeros = w.kernel_height * w.kernel_width * each * zero;
      std::vector<int32_t> start(size_t(w.groups) * padded), z(zeros ? start.size() : 0);
      for (int o = 0; o < w.out_channels; ++o) {
        const size_t at = size_t(o / made) * padded + o % made;
        start[at] = (zeros ? all_zeros * zeros[o] : 0) - zero * sums[o];
        if (zeros) z[at] = zeros[o];
      }
      std::optional<WindowSums> windows;
      if (zeros) windows.emplace(image, batch, w, each * zero);
      std::vector<int32_t> seen_sums(size_t(w.groups) * kernels::seen_sums);
      const kernels::Starts starts{start.data(), zeros ? z.data() : nullptr, seen_sums.data()};
      const auto convolve = kernels::chosen().convolve_bytes;
      each_chunk(row_by_row(image, w), out, batch, w, uint8_t(zero), [&](kernels::SeenBytes seen, int32_t* to, int n) {
        if (windows) windows->fill(seen, seen_sums.data(), n);
        convolve(seen, weights, starts, to, n, w);
        after(to, n);
      });
    }
  };
};

// Inputs: float32. Outputs: levels, scale, zero point.
class CpuDynamicQuantize : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const auto& in = inputs[0];
    auto& levels = outputs[0];
    // the levels lie in memory like the data, where that has no gaps
    const bool whole = in.flags().contiguous && in.data_size() == in.size();
    auto buffer = mx::allocator::malloc(levels.nbytes());
    if (whole)
      levels.set_data(std::move(buffer), in.data_size(), in.strides(), in.flags());
    else
      levels.set_data(std::move(buffer));
    for (int i : {1, 2}) outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
    encoder.dispatch([from = whole ? in.data<float>() : dense(in, encoder), to = levels.data<uint8_t>(), n = in.size(), scale = outputs[1].data<float>(),
                      zero = outputs[2].data<uint8_t>()] { run(from, to, n, scale, zero); });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("CpuDynamicQuantize runs on the CPU only");
  }

  const char* name() const override { return "CpuDynamicQuantize"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }

 private:
  static void run(const float* from, uint8_t* to, size_t n, float* scale, uint8_t* zero) {
    const auto& table = kernels::chosen();
    float low = 0, high = 0;
    table.extremes(from, n, &low, &high);
    const auto range = linear_range(low, high);
    *scale = range.scale;
    *zero = range.zero;
    table.quantize(from, to, n, *scale, *zero, 0, 255);
  }
};

mx::array integer_convolution(
    const mx::array& x,
    const mx::array& weights,
    const mx::array& zero,
    const mx::array& sums,
    const std::optional<mx::array>& zeros,
    const int* numbers,
    size_t n,
    mx::Stream stream) {
  const Window w = window_of(x, numbers, n);
  if (x.dtype() != mx::uint8 && x.dtype() != mx::int8) bad_argument("8-bit integers are needed");
  if (w.channels % w.groups || w.out_channels % w.groups) bad_argument("the groups do not divide the channels");
  const int quads = (w.channels / w.groups + 3) / 4, made = w.out_channels / w.groups;
  const mx::Shape packed{w.groups, (made + kernels::block - 1) / kernels::block, w.kernel_height * w.kernel_width * quads,
                         4 * kernels::block};
  if (weights.shape() != packed || weights.dtype() != mx::int8) bad_argument("the weights are not packed for this");
  if (zero.size() != 1 || zero.dtype() != x.dtype()) bad_argument("one zero point of the image's type is needed");
  for (const auto* each : {&sums, zeros ? &*zeros : &sums})
    if (each->shape() != mx::Shape{w.out_channels} || each->dtype() != mx::int32)
      bad_argument("an int32 for each output channel is needed");
  std::vector<mx::array> inputs{x, mx::contiguous(weights, false, stream), zero, mx::contiguous(sums, false, stream)};
  if (zeros) inputs.push_back(mx::contiguous(*zeros, false, stream));
  return mx::array(
      {x.shape(0), w.out_height, w.out_width, w.out_channels}, mx::int32,
      std::make_shared<CpuIntegerConvolution>(stream, w, inputs.size(), std::vector<Operation>{}), inputs);
}

std::vector<mx::array> dynamically_quantized(const mx::array& x, mx::Stream stream) {
  if (x.dtype() != mx::float32) bad_argument("float32 is needed");
  return mx::array::make_arrays(
      {x.shape(), {}, {}}, {mx::uint8, mx::float32, mx::uint8}, std::make_shared<CpuDynamicQuantize>(stream), {x});
}

} // namespace

extern "C" {

int mlxc_py_cpu_integer_convolution(
    mlx_array* res,
    mlx_array x,
    mlx_array weights,
    mlx_array zero,
    mlx_array sums,
    mlx_array zeros,
    const int* window,
    size_t window_num,
    mlx_stream s)
    MLXC_TRY(put(
        res,
        integer_convolution(
            c_ref(x), c_ref(weights), c_ref(zero), c_ref(sums), c_opt(zeros), window, window_num, cpu_stream(s)));)

int mlxc_py_cpu_dynamic_quantize(mlx_vector_array* res, mlx_array x, mlx_stream s)
    MLXC_TRY(put(res, dynamically_quantized(c_ref(x), cpu_stream(s)));)

} // extern "C"
