// Arithmetic that keeps the layout of its operands, conversions between floats, linear quantisation: on the CPU.
#include <algorithm>
#include <array>
#include <numeric>

#include "cpu_primitives.hpp"
#include "extras.h"

using namespace mlxc;

namespace {

// The loops of a binary operation in the order of the output's memory: sizes, and how far each operand moves.
struct Loops {
  struct Axis {
    int64_t size, a, b;
  };
  std::vector<Axis> axes; // the last is the innermost
};

int64_t stride_for(const mx::array& x, int axis) { return x.shape(axis) == 1 ? 0 : x.strides()[axis]; }

Loops loops_of(const mx::array& a, const mx::array& b, const mx::array& out) {
  const int rank = int(out.ndim());
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return out.strides()[i] > out.strides()[j]; });
  Loops loops;
  for (int axis : order) {
    if (out.shape(axis) == 1) continue;
    Loops::Axis next{out.shape(axis), stride_for(a, axis), stride_for(b, axis)};
    if (!loops.axes.empty()) {
      auto& last = loops.axes.back();
      if (last.a == next.a * next.size && last.b == next.b * next.size) {
        last = {last.size * next.size, next.a, next.b};
        continue;
      }
    }
    loops.axes.push_back(next);
  }
  if (loops.axes.empty()) loops.axes.push_back({1, 0, 0});
  return loops;
}

constexpr int64_t gathered = 1024; // bytes

// One operand's elements one after the other.
const char* in_line(const char* from, int64_t step, int64_t n, size_t width, char* scratch) {
  if (step == 1) return from;
  for (int64_t i = 0; i < n; ++i) std::memcpy(scratch + i * width, from + i * step * int64_t(width), width);
  return scratch;
}

void inner(
    const kernels::Combine* combine, const char* a, const char* b, char* out, const Loops::Axis& axis, size_t width) {
  auto [n, step_a, step_b] = axis;
  if (step_a == 1 && step_b == 1) return combine[kernels::both](a, b, out, n);
  if (step_a == 0 && step_b == 1) return combine[kernels::scalar_first](a, b, out, n);
  if (step_a == 1 && step_b == 0) return combine[kernels::scalar_second](a, b, out, n);
  std::array<char, gathered> left, right;
  const int64_t most = gathered / int64_t(width);
  for (int64_t i = 0; i < n; i += most) {
    const int64_t m = std::min(most, n - i);
    const char* x = in_line(a + i * step_a * int64_t(width), step_a, m, width, left.data());
    const char* y = in_line(b + i * step_b * int64_t(width), step_b, m, width, right.data());
    combine[kernels::both](x, y, out + i * int64_t(width), m);
  }
}

void run(const kernels::Combine* combine, const char* a, const char* b, char* out, const Loops& loops, size_t width) {
  const int last = int(loops.axes.size()) - 1;
  std::vector<int64_t> at(last, 0);
  for (;;) {
    inner(combine, a, b, out, loops.axes[last], width);
    out += loops.axes[last].size * int64_t(width);
    int axis = last - 1;
    for (; axis >= 0; --axis) {
      const auto& [size, step_a, step_b] = loops.axes[axis];
      a += step_a * int64_t(width);
      b += step_b * int64_t(width);
      if (++at[axis] < size) break;
      a -= step_a * size * int64_t(width);
      b -= step_b * size * int64_t(width);
      at[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// Whether the output can have this operand's layout: all of it, without gaps.
bool leads(const mx::array& x, const mx::array& out) {
  return x.shape() == out.shape() && x.flags().contiguous && x.data_size() == x.size();
}

class CpuBinary : public CpuPrimitive {
 public:
  CpuBinary(mx::Stream stream, kernels::Binary kind) : CpuPrimitive(stream), kind_(kind) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const auto &a = inputs[0], &b = inputs[1];
    const auto* leader = leads(a, out) ? &a : leads(b, out) ? &b : nullptr;
    const auto* other = leader == &a ? &b : &a;
    if (leader && mx::is_donatable(*leader, out))
      out.copy_shared_buffer(*leader);
    else if (leader && leads(*other, out) && other->strides() == leader->strides() && mx::is_donatable(*other, out))
      out.copy_shared_buffer(*other);
    else if (leader)
      out.set_data(mx::allocator::malloc(out.nbytes()), leader->data_size(), leader->strides(), leader->flags());
    else
      out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    auto combine = kernels::chosen().binary[kind_][kernel_type(out.dtype())];
    mx::cpu::get_command_encoder(stream()).dispatch(
        [combine, left = a.data<char>(), right = b.data<char>(), target = out.data<char>(), loops = loops_of(a, b, out),
         width = out.itemsize()] { run(combine, left, right, target, loops, width); });
  }

  std::optional<mlxc::Function> function() const override { return mlxc::Function{kind_, true}; }
  const char* name() const override { return "CpuBinary"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return kind_ == static_cast<const CpuBinary&>(other).kind_;
  }

 private:
  kernels::Binary kind_;
};

// One input, whose layout the output has: f(where it lies, where to, how many) on all of it at once.
template <class Function>
void map_all(const mx::array& in, mx::array& out, mx::Stream stream, Function f) {
  mx::set_unary_output_data(in, out);
  if (!in.size()) return;
  auto source = in.data<char>();
  auto target = out.data<char>();
  auto& encoder = mx::cpu::get_command_encoder(stream);
  if (in.flags().contiguous)
    encoder.dispatch([=, n = in.data_size()] { f(source, target, n); });
  else
    encoder.dispatch([=, shape = in.shape(), strides = in.strides(), from = in.itemsize(), to = out.itemsize()] {
      each_row(source, target, from, to, shape, strides, [&](const char* row, char* made) {
        f(row, made, size_t(shape.back()));
      });
    });
}

class CpuConvert : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    auto convert = kernels::chosen().convert[kernel_type(inputs[0].dtype())][kernel_type(out.dtype())];
    map_all(inputs[0], out, stream(), convert);
  }
  const char* name() const override { return "CpuConvert"; }
};

// Both read scale and zero point, of one element each, when they run.
class CpuQuantize : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    auto quantize = kernels::chosen().quantize;
    auto scale = inputs[1].data<float>();
    auto zero = inputs[2].data<char>();
    const bool is_signed = out.dtype() == mx::int8;
    map_all(inputs[0], out, stream(), [=](const char* in, char* to, size_t n) {
      quantize(in, to, n, *scale, is_signed ? *(const int8_t*)zero : *(const uint8_t*)zero, is_signed ? -128 : 0,
               is_signed ? 127 : 255);
    });
  }
  const char* name() const override { return "CpuQuantize"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
};

