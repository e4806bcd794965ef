#include "tape.hpp"

#include <map>
#include <mutex>
#include <typeinfo>
#include <unordered_set>

#include "extras.h"
#include "fuse.hpp"
#include "layout.hpp"

using namespace mlxc;

namespace mlxc {

namespace {

// A constant may be so many times as large as what it is computed from (integers of 4 bits become floats of 32), and
// this much beyond.
constexpr size_t kept_growth = 8, kept_bytes = size_t(1) << 20;

// What an array takes in memory: a broadcast one is a view.
size_t own_bytes(const mx::array& a) {
  const bool is_view = a.has_primitive() && a.primitive().name() == std::string("Broadcast");
  return is_view ? a.inputs()[0].nbytes() : a.nbytes();
}

bool worth_keeping(const mx::array& a) {
  size_t given = kept_bytes, made = 0;
  for (const auto& input : a.inputs()) given += kept_growth * own_bytes(input);
  for (const auto& output : a.outputs()) made += own_bytes(output);
  return made <= given;
}

} // namespace

// ---- constants that are computed once
// How a constant is made: a primitive on other recipes, or an array that is there. Arrays are held, so that no other
// takes their place in memory, and with it their identity.
struct Recipe {
  mx::array made;
  std::shared_ptr<mx::Primitive> primitive;
  std::vector<std::shared_ptr<const Recipe>> inputs;
  size_t hash = 0;
};

struct Folded {
  std::shared_ptr<const Recipe> recipe;
  mx::array value;
};

namespace {

using Recipes = std::unordered_map<std::uintptr_t, std::shared_ptr<const Recipe>>;

std::shared_ptr<const Recipe> recipe_of(const mx::array& a, const Recipes& known) {
  if (!a.has_primitive()) return std::make_shared<Recipe>(Recipe{a, nullptr, {}, std::hash<std::uintptr_t>{}(a.id())});
  // the recipe keeps what the array is like, not the graph below it
  Recipe recipe{placeholder(a.shape(), a.dtype()), a.primitive_ptr(), {}, std::hash<std::string>{}(a.primitive().name())};
  for (const auto& input : a.inputs()) {
    recipe.inputs.push_back(known.at(input.id()));
    recipe.hash = recipe.hash * 31 + recipe.inputs.back()->hash;
  }
  recipe.hash = recipe.hash * 31 + size_t(a.sibling_position());
  return std::make_shared<Recipe>(std::move(recipe));
}

bool equal(const Recipe& a, const Recipe& b) {
  if (&a == &b) return true;
  if (a.hash != b.hash || !a.primitive != !b.primitive) return false;
  if (!a.primitive) return a.made.id() == b.made.id();
  const auto& p = *a.primitive;
  const auto& q = *b.primitive;
  if (typeid(p) != typeid(q) || !p.is_equivalent(q) || a.inputs.size() != b.inputs.size()) return false;
  if (a.made.shape() != b.made.shape() || a.made.dtype() != b.made.dtype()) return false;
  for (size_t i = 0; i < a.inputs.size(); ++i)
    if (!equal(*a.inputs[i], *b.inputs[i])) return false;
  return true;
}

class FoldedConstants {
 public:
  std::shared_ptr<const Folded> find(const Recipe& recipe) {
    std::lock_guard lock(mutex_);
    auto range = held_.equal_range(recipe.hash);
    for (auto it = range.first; it != range.second;) {
      auto folded = it->second.lock();
      if (!folded) {
        it = held_.erase(it);
        continue;
      }
      if (equal(*folded->recipe, recipe)) return folded;
      ++it;
    }
    return nullptr;
  }

  void add(const std::shared_ptr<const Folded>& folded) {
    std::lock_guard lock(mutex_);
    if (held_.size() >= limit_) {
      for (auto it = held_.begin(); it != held_.end();) it = it->second.expired() ? held_.erase(it) : std::next(it);
      limit_ = std::max<size_t>(256, 2 * held_.size());
    }
    held_.emplace(folded->recipe->hash, folded);
  }

 private:
  std::mutex mutex_;
  std::multimap<size_t, std::weak_ptr<const Folded>> held_;
  size_t limit_ = 256;
};

FoldedConstants& folded_constants() {
  static auto* all = new FoldedConstants; // never destroyed: tapes may be freed while the process ends
  return *all;
}

} // namespace

mx::array placeholder(mx::Shape shape, mx::Dtype dtype) {
  return mx::array(std::move(shape), dtype, nullptr, {});
}

Tape::Tape(const Arrays& inputs, const Arrays& given) {
  const auto outputs = laid_out(given);
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
  Recipes recipes;
  Arrays fresh;
  std::vector<size_t> fresh_at;
  for (const auto& a : order) {
    if (!is_fixed(a)) continue;
    auto recipe = recipes.emplace(a.id(), recipe_of(a, recipes)).first->second;
    if (!needed.count(a.id())) continue;
    auto known = a.has_primitive() ? folded_constants().find(*recipe) : nullptr;
    if (a.has_primitive() && !known) {
      fresh.push_back(a);
      fresh_at.push_back(constants_.size());
      known = std::make_shared<Folded>(Folded{recipe, a});
    }
    constants_.push_back(known ? known->value : a);
    folded_.push_back(std::move(known));
    slot_.emplace(a.id(), -int(constants_.size()));
  }
  if (!fresh.empty()) evaluate(fresh);
  for (size_t at : fresh_at) folded_constants().add(folded_[at]);
  for (const auto& a : order) {
    if (is_fixed(a) || slot_.count(a.id())) continue;
    TapeNode node{a.primitive_ptr(), {}, {}, {}};
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
  nodes_ = fused(std::move(nodes_), inputs_.size(), outputs_);
  slots_ = inputs_.size();
  for (const auto& node : nodes_) slots_ += node.shapes.size();
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
  return std::count_if(nodes_.begin(), nodes_.end(), [&](const TapeNode& n) { return primitive == n.primitive->name(); });
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
  return make<mlx_array>(placeholder(c_dims(dims, dim), c_dtype(type)));
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
