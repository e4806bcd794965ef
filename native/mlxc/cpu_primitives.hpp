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

// A primitive with one output.
class CpuPrimitive : public mx::UnaryPrimitive {
 public:
  using mx::UnaryPrimitive::UnaryPrimitive;
  void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
    throw std::runtime_error(std::string(name()) + " runs on the CPU only");
  }
};

// The data of an array as it lies row by row. Where it lies otherwise, `encoder` copies it first.
const float* dense(const mx::array& a, mx::cpu::CommandEncoder& encoder);

} // namespace mlxc
