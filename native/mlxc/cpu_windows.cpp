// Convolution and pooling on the CPU, channels last, without an intermediate copy of every window.
#include "cpu_windows.hpp"
#include "extras.h"

using namespace mlxc;

namespace mlxc {

kernels::Window window_of(const mx::array& x, const int* window, size_t n) {
  if (!window || n != 12) bad_argument("a window is 12 numbers");
  if (x.ndim() != 4) bad_argument("[batch, height, width, channels] is needed");
  for (size_t i = 0; i < n; ++i)
    if (window[i] < (i == 9 || i == 10 ? -0x7fffff : i < 3 ? 0 : 1)) bad_argument("a window's number is too small");
  kernels::Window w{x.shape(1), x.shape(2), x.shape(3), window[0], window[1], window[2], window[3], window[4], window[5],
           window[6],  window[7],  window[8],  window[9], window[10], window[11]};
  // What the positions amount to must fit in an int, as MLX's shapes do.
  int64_t reach_y = int64_t(w.out_height) * w.stride_y + int64_t(w.kernel_height) * w.dilation_y;
  int64_t reach_x = int64_t(w.out_width) * w.stride_x + int64_t(w.kernel_width) * w.dilation_x;
  const int64_t most = 0x3fffffff;
  if (reach_y > most || reach_x > most || int64_t(w.out_height) * w.out_width > most ||
      int64_t(w.kernel_height) * w.kernel_width > 1 << 20)
    bad_argument("a window is too large");
  return w;
}

kernels::Images<float> images_of(const mx::array& x, const kernels::Window& w, mx::cpu::CommandEncoder& encoder) {
  if (x.shape(3) > 1 && x.strides()[3] != 1) return row_by_row(dense(x, encoder), w);
  return {x.data<float>(), x.strides()[0], x.strides()[1], x.strides()[2]};
}

} // namespace mlxc

namespace {

using kernels::Window;

// Whether the columns of a kernel had better be one, that sees the channels of several pixels side by side: where few
// channels make it slow to look at each pixel on its own.
constexpr int most_joined = 8;

bool joins_columns(const Window& w) {
  return w.kernel_width > 1 && w.dilation_x == 1 && w.groups == 1 && w.left >= 0 && w.channels <= most_joined;
}

// A copy of images with what they are padded by on the left and on the right, for kernels whose columns are one.
kernels::Images<float> joined(const mx::array& x, Window& w, mx::cpu::CommandEncoder& encoder) {
  const int width = std::max(w.left + w.width, (w.out_width - 1) * w.stride_x + w.kernel_width);
  mx::array copy({x.shape(0), w.height, width, w.channels}, mx::float32, nullptr, {});
  copy.set_data(mx::allocator::malloc(copy.nbytes()));
  encoder.add_temporary(copy);
  const auto& strides = x.strides();
  encoder.dispatch([=, from = x.data<float>(), to = copy.data<float>(), batch = x.shape(0), image = strides[0], line = strides[1],
                    copy = Copy(sizeof(float), {w.width, w.channels}, {strides[2], strides[3]}), height = w.height,
                    left = w.left * w.channels, row = w.width * w.channels, whole = width * w.channels] {
    float* target = to;
    for (int n = 0; n < batch; ++n)
      for (int y = 0; y < height; ++y, target += whole) {
        std::fill_n(target, left, 0.0f);
        copy(reinterpret_cast<const char*>(from + n * image + y * line), reinterpret_cast<char*>(target + left));
        std::fill_n(target + left + row, whole - left - row, 0.0f);
      }
  });
  kernels::Images<float> images{copy.data<float>(), int64_t(w.height) * width * w.channels, int64_t(width) * w.channels, w.channels};
  w.channels *= w.kernel_width;
  w.kernel_width = 1;
  w.width = width;
  w.left = 0;
  return images;
}

class CpuConvolution : public CpuWindowed {
 public:
  using CpuWindowed::CpuWindowed;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    auto& encoder = mx::cpu::get_command_encoder(stream());
    auto w = window_;
    auto images = joins_columns(w) ? joined(inputs[0], w, encoder) : images_of(inputs[0], w, encoder);
    auto weights = dense(inputs[1], encoder);
    auto bias = inputs_ > 2 ? dense(inputs[2], encoder) : nullptr;
    const auto& table = kernels::chosen();
    const bool each = inputs[1].ndim() == 2; // channel on its own
    encoder.dispatch([=, &table, target = out.data<float>(), batch = inputs[0].shape(0), after = after_,
                      others = others(inputs, encoder)] {
      Loop loop(after, w.out_channels, others);
      each_chunk(images, target, batch, w, 0.0f, [&](kernels::Seen seen, float* to, int n) {
        const int64_t first = (to - target) / w.out_channels;
        if (each)
          table.depthwise(seen, weights, bias, to, n, int(first % w.out_width), w);
        else
          table.convolve(seen, weights, bias, to, n, w);
        if (!after.empty()) loop.rows(to, first, n);
      });
    });
  }

