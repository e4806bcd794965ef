// What MLX sees of the loops in kernels_cpu: primitives beside its own.
#pragma once

#include "mlx/backend/common/unary.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"

#include "handles.hpp"
#include "kernels_cpu/kernels.hpp"

namespace mlxc {

kernels::Type kernel_type(mx::Dtype dtype);

mx::Stream cpu_stream(mlx_stream stream);

// One of kernels::Unary with its parameters, or of kernels::Binary.
struct Function {
  int kind;
  bool binary;
  float p = 0, q = 0;
};

// A primitive with one output.
class CpuPrimitive : public mx::UnaryPrimitive {
 public:
  using mx::UnaryPrimitive::UnaryPrimitive;
  // What it does to each element, where that is all it does.
  virtual std::optional<Function> function() const { return {}; }
  void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
    throw std::runtime_error(std::string(name()) + " runs on the CPU only");
  }
};

// A primitive that works along one axis of its first input, whatever the layout of that is.
class CpuAlongAxis : public CpuPrimitive {
 public:
  CpuAlongAxis(mx::Stream stream, int axis) : CpuPrimitive(stream), axis(axis) {}
  virtual std::shared_ptr<CpuPrimitive> along(int other) = 0;
  const int axis;
};

// One of kernels::Unary on each element.
std::shared_ptr<mx::Primitive> unary_primitive(mx::Stream stream, kernels::Unary kind, float p, float q);

// The data of an array as it lies row by row. Where it lies otherwise, `encoder` copies it first.
const float* dense(const mx::array& a, mx::cpu::CommandEncoder& encoder);

// How bytes stand for floats from `low`, at most 0, to `high`, at least 0.
struct LinearRange {
  float scale;
  uint8_t zero;
};
LinearRange linear_range(float low, float high);

// Every row of the last axis: f(its first element, where it goes), where rows go one after the other, of elements
// `made` bytes wide. A row that is not dense is gathered first.
template <class Function>
void each_row(
    const char* in, char* out, size_t width, size_t made, const mx::Shape& shape, const mx::Strides& strides, Function f) {
  const int last = int(shape.size()) - 1;
  const size_t length = shape[last];
  const int64_t step = strides[last] * int64_t(width);
  std::vector<char> gathered(step == int64_t(width) ? 0 : length * width);
  std::vector<int> at(last, 0);
  for (;;) {
    const char* row = in;
    if (!gathered.empty()) {
      for (size_t i = 0; i < length; ++i) std::memcpy(&gathered[i * width], in + int64_t(i) * step, width);
      row = gathered.data();
    }
    f(row, out);
    out += length * made;
    int axis = last - 1;
    for (; axis >= 0; --axis) {
      in += strides[axis] * int64_t(width);
      if (++at[axis] < shape[axis]) break;
      in -= strides[axis] * int64_t(width) * shape[axis];
      at[axis] = 0;
    }
    if (axis < 0) return;
  }
}

} // namespace mlxc
