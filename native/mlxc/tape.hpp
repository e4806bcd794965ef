// A recorded MLX graph: built once on placeholders, then laid out anew over other inputs of the same shapes, from any
// thread. Unlike mlx::core::compile it keeps no state per thread and needs no compiler: what it fuses on the CPU are loops
// of our own.
#pragma once

#include <unordered_set>

#include "allocation.hpp"
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

struct Constants {
  Arrays values;
  std::vector<std::shared_ptr<const Folded>> folded;
};

// A graph in numbered slots, before operations are joined. Of operations that compute the same the first stands for all.
struct Recording {
  std::vector<TapeNode> nodes;
  std::vector<size_t> places; // of the nodes in the order they were recorded from
  std::vector<std::pair<size_t, size_t>> repeated; // places: of an operation, and of the one that stands for it
  std::shared_ptr<Constants> constants = std::make_shared<Constants>();
  std::vector<int> outputs;
};

// Records what `outputs` are computed from, which `order` has (layout.hpp). What does not depend on `inputs`
// (placeholders) is evaluated now, unless it is among `varying` or would hold far more memory than it is computed from.
// Operations that compute the same are one, unless `apart` says of their places that they are not to be.
Recording recorded(
    const Arrays& inputs,
    const Arrays& outputs,
    const Arrays& order,
    const std::unordered_set<std::uintptr_t>& varying = {},
    const std::function<bool(size_t, size_t)>& apart = {});

class Tape {
 public:
  using Form = std::pair<mx::Shape, mx::Dtype>;
  using Nodes = std::vector<std::shared_ptr<const TapeNode>>;

  Tape(const Arrays& inputs, const Arrays& outputs);

  // Of nodes that other tapes may have, too. After the inputs come the slots of `further`.
  Tape(
      std::vector<Form> inputs,
      Arrays further,
      std::shared_ptr<const Constants> constants,
      Nodes nodes,
      std::vector<int> outputs);

  // The outputs for other inputs: not evaluated, or, where the inputs are there and the calling thread can compute them,
  // in `spent` more nanoseconds. Bad argument when number, shapes or types differ from the recorded.
  Arrays apply(const Arrays& inputs, int64_t& spent) const;

  // The outputs, evaluated, for inputs of the recorded shapes that lie row-contiguous at host addresses. On the CPU they
  // are read in place, so an output may lie in an input's memory. Adds the nanoseconds of the evaluation to `spent`.
  Arrays run(const void* const* data, size_t n, int64_t& spent) const;

  // The same with the outputs' bytes brought to `results` (NULL: not wanted): where it can be, they are computed there.
  void fill(void* const* results, size_t n_results, const void* const* data, size_t n, int64_t& spent) const;

  size_t size() const { return nodes_.size(); }
  size_t count(const std::string& primitive) const;

 private:
  // The node that makes the bytes of a large output.
  struct Maker {
    int node, output;
    size_t bytes;
  };

  void prepare();
  bool may_lie_at(const void* memory, const Maker& maker, const Arrays& values) const;
  Arrays host_inputs(const void* const* data, size_t n) const;
  const mx::array& value(const Arrays& values, int slot) const {
    return slot < 0 ? constants_->values[-1 - slot] : values[slot];
  }
  Arrays built(Arrays inputs) const;
  // Offers the memory of `results`, if not NULL, to the nodes that make the outputs.
  Arrays computed(Arrays inputs, int64_t& spent, void* const* results = nullptr, Lending* lending = nullptr) const;
  Arrays results_of(const Arrays& values) const;

  std::vector<Form> inputs_;
  Arrays further_;
  std::shared_ptr<const Constants> constants_;
  Nodes nodes_;
  std::vector<int> outputs_;
  size_t slots_ = 0;
  std::vector<bool> last_;         // of each input of each node: whether nobody reads that slot afterwards
  bool on_calling_thread_ = false; // whether that can compute it
  std::vector<Maker> makers_;      // by node
};

// An array with a shape and a type, and nothing else: evaluating it is an error.
mx::array placeholder(mx::Shape shape, mx::Dtype dtype);

Arrays c_arrays(const mlx_array* handles, size_t n);

} // namespace mlxc
