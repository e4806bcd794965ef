// Recurrent layers on the CPU: all steps in one primitive.
#include "cpu_primitives.hpp"
#include "extras.h"

using namespace mlxc;

namespace {

using kernels::Recurrence;

class CpuRecurrent : public CpuPrimitive {
 public:
  CpuRecurrent(mx::Stream stream, const Recurrence& recurrence) : CpuPrimitive(stream), recurrence_(recurrence) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    auto& encoder = mx::cpu::get_command_encoder(stream());
    auto steps = dense(inputs[0], encoder);
    auto weights = dense(inputs[1], encoder);
    auto initial = dense(inputs[2], encoder);
    auto bias = inputs.size() > 3 ? dense(inputs[3], encoder) : nullptr;
    const size_t padded = size_t(inputs[1].shape(0)) * kernels::block;
    auto recur = kernels::chosen().recur;
    encoder.dispatch([=, target = out.data<float>(), r = recurrence_] {
      std::vector<float> scratch(r.batch * padded);
      recur(steps, weights, bias, initial, target, scratch.data(), r);
    });
  }

  const char* name() const override { return "CpuRecurrent"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const CpuRecurrent&>(other).recurrence_;
    return recurrence_.steps == o.steps && recurrence_.batch == o.batch && recurrence_.hidden == o.hidden &&
           recurrence_.lstm == o.lstm;
  }

 private:
  Recurrence recurrence_;
};

mx::array recurrent(
    const mx::array& steps,
    const mx::array& weights,
    const std::optional<mx::array>& bias,
    const mx::array& initial,
    mx::Stream stream) {
  for (auto& a : {steps, weights, initial})
    if (a.dtype() != mx::float32) bad_argument("float32 is needed");
  if (steps.ndim() != 3 || weights.ndim() != 3 || initial.ndim() != 2)
    bad_argument("steps [steps, batch, gates], weights [blocks, hidden, 16] and a state [batch, state] are needed");
  const bool lstm = !bias;
  const int hidden = weights.shape(1), gates = lstm ? 4 : 3;
  if (hidden < 1 || hidden > 1 << 20 || steps.shape(2) != gates * hidden) bad_argument("the steps do not have the gates");
  if (weights.shape() != mx::Shape{(gates * hidden + kernels::block - 1) / kernels::block, hidden, kernels::block})
    bad_argument("the weights are not packed for this");
  if (initial.shape() != mx::Shape{steps.shape(1), lstm ? 2 * hidden : hidden}) bad_argument("the state does not fit");
  if (bias && (bias->shape() != mx::Shape{hidden} || bias->dtype() != mx::float32))
    bad_argument("a float32 bias for each hidden unit is needed");
  std::vector<mx::array> inputs{steps, weights, initial};
  if (bias) inputs.push_back(*bias);
  const Recurrence r{steps.shape(0), steps.shape(1), hidden, lstm};
  return mx::array(
      {steps.shape(0), steps.shape(1), initial.shape(1)}, mx::float32, std::make_shared<CpuRecurrent>(stream, r),
      std::move(inputs));
}