  std::shared_ptr<CpuPrimitive> followed_by(std::vector<Operation> operations) override {
    return std::make_shared<CpuConvolution>(stream(), window_, inputs_, std::move(operations));
  }
  const char* name() const override { return "CpuConvolution"; }
};

class CpuPool : public CpuPrimitive {
 public:
  CpuPool(mx::Stream stream, const Window& window, bool maximum, float scale)
      : CpuPrimitive(stream), window_(window), maximum_(maximum), scale_(scale) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    auto& encoder = mx::cpu::get_command_encoder(stream());
    auto images = images_of(inputs[0], window_, encoder);
    auto pool = maximum_ ? kernels::chosen().pool_max : kernels::chosen().pool_sum;
    const float fill = maximum_ ? -std::numeric_limits<float>::infinity() : 0;
    encoder.dispatch([=, target = out.data<float>(), batch = out.shape(0), w = window_, scale = scale_] {
      each_chunk(images, target, batch, w, fill, [&](kernels::Seen seen, float* to, int n) {
        pool(seen, to, n, w, scale);
      });
    });
  }

  const char* name() const override { return "CpuPool"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const CpuPool&>(other);
    return same(window_, o.window_) && maximum_ == o.maximum_ && scale_ == o.scale_;
  }

 private:
  Window window_;
  bool maximum_;
  float scale_;
};

mx::array convolution(
    const mx::array& x,
    const mx::array& weights,
    const std::optional<mx::array>& bias,
    const int* numbers,
    size_t n,
    mx::Stream stream) {
  const Window w = window_of(x, numbers, n);
  if (x.dtype() != mx::float32) bad_argument("float32 is needed");
  if (w.channels % w.groups || w.out_channels % w.groups) bad_argument("the groups do not divide the channels");
  const int kernel = w.kernel_height * w.kernel_width, made = w.out_channels / w.groups;
  const bool each = weights.ndim() == 2;
  if (each && (w.groups != w.channels || made != 1)) bad_argument("a group per channel is needed for such weights");
  const auto packed = each ? mx::Shape{kernel, w.channels}
                           : mx::Shape{w.groups, (made + kernels::block - 1) / kernels::block,
                                       kernel * (w.channels / w.groups), kernels::block};
  if (weights.shape() != packed || weights.dtype() != mx::float32) bad_argument("the weights are not packed for this");
  if (bias && (bias->shape() != mx::Shape{w.out_channels} || bias->dtype() != mx::float32))
    bad_argument("a float32 bias for each output channel is needed");
  std::vector<mx::array> inputs{x, weights};
  if (bias) inputs.push_back(*bias);
  return mx::array(
      {x.shape(0), w.out_height, w.out_width, w.out_channels}, mx::float32,
      std::make_shared<CpuConvolution>(stream, w, inputs.size(), std::vector<Operation>{}), inputs);
}

mx::array pooled(const mx::array& x, const int* numbers, size_t n, bool maximum, float scale, mx::Stream stream) {
  const Window w = window_of(x, numbers, n);
  if (x.dtype() != mx::float32) bad_argument("float32 is needed");
  if (w.channels != w.out_channels) bad_argument("pooling keeps the channels");
  return mx::array(
      {x.shape(0), w.out_height, w.out_width, w.out_channels}, mx::float32,
      std::make_shared<CpuPool>(stream, w, maximum, scale), {x});
}

} // namespace

extern "C" {

int mlxc_py_cpu_convolution(
    mlx_array* res,
    mlx_array x,
    mlx_array weights,
    mlx_array bias,
    const int* window,
    size_t window_num,
    mlx_stream s)
    MLXC_TRY(put(
        res,
        convolution(c_ref(x), c_ref(weights), c_opt(bias), window, window_num, cpu_stream(s)));)

int mlxc_py_cpu_pool(
    mlx_array* res, mlx_array x, const int* window, size_t window_num, bool maximum, float scale, mlx_stream s)
    MLXC_TRY(put(res, pooled(c_ref(x), window, window_num, maximum, scale, cpu_stream(s)));)

} // extern "C"
