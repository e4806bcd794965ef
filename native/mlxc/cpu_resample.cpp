// Weighted sums of slices along an axis on the CPU: what resizing an image is, one axis after the other.
#include <algorithm>

#include "cpu_primitives.hpp"
#include "extras.h"

using namespace mlxc;

namespace {

// A result's slices are sums of `taps` slices of x, each `inner` elements; `outer` times over.
struct Sums {
  int64_t outer, length, count, taps, inner;

  void run(const float* x, const int32_t* places, const float* weights, float* out) const {
    for (int64_t o = 0; o < outer; ++o, x += length * inner, out += count * inner)
      inner == 1 ? elements(x, places, weights, out) : slices(x, places, weights, out);
  }

 private:
  int64_t clamped(int64_t place) const { return std::clamp<int64_t>(place, 0, length - 1); }

  void elements(const float* x, const int32_t* place, const float* weight, float* out) const {
    for (int64_t i = 0; i < count; ++i, place += taps, weight += taps) {
      float sum = weight[0] * x[clamped(place[0])];
      for (int64_t t = 1; t < taps; ++t) sum += weight[t] * x[clamped(place[t])];
      out[i] = sum;
    }
  }

  void slices(const float* x, const int32_t* place, const float* weight, float* out) const {
    constexpr int64_t some = 2048; // stay in the cache while they are summed
    for (int64_t i = 0; i < count; ++i, place += taps, weight += taps, out += inner)
      for (int64_t first = 0; first < inner; first += some) {
        const int64_t n = std::min(some, inner - first);
        const float* a = x + clamped(place[0]) * inner + first;
        float* to = out + first;
        if (taps == 1) {
          for (int64_t j = 0; j < n; ++j) to[j] = weight[0] * a[j];
          continue;
        }
        const float* b = x + clamped(place[1]) * inner + first;
        for (int64_t j = 0; j < n; ++j) to[j] = weight[0] * a[j] + weight[1] * b[j];
        for (int64_t t = 2; t < taps; ++t) {
          const float* more = x + clamped(place[t]) * inner + first;
          for (int64_t j = 0; j < n; ++j) to[j] += weight[t] * more[j];
        }
      }
  }
};

class CpuTakeSums : public CpuAlongAxis {
 public:
  using CpuAlongAxis::CpuAlongAxis;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    const auto &x = inputs[0], &places = inputs[1];
    Sums sums{1, x.shape(axis), places.shape(0), places.shape(1), 1};
    for (int i = 0; i < axis; ++i) sums.outer *= x.shape(i);
    for (int i = axis + 1; i < int(x.ndim()); ++i) sums.inner *= x.shape(i);
    auto& encoder = mx::cpu::get_command_encoder(stream());
    // dense() copies elements of four bytes, whatever they are
    encoder.dispatch([sums, x = dense(x, encoder), places = reinterpret_cast<const int32_t*>(dense(places, encoder)),
                      weights = dense(inputs[2], encoder), to = out.data<float>()] { sums.run(x, places, weights, to); });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    auto shape = inputs[0].shape();
    shape[axis] = inputs[1].shape(0);
    return {shape};
  }
  const char* name() const override { return "CpuTakeSums"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return axis == static_cast<const CpuTakeSums&>(other).axis;
  }
  std::shared_ptr<CpuPrimitive> along(int other) override {
    return std::make_shared<CpuTakeSums>(stream(), other);
  }
};

mx::array sums(const mx::array& x, const mx::array& places, const mx::array& weights, int axis, mx::Stream stream) {
  if (axis < 0 || axis >= int(x.ndim())) bad_argument("no such axis");
  if (x.dtype() != mx::float32 || weights.dtype() != mx::float32 || places.dtype() != mx::int32)
    bad_argument("float32 data and weights and int32 indices are needed");
  if (places.ndim() != 2 || !places.shape(1) || places.shape() != weights.shape())
    bad_argument("a row of indices and of weights for each slice of the result is needed");
  if (!x.shape(axis) && places.size()) bad_argument("an index into an axis of length 0");
  auto shape = x.shape();
  shape[axis] = places.shape(0);
  return mx::array(shape, x.dtype(), std::make_shared<CpuTakeSums>(stream, axis), {x, places, weights});
}

} // namespace

extern "C" {

int mlxc_py_cpu_take_sums(
    mlx_array* res, mlx_array a, mlx_array indices, mlx_array weights, int axis, mlx_stream s)
    MLXC_TRY(put(res, sums(c_ref(a), c_ref(indices), c_ref(weights), axis, cpu_stream(s)));)

} // extern "C"
