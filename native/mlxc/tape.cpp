#include "tape.hpp"

#include <unordered_set>

#include "extras.h"

using namespace mlxc;

namespace mlxc {

namespace {

// A constant may be this much larger than what it is computed from.
constexpr size_t kept_bytes = size_t(1) << 20;

// Every array that `outputs` need, inputs before users. Not recursive: graphs are thousands of nodes deep.
Arrays in_order(const Arrays& outputs) {
  Arrays order;
  std::unordered_set<std::uintptr_t> entered, done;
  std::vector<std::pair<mx::array, size_t>> open;
  auto enter = [&](const mx::array& a) {
    if (entered.insert(a.id()).second) open.emplace_back(a, 0);
  };
  for (const auto& out : outputs) {
    enter(out);
    while (!open.empty()) {
      auto& [a, next] = open.back();
      if (a.has_primitive() && next < a.inputs().size()) {
        const auto input = a.inputs()[next++];
        enter(input);
        continue;
      }
      order.push_back(a);
      open.pop_back();
    }
  }
  return order;
}

bool worth_keeping(const mx::array& a) {
  size_t given = kept_bytes, made = 0;
  for (const auto& input : a.inputs()) given += input.nbytes();
  for (const auto& output : a.outputs()) made += output.nbytes();
  return made <= given;
}

} // namespace

mx::array placeholder(mx::Shape shape, mx::Dtype dtype) {
  return mx::array(std::move(shape), dtype, nullptr, {});
}

Tape::Tape(const Arrays& inputs, const Arrays& outputs) {
  for (const auto& input : inputs) {
    slot_.emplace(input.id(), int(slots_++));
    inputs_.emplace_back(input.shape(), input.dtype());
  }
  const auto order = in_order(outputs);
  std::unordered_set<std::uintptr_t> fixed, needed;
  auto is_fixed = [&](const mx::array& a) { return fixed.count(a.id()) != 0; };
  for (const auto& a : order) {
    if (slot_.count(a.id())) continue;
    if (!a.has_primitive()) {
      if (!a.is_available()) bad_argument("the graph reads a placeholder that is not among the tape's inputs");
      fixed.insert(a.id());
    } else if (std::all_of(a.inputs().begin(), a.inputs().end(), is_fixed) && worth_keeping(a)) {
      fixed.insert(a.id());
    } else {
      for (const auto& input : a.inputs()) needed.insert(input.id());
    }
  }
  for (const auto& out : outputs) needed.insert(out.id());
  for (const auto& a : order)
    if (is_fixed(a) && needed.count(a.id())) {
      constants_.push_back(a);
      slot_.emplace(a.id(), -int(constants_.size()));
    }
  if (!constants_.empty()) evaluate(constants_);
  for (const auto& a : order) {
    if (is_fixed(a) || slot_.count(a.id())) continue;
    Node node{a.primitive_ptr(), {}, {}, {}};
    for (const auto& input : a.inputs()) node.inputs.push_back(slot_of(input));
    for (const auto& output : a.outputs()) {
      node.shapes.push_back(output.shape());
      node.dtypes.push_back(output.dtype());
      slot_.emplace(output.id(), int(slots_++));
    }
    nodes_.push_back(std::move(node));
  }
  for (const auto& out : outputs) outputs_.push_back(slot_of(out));
  slot_ = {};
}

int Tape::slot_of(const mx::array& a) const { return slot_.at(a.id()); }

Arrays Tape::apply(const Arrays& inputs) const {
  if (inputs.size() != inputs_.size()) bad_argument("another number of inputs than the tape was recorded with");
  Arrays values;
  values.reserve(slots_);
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_not_failed(inputs[i]);
    if (inputs[i].shape() != inputs_[i].first || inputs[i].dtype() != inputs_[i].second)
      bad_argument("an input has another shape or type than the tape was recorded with");
    values.push_back(inputs[i]);
  }
  auto value = [&](int slot) -> const mx::array& { return slot < 0 ? constants_[-1 - slot] : values[slot]; };
  for (const auto& node : nodes_) {
    Arrays arguments;
    arguments.reserve(node.inputs.size());
    for (int slot : node.inputs) arguments.push_back(value(slot));
    if (node.shapes.size() == 1) {
      values.emplace_back(node.shapes[0], node.dtypes[0], node.primitive, std::move(arguments));
    } else {
      for (auto& made : mx::array::make_arrays(node.shapes, node.dtypes, node.primitive, arguments))
        values.push_back(std::move(made));
    }
  }
  Arrays results;
  for (int slot : outputs_) results.push_back(value(slot));
  return results;
}

size_t Tape::count(const std::string& primitive) const {
  return std::count_if(nodes_.begin(), nodes_.end(), [&](const Node& n) { return primitive == n.primitive->name(); });
}

} // namespace mlxc

namespace {

const Tape& tape_of(mlxc_py_tape tape) {
  if (!tape.ctx) empty_handle("mlxc_py_tape");
  return *static_cast<const Tape*>(tape.ctx);
}

Arrays arrays_of(const mlx_array* handles, size_t n) {
  if (!handles && n) bad_argument("NULL arrays");
  Arrays arrays;
  arrays.reserve(n);
  for (size_t i = 0; i < n; ++i) arrays.push_back(c_peek(handles[i]));
  return arrays;
}

mlx_array new_placeholder(const int* dims, int dim, mlx_dtype type) {
  if (dim < 0) bad_argument("negative number of dimensions");
  return make<mlx_array>(placeholder(c_shape(dims, size_t(dim)), c_dtype(type)));
}

void apply(mlx_array* res, size_t n_res, const Tape& tape, const mlx_array* inputs, size_t n) {
  auto results = tape.apply(arrays_of(inputs, n));
  if (!res || results.size() != n_res) bad_argument("another number of outputs than the tape was recorded with");
  for (size_t i = 0; i < n_res; ++i) res[i] = make<mlx_array>(std::move(results[i]));
}

} // namespace

extern "C" {

mlx_array mlxc_py_array_new_placeholder(const int* shape, int dim, mlx_dtype dtype)
    MLXC_RETURN({}, new_placeholder(shape, dim, dtype))

int mlxc_py_tape_new(
    mlxc_py_tape* res, const mlx_array* inputs, size_t n_inputs, const mlx_array* outputs, size_t n_outputs)
    MLXC_TRY(res->ctx = new Tape(arrays_of(inputs, n_inputs), arrays_of(outputs, n_outputs));)

int mlxc_py_tape_apply(mlx_array* res, size_t n_res, mlxc_py_tape tape, const mlx_array* inputs, size_t n_inputs)
    MLXC_TRY(apply(res, n_res, tape_of(tape), inputs, n_inputs);)

int mlxc_py_tape_count(size_t* res, mlxc_py_tape tape, const char* primitive)
    MLXC_TRY(*res = primitive ? tape_of(tape).count(primitive) : tape_of(tape).size();)

int mlxc_py_tape_free(mlxc_py_tape tape) MLXC_TRY(delete static_cast<const Tape*>(tape.ctx);)

} // extern "C"