class CpuDequantize : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const auto& table = kernels::chosen();
    const bool is_signed = inputs[0].dtype() == mx::int8;
    auto dequantize = is_signed ? table.dequantize_signed : table.dequantize_unsigned;
    auto scale = inputs[1].data<float>();
    auto zero = inputs[2].data<char>();
    map_all(inputs[0], out, stream(), [=](const char* in, char* to, size_t n) {
      dequantize(in, to, n, *scale, is_signed ? *(const int8_t*)zero : *(const uint8_t*)zero);
    });
  }
  const char* name() const override { return "CpuDequantize"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
};

// Operands of one rank, so that whoever lays a graph out anew can move their axes alike.
mx::array of_rank(const mx::array& x, size_t rank, mx::Stream stream) {
  if (x.ndim() == rank) return x;
  mx::Shape shape(rank - x.ndim(), 1);
  shape.insert(shape.end(), x.shape().begin(), x.shape().end());
  return mx::reshape(x, std::move(shape), stream);
}

mx::array binary(const mx::array& a, const mx::array& b, int kind, mx::Stream stream) {
  if (kind < 0 || kind >= kernels::n_binary) bad_argument("no such kind of operation");
  if (a.dtype() != b.dtype()) bad_argument("operands of one type are needed");
  kernel_type(a.dtype());
  auto shape = mx::broadcast_shapes(a.shape(), b.shape());
  auto primitive = std::make_shared<CpuBinary>(stream, kernels::Binary(kind));
  Arrays operands{of_rank(a, shape.size(), stream), of_rank(b, shape.size(), stream)};
  return mx::array(std::move(shape), a.dtype(), std::move(primitive), std::move(operands));
}

mx::array convert(const mx::array& a, mx::Dtype dtype, mx::Stream stream) {
  kernel_type(a.dtype());
  kernel_type(dtype);
  if (a.dtype() == dtype) return a;
  return mx::array(a.shape(), dtype, std::make_shared<CpuConvert>(stream), {a});
}

void check_scale(const mx::array& scale, const mx::array& zero, mx::Dtype stored) {
  if (stored != mx::int8 && stored != mx::uint8) bad_argument("int8 or uint8 is needed");
  if (scale.size() != 1 || scale.dtype() != mx::float32) bad_argument("one float32 scale is needed");
  if (zero.size() != 1 || zero.dtype() != stored) bad_argument("one zero point of the stored type is needed");
}

mx::array quantized(const mx::array& x, const mx::array& scale, const mx::array& zero, mx::Stream stream) {
  check_scale(scale, zero, zero.dtype());
  if (x.dtype() != mx::float32) bad_argument("float32 is needed");
  return mx::array(x.shape(), zero.dtype(), std::make_shared<CpuQuantize>(stream), {x, scale, zero});
}

mx::array dequantized(const mx::array& x, const mx::array& scale, const mx::array& zero, mx::Stream stream) {
  check_scale(scale, zero, x.dtype());
  return mx::array(x.shape(), mx::float32, std::make_shared<CpuDequantize>(stream), {x, scale, zero});
}

} // namespace

extern "C" {

int mlxc_py_cpu_binary(mlx_array* res, mlx_array a, mlx_array b, int kind, mlx_stream s)
    MLXC_TRY(put(res, binary(c_ref(a), c_ref(b), kind, cpu_stream(s)));)

int mlxc_py_cpu_convert(mlx_array* res, mlx_array a, mlx_dtype dtype, mlx_stream s)
    MLXC_TRY(put(res, convert(c_ref(a), c_dtype(dtype), cpu_stream(s)));)

int mlxc_py_cpu_quantize(mlx_array* res, mlx_array x, mlx_array scale, mlx_array zero, mlx_stream s)
    MLXC_TRY(put(res, quantized(c_ref(x), c_ref(scale), c_ref(zero), cpu_stream(s)));)

int mlxc_py_cpu_dequantize(mlx_array* res, mlx_array x, mlx_array scale, mlx_array zero, mlx_stream s)
    MLXC_TRY(put(res, dequantized(c_ref(x), c_ref(scale), c_ref(zero), cpu_stream(s)));)

} // extern "C"
