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
      std::vector<float> scratch(r.batch * (padded + r.hidden));
      recur(steps, weights, bias, initial, target, scratch.data(), r);
    });
  }

  const char* name() const override { return "CpuRecurrent"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const CpuRecurrent&>(other).recurrence_;
    return recurrence_.steps == o.steps && recurrence_.batch == o.batch && recurrence_.hidden == o.hidden &&
           recurrence_.lstm == o.lstm && recurrence_.rounded == o.rounded;
  }

 private:
  Recurrence recurrence_;
};

mx::array recurrent(
    const mx::array& steps,
    const mx::array& weights,
    const std::optional<mx::array>& bias,
    const mx::array& initial,
    bool rounded,
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
  const Recurrence r{steps.shape(0), steps.shape(1), hidden, lstm, rounded};
  return mx::array(
      {steps.shape(0), steps.shape(1), initial.shape(1)}, mx::float32, std::make_shared<CpuRecurrent>(stream, r),
      std::move(inputs));
}

} // namespace

extern "C" int mlxc_py_cpu_recurrent(
    mlx_array* res, mlx_array steps, mlx_array weights, mlx_array bias, mlx_array initial, bool rounded, mlx_stream s)
    MLXC_TRY(put(res, recurrent(c_ref(steps), c_ref(weights), c_opt(bias), c_ref(initial), rounded, cpu_stream(s)));)
