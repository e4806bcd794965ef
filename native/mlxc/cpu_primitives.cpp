#include "cpu_primitives.hpp"

#include "extras.h"

using namespace mlxc;

namespace mlxc {

kernels::Type kernel_type(mx::Dtype dtype) {
  if (dtype == mx::float32) return kernels::float32;
  if (dtype == mx::float16) return kernels::float16;
  if (dtype == mx::bfloat16) return kernels::bfloat16;
  bad_argument("float32, float16 or bfloat16 is needed");
}

mx::Stream cpu_stream(mlx_stream stream) {
  auto chosen = c_ref(stream);
  if (chosen.device != mx::Device::cpu) bad_argument("a stream of the CPU is needed");
  return chosen;
}

} // namespace mlxc

namespace {

class CpuUnary : public CpuPrimitive {
 public:
  CpuUnary(mx::Stream stream, kernels::Unary kind, float p, float q) : CpuPrimitive(stream), kind_(kind), p_(p), q_(q) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const auto& in = inputs[0];
    mx::set_unary_output_data(in, out);
    if (!in.size()) return;
    auto map = kernels::chosen().unary[kind_][kernel_type(in.dtype())];
    auto source = in.data<char>();
    auto target = out.data<char>();
    auto& encoder = mx::cpu::get_command_encoder(stream());
    if (in.flags().contiguous)
      encoder.dispatch([=, n = in.data_size(), p = p_, q = q_] { map(source, target, n, p, q); });
    else
      encoder.dispatch([=, p = p_, q = q_, width = in.itemsize(), shape = in.shape(), strides = in.strides()] {
        each_row(source, target, width, width, shape, strides, [&](const char* row, char* to) {
          map(row, to, shape.back(), p, q);
        });
      });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }
  std::optional<mlxc::Function> function() const override { return mlxc::Function{kind_, false, p_, q_}; }
  const char* name() const override { return "CpuUnary"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const CpuUnary&>(other);
    return kind_ == o.kind_ && p_ == o.p_ && q_ == o.q_;
  }

 private:
  kernels::Unary kind_;
  float p_, q_;
};

class CpuSoftmax : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const auto& in = inputs[0];
    const bool dense = in.flags().row_contiguous;
    if (dense)
      mx::set_unary_output_data(in, out);
    else
      out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!in.size()) return;
    auto rows = kernels::chosen().softmax[kernel_type(in.dtype())];
    auto source = in.data<char>();
    auto target = out.data<char>();
    const size_t length = in.shape().back();
    auto& encoder = mx::cpu::get_command_encoder(stream());
    if (dense)
      encoder.dispatch([=, n = in.size() / length] { rows(source, target, n, length); });
    else
      encoder.dispatch([=, width = in.itemsize(), shape = in.shape(), strides = in.strides()] {
        each_row(source, target, width, width, shape, strides, [&](const char* row, char* to) { rows(row, to, 1, length); });
      });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override { return {inputs[0].shape()}; }
  const char* name() const override { return "CpuSoftmax"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
};

} // namespace

std::shared_ptr<mx::Primitive> mlxc::unary_primitive(mx::Stream stream, kernels::Unary kind, float p, float q) {
  return std::make_shared<CpuUnary>(stream, kind, p, q);
}

namespace {

mx::array unary(const mx::array& a, int kind, float p, float q, mx::Stream stream) {
  if (kind < 0 || kind >= kernels::n_unary) bad_argument("no such kind of function");
  kernel_type(a.dtype());
  return mx::array(a.shape(), a.dtype(), unary_primitive(stream, kernels::Unary(kind), p, q), {a});
}

mx::array softmax(const mx::array& a, mx::Stream stream) {
  if (!a.ndim()) bad_argument("an axis is needed");
  kernel_type(a.dtype());
  return mx::array(a.shape(), a.dtype(), std::make_shared<CpuSoftmax>(stream), {a});
}

void use_isa(const char* name) {
  auto wanted = c_str(name);
  for (auto table = kernels::usable(); *table; ++table)
    if (wanted == (*table)->name) return kernels::use(**table);
  bad_argument("this processor or build has no such instruction set");
}

} // namespace

extern "C" {

const char* mlxc_py_cpu_isa(void) { return kernels::chosen().name; }

int mlxc_py_cpu_use_isa(const char* name) MLXC_TRY(use_isa(name);)

int mlxc_py_cpu_unary(mlx_array* res, mlx_array a, int kind, float p, float q, mlx_stream s)
    MLXC_TRY(put(res, unary(c_ref(a), kind, p, q, cpu_stream(s)));)

int mlxc_py_cpu_softmax(mlx_array* res, mlx_array a, mlx_stream s)
    MLXC_TRY(put(res, softmax(c_ref(a), cpu_stream(s)));)

} // extern "C"