// An LSTM whose state is quantised to the range of its values before each product with 8-bit weights.
class CpuQuantizedLstm : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    auto& encoder = mx::cpu::get_command_encoder(stream());
    Run run{};
    run.steps = dense(inputs[0], encoder);
    run.weights = inputs[1].data<int8_t>();
    run.initial = dense(inputs[2], encoder);
    run.scales = dense(inputs[3], encoder);
    run.sums = inputs[4].data<int32_t>();
    run.zeros = inputs[5].data<int32_t>();
    run.count = out.shape(0);
    run.batch = out.shape(1);
    run.hidden = out.shape(2) / 2;
    encoder.dispatch([run, to = out.data<float>()]() mutable { run.all(to); });
  }

  const char* name() const override { return "CpuQuantizedLstm"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }

 private:
  struct Run {
    const float *steps, *initial, *scales;
    const int8_t* weights;
    const int32_t *sums, *zeros;
    int count, batch, hidden;

    void all(float* out) const {
      const auto& table = kernels::chosen();
      const int gates = 4 * hidden, quads = (hidden + 3) / 4;
      const size_t padded = (size_t(gates) + kernels::block - 1) / kernels::block * kernels::block;
      std::vector<uint8_t> levels(size_t(batch) * quads * 4);
      std::vector<int32_t> start(padded), z(padded), seen_sums(kernels::seen_sums), totals(size_t(kernels::chunk) * gates);
      std::vector<const uint8_t*> seen(kernels::seen_sums, levels.data());
      std::vector<float> factors(gates), products(size_t(kernels::chunk) * gates);
      std::copy_n(zeros, gates, z.begin());
      kernels::Window window{};
      window.channels = 4 * quads;
      window.out_channels = gates;
      window.kernel_height = window.kernel_width = window.groups = 1;
      const float* state = initial;
      for (int step = 0; step < count; ++step) {
        float low = 0, high = 0;
        for (int row = 0; row < batch; ++row) table.extremes(state + size_t(row) * 2 * hidden, hidden, &low, &high);
        const auto [scale, zero] = linear_range(low, high);
        for (int row = 0; row < batch; ++row)
          table.quantize(state + size_t(row) * 2 * hidden, &levels[size_t(row) * quads * 4], hidden, scale, zero, 0, 255);
        for (int i = 0; i < gates; ++i) {
          start[i] = zero * (hidden * zeros[i] - sums[i]);
          factors[i] = scale * scales[i];
        }
        for (int first = 0; first < batch; first += kernels::chunk) {
          const int rows = std::min(kernels::chunk, batch - first);
          for (int i = 0; i < rows; ++i) seen[i] = &levels[size_t(first + i) * quads * 4];
          table.sum_bytes(seen[0], rows, 4 * quads, seen_sums.data());
          table.convolve_bytes(
              seen.data(), weights, {start.data(), z.data(), seen_sums.data()}, totals.data(), rows, window);
          table.floats(totals.data(), products.data(), size_t(rows) * gates);
          for (int i = 0; i < rows; ++i) {
            const size_t row = size_t(step) * batch + first + i;
            float* product = &products[size_t(i) * gates];
            table.binary[kernels::multiply][kernels::float32][kernels::both](product, factors.data(), product, gates);
            table.lstm_cell(
                steps + row * gates, product, state + size_t(first + i) * 2 * hidden, out + row * 2 * hidden, hidden);
          }
        }
        state = out + size_t(step) * batch * 2 * hidden;
      }
    }
  };
};

mx::array quantized_lstm(
    const mx::array& steps,
    const mx::array& weights,
    const mx::array& initial,
    const mx::array& scales,
    const mx::array& sums,
    const mx::array& zeros,
    mx::Stream stream) {
  for (auto& a : {steps, initial, scales})
    if (a.dtype() != mx::float32) bad_argument("float32 is needed");
  if (steps.ndim() != 3 || initial.ndim() != 2 || initial.shape(0) != steps.shape(1) || initial.shape(1) < 2)
    bad_argument("steps [steps, batch, 4 * hidden] and a state [batch, 2 * hidden] are needed");
  const int hidden = initial.shape(1) / 2, gates = 4 * hidden;
  if (hidden > 1 << 20 || initial.shape(1) % 2 || steps.shape(2) != gates) bad_argument("the steps do not have the gates");
  const mx::Shape packed{1, (gates + kernels::block - 1) / kernels::block, (hidden + 3) / 4, 4 * kernels::block};
  if (weights.shape() != packed || weights.dtype() != mx::int8) bad_argument("the weights are not packed for this");
  for (auto& a : {scales, sums, zeros})
    if (a.shape() != mx::Shape{gates}) bad_argument("a scale, sum and zero point for each gate is needed");
  if (sums.dtype() != mx::int32 || zeros.dtype() != mx::int32) bad_argument("sums and zero points are int32");
  return mx::array(
      {steps.shape(0), steps.shape(1), 2 * hidden}, mx::float32, std::make_shared<CpuQuantizedLstm>(stream),
      {steps, mx::contiguous(weights, false, stream), initial, scales, mx::contiguous(sums, false, stream),
       mx::contiguous(zeros, false, stream)});
}

} // namespace

extern "C" {

int mlxc_py_cpu_recurrent(
    mlx_array* res, mlx_array steps, mlx_array weights, mlx_array bias, mlx_array initial, mlx_stream s)
    MLXC_TRY(put(res, recurrent(c_ref(steps), c_ref(weights), c_opt(bias), c_ref(initial), cpu_stream(s)));)

int mlxc_py_cpu_quantized_lstm(
    mlx_array* res,
    mlx_array steps,
    mlx_array weights,
    mlx_array initial,
    mlx_array scales,
    mlx_array sums,
    mlx_array zeros,
    mlx_stream s)
    MLXC_TRY(put(
        res,
        quantized_lstm(
            c_ref(steps), c_ref(weights), c_ref(initial), c_ref(scales), c_ref(sums), c_ref(zeros), cpu_stream(s)));)

} // extern "C"
