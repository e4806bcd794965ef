// A recorded MLX graph: built once on placeholders, then laid out anew over other inputs of the same shapes, from any
// thread. Unlike mlx::core::compile it fuses nothing, keeps no state per thread and needs no compiler.
#pragma once

#include "handles.hpp"

namespace mlxc {

struct TapeNode {
  std::shared_ptr<mx::Primitive> primitive;
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  std::vector<int> inputs; // slots: 0 the first input, -1 the first constant
};

// A constant that a tape computed once: equal ones (the same operations on the same arrays) are shared by all tapes of
// the process, so packed weights exist once for all shapes and sessions.
struct Folded;

class Tape {
 public:
  // Records what `outputs` are computed from. What does not depend on `inputs` (placeholders) is evaluated now, unless
  // that would hold far more memory than it is computed from.
  Tape(const Arrays& inputs, const Arrays& outputs);

  // The outputs for other inputs, not evaluated. Bad argument when number, shapes or types differ from the recorded.
  Arrays apply(const Arrays& inputs) const;

  // The outputs, evaluated, for inputs of the recorded shapes that lie row-contiguous at host addresses. On the CPU they
  // are read in place, so an output may lie in an input's memory. Adds the nanoseconds of the evaluation to `spent`.
  Arrays run(const void* const* data, size_t n, int64_t& spent) const;

  size_t size() const { return nodes_.size(); }
  size_t count(const std::string& primitive) const;

 private:
  int slot_of(const mx::array& a) const;

  std::vector<std::pair<mx::Shape, mx::Dtype>> inputs_;
  Arrays constants_;
  std::vector<std::shared_ptr<const Folded>> folded_;
  std::vector<TapeNode> nodes_;
  std::vector<int> outputs_;
  size_t slots_ = 0;
  std::unordered_map<std::uintptr_t, int> slot_; // by array id, while recording
};

// An array with a shape and a type, and nothing else: evaluating it is an error.
mx::array placeholder(mx::Shape shape, mx::Dtype dtype);

} // namespace mlxc
