#include "tape.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <typeinfo>

#include "mlx/primitives.h"

#include "calling_thread.hpp"
#include "extras.h"
#include "fuse.hpp"
#include "host_memory.hpp"
#include "layout.hpp"

using namespace mlxc;

namespace mlxc {

namespace {

// A constant may be so many times as large as what it is computed from (integers of 4 bits become floats of 32), and
// this much beyond.
constexpr size_t kept_growth = 8, kept_bytes = size_t(1) << 20;

// Outputs below this are copied sooner than their memory is offered.
constexpr size_t worth_lending = size_t(1) << 14;

// What passes on memory that is contiguous.
const std::unordered_set<std::string> views{"Reshape",   "Squeeze",    "ExpandDims", "Flatten",
                                            "Unflatten", "Contiguous", "CpuRows"};

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
// How a constant is made: a primitive on other recipes, or an array that is there. Of equal recipes one exists at a time,
// so what a recipe is made from is told by address. Arrays are held: no other takes their place in memory.
struct Recipe;
static void forget(const Recipe& recipe);

struct Recipe {
  mx::array made;
  std::shared_ptr<mx::Primitive> primitive;
  int sibling;
  std::vector<std::shared_ptr<Recipe>> inputs;
  size_t hash = 0;
  std::weak_ptr<const Folded> folded;

  Recipe(mx::array like, std::shared_ptr<mx::Primitive> by, int sibling, std::vector<std::shared_ptr<Recipe>> from)
      : made(std::move(like)), primitive(std::move(by)), sibling(sibling), inputs(std::move(from)) {
    const auto add = [&](size_t part) { hash = hash * 31 + part; };
    add(primitive ? std::hash<std::string>{}(primitive->name()) : made.id());
    add(size_t(sibling));
    for (const auto& input : inputs) add(std::hash<const void*>{}(input.get()));
  }

  // In a loop: a chain of recipes may be longer than the stack is deep.
  ~Recipe() {
    forget(*this);
    static thread_local std::vector<std::shared_ptr<Recipe>>* dropped = nullptr;
    if (dropped) {
      std::move(inputs.begin(), inputs.end(), std::back_inserter(*dropped));
      return;
    }
    dropped = &inputs;
    while (!inputs.empty()) {
      const auto last = std::move(inputs.back());
      inputs.pop_back();
    }
    dropped = nullptr;
  }

  bool operator==(const Recipe& other) const {
    if (hash != other.hash || inputs != other.inputs || sibling != other.sibling) return false;
    if (!primitive || !other.primitive) return !primitive && !other.primitive && made.id() == other.made.id();
    const auto &p = *primitive, &q = *other.primitive;
    return typeid(p) == typeid(q) && p.is_equivalent(q) && made.shape() == other.made.shape() &&
        made.dtype() == other.made.dtype();
  }
};

struct Folded {
  std::shared_ptr<Recipe> recipe;
  mx::array value;
};

namespace {

class Recipes {
 public:
  // The recipe that exists, or this one.
  std::shared_ptr<Recipe> interned(std::shared_ptr<Recipe> recipe) {
    std::vector<std::shared_ptr<Recipe>> looked_at; // the last reference to one may be here, and it asks to be forgotten
    std::lock_guard lock(mutex_);
    for (auto [it, end] = known_.equal_range(recipe->hash); it != end; ++it) {
      looked_at.push_back(it->second.second.lock());
      if (looked_at.back() && *looked_at.back() == *recipe) return looked_at.back();
    }
    known_.emplace(recipe->hash, std::pair(recipe.get(), recipe));
    return recipe;
  }

  void forget(const Recipe& recipe) {
    std::lock_guard lock(mutex_);
    for (auto [it, end] = known_.equal_range(recipe.hash); it != end; ++it)
      if (it->second.first == &recipe) {
        known_.erase(it);
        return;
      }
  }

  std::shared_ptr<const Folded> folded(const Recipe& recipe) {
    std::lock_guard lock(mutex_);
    return recipe.folded.lock();
  }

  void add(const std::shared_ptr<const Folded>& folded) {
    std::lock_guard lock(mutex_);
    folded->recipe->folded = folded;
  }

 private:
  std::mutex mutex_;
  std::unordered_multimap<size_t, std::pair<const Recipe*, std::weak_ptr<Recipe>>> known_;
};

Recipes& recipes() {
  static auto* all = new Recipes; // never destroyed: tapes may be freed while the process ends
  return *all;
}

} // namespace

static void forget(const Recipe& recipe) { recipes().forget(recipe); }

namespace {

using RecipesById = std::unordered_map<std::uintptr_t, std::shared_ptr<Recipe>>;

std::shared_ptr<Recipe> recipe_of(const mx::array& a, const RecipesById& before) {
  std::vector<std::shared_ptr<Recipe>> inputs;
  if (!a.has_primitive()) return recipes().interned(std::make_shared<Recipe>(a, nullptr, 0, std::move(inputs)));
  for (const auto& input : a.inputs()) inputs.push_back(before.at(input.id()));
  // the recipe keeps what the array is like, not the graph below it
  return recipes().interned(std::make_shared<Recipe>(
      placeholder(a.shape(), a.dtype()), a.primitive_ptr(), int(a.sibling_position()), std::move(inputs)));
}

mx::array host_input(const void* data, const mx::Shape& shape, mx::Dtype dtype) {
  const size_t bytes = c_nbytes(shape, dtype);
  if (!data && bytes) bad_argument("NULL data");
  if (bytes && host_allocator()) return borrowed(const_cast<void*>(data), shape, dtype, [] {});
  return copied(data, shape, dtype);
}

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

class Timer {
 public:
  explicit Timer(int64_t& nanoseconds) : nanoseconds_(nanoseconds) {}
  ~Timer() { nanoseconds_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began_).count(); }

 private:
  int64_t& nanoseconds_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

} // namespace

mx::array placeholder(mx::Shape shape, mx::Dtype dtype) {
  return mx::array(std::move(shape), dtype, nullptr, {});
}

Arrays c_arrays(const mlx_array* handles, size_t n) {
  if (!handles && n) bad_argument("NULL arrays");
  Arrays arrays;
  arrays.reserve(n);
  for (size_t i = 0; i < n; ++i) arrays.push_back(c_peek(handles[i]));
  return arrays;
}

namespace {

// Of constants up to this size equal ones are told by what they hold.
constexpr size_t small_bytes = 64;

std::string content(const mx::array& a) {
  std::string told = std::to_string(int(a.dtype().val()));
  for (int length : a.shape()) told += ' ' + std::to_string(length);
  return told.append(1, ':').append(a.data<char>(), a.nbytes());
}

bool same(const TapeNode& a, const TapeNode& b) {
  const auto &p = *a.primitive, &q = *b.primitive;
  return a.inputs == b.inputs && a.shapes == b.shapes && a.dtypes == b.dtypes && typeid(p) == typeid(q) &&
      a.primitive->stream() == b.primitive->stream() && p.is_equivalent(q);
}

} // namespace

Recording recorded(
    const Arrays& inputs,
    const Arrays& outputs,
    const Arrays& order,
    const std::unordered_set<std::uintptr_t>& varying,
    const std::function<bool(size_t, size_t)>& apart) {
  Recording made;
  auto& [constants, folded] = *made.constants;
  int slots = 0;
  std::unordered_map<std::uintptr_t, int> slot_of;
  for (const auto& input : inputs) slot_of.emplace(input.id(), slots++);
  std::unordered_set<std::uintptr_t> fixed, needed;
  auto is_fixed = [&](const mx::array& a) { return fixed.count(a.id()) != 0; };
  for (const auto& a : order) {
    if (slot_of.count(a.id())) continue;
    if (!a.has_primitive()) {
      if (!a.is_available()) bad_argument("the graph reads a placeholder that is not among the tape's inputs");
      fixed.insert(a.id());
    } else if (
        std::all_of(a.inputs().begin(), a.inputs().end(), is_fixed) && !varying.count(a.id()) && worth_keeping(a)) {
      fixed.insert(a.id());
    } else {
      for (const auto& input : a.inputs()) needed.insert(input.id());
    }
  }
  for (const auto& out : outputs) needed.insert(out.id());
  RecipesById made_by;
  Arrays fresh, fixed_ones;
  std::vector<std::shared_ptr<const Folded>> fresh_folded;
  for (const auto& a : order) {
    if (!is_fixed(a)) continue;
    const auto& recipe = made_by.emplace(a.id(), recipe_of(a, made_by)).first->second;
    if (!needed.count(a.id())) continue;
    auto known = a.has_primitive() ? recipes().folded(*recipe) : nullptr;
    if (a.has_primitive() && !known) {
      known = std::make_shared<Folded>(Folded{recipe, a});
      fresh.push_back(a);
      fresh_folded.push_back(known);
    }
    fixed_ones.push_back(a);
    constants.push_back(known ? known->value : a);
    folded.push_back(std::move(known));
  }
  if (!fresh.empty()) evaluate_here(fresh);
  for (const auto& one : fresh_folded) recipes().add(one);
  std::unordered_map<std::string, int> small; // slots, by content
  for (size_t i = 0; i < constants.size(); ++i) {
    const auto& value = constants[i];
    int slot = -int(i) - 1;
    if (value.nbytes() <= small_bytes && value.flags().row_contiguous)
      slot = small.emplace(content(value), slot).first->second;
    slot_of.emplace(fixed_ones[i].id(), slot);
  }
  std::unordered_multimap<size_t, std::pair<size_t, int>> known; // node and its first slot, by hash
  for (size_t place = 0; place < order.size(); ++place) {
    const auto& a = order[place];
    if (is_fixed(a) || slot_of.count(a.id())) continue;
    TapeNode node{a.primitive_ptr(), {}, {}, {}};
    size_t hash = std::hash<std::string_view>{}(node.primitive->name());
    for (const auto& input : a.inputs()) {
      node.inputs.push_back(slot_of.at(input.id()));
      hash = hash * 31 + size_t(node.inputs.back());
    }
    for (const auto& output : a.outputs()) {
      node.shapes.push_back(output.shape());
      node.dtypes.push_back(output.dtype());
    }
    int first = slots;
    const auto [begin, end] = known.equal_range(hash);
    const auto equal = std::find_if(begin, end, [&](const auto& entry) {
      const size_t other = entry.second.first;
      return same(made.nodes[other], node) && !(apart && apart(place, made.places[other]));
    });
    if (equal != end) {
      first = equal->second.second;
      made.repeated.emplace_back(place, made.places[equal->second.first]);
    } else {
      known.emplace(hash, std::pair(made.nodes.size(), slots));
      slots += int(node.shapes.size());
      made.nodes.push_back(std::move(node));
      made.places.push_back(place);
    }
    for (const auto& output : a.outputs()) slot_of.emplace(output.id(), first++);
  }
  for (const auto& out : outputs) made.outputs.push_back(slot_of.at(out.id()));
  return made;
}

Tape::Tape(const Arrays& inputs, const Arrays& given) {
  const auto outputs = laid_out(given);
  auto recording = recorded(inputs, outputs, in_order(outputs));
  std::vector<mx::Shape> shapes;
  for (const auto& input : inputs) {
    inputs_.emplace_back(input.shape(), input.dtype());
    shapes.push_back(input.shape());
  }
  constants_ = std::move(recording.constants);
  outputs_ = std::move(recording.outputs);
  slots_ = inputs_.size();
  for (auto& node : fused(std::move(recording.nodes), shapes, constants_->values, outputs_)) {
    slots_ += node.shapes.size();
    nodes_.push_back(std::make_shared<TapeNode>(std::move(node)));
  }
  prepare();
}

Tape::Tape(
    std::vector<Form> inputs,
    Arrays further,
    std::shared_ptr<const Constants> constants,
    Nodes nodes,
    std::vector<int> outputs)
    : inputs_(std::move(inputs)),
      further_(std::move(further)),
      constants_(std::move(constants)),
      nodes_(std::move(nodes)),
      outputs_(std::move(outputs)),
      slots_(inputs_.size() + further_.size()) {
  for (const auto& node : nodes_) slots_ += node->shapes.size();
  prepare();
}

void Tape::prepare() {
  const int held = int(inputs_.size() + further_.size());
  std::vector<bool> read(slots_); // by slot
  for (int slot : outputs_)
    if (slot >= 0) read[slot] = true;
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node)
    for (auto slot = (*node)->inputs.rbegin(); slot != (*node)->inputs.rend(); ++slot) {
      last_.push_back(*slot >= held && !read[*slot]);
      if (*slot >= held) read[*slot] = true;
    }
  std::reverse(last_.begin(), last_.end());
  on_calling_thread_ = computes_on_calling_thread() &&
      std::all_of(nodes_.begin(), nodes_.end(), [](const auto& n) { return n->primitive->device() == mx::Device::cpu; });
  std::vector<std::pair<int, size_t>> made_by; // by slot after the held ones: node and bytes
  made_by.reserve(slots_ - held);
  for (size_t i = 0; i < nodes_.size(); ++i)
    for (size_t k = 0; k < nodes_[i]->shapes.size(); ++k)
      made_by.emplace_back(int(i), c_nbytes(nodes_[i]->shapes[k], nodes_[i]->dtypes[k]));
  for (size_t output = 0; output < outputs_.size(); ++output) {
    int slot = outputs_[output];
    const size_t bytes = slot < held ? 0 : made_by[slot - held].second;
    while (slot >= held && views.count(nodes_[made_by[slot - held].first]->primitive->name()))
      slot = nodes_[made_by[slot - held].first]->inputs[0];
    if (slot >= held && bytes >= worth_lending) makers_.push_back({made_by[slot - held].first, int(output), bytes});
  }
  std::sort(makers_.begin(), makers_.end(), [](const Maker& a, const Maker& b) { return a.node < b.node; });
}

// Not where an input lies: it is read to the end.
bool Tape::may_lie_at(const void* memory, const Maker& maker, const Arrays& values) const {
  if (!memory || !aligned(memory, nodes_[maker.node]->dtypes[0])) return false;
  return std::none_of(values.begin(), values.begin() + inputs_.size(), [&](const mx::array& input) {
    return input.size() && overlap(memory, maker.bytes, input.data<char>(), input.nbytes());
  });
}

Arrays Tape::apply(const Arrays& inputs, int64_t& spent) const {
  if (inputs.size() != inputs_.size()) bad_argument("another number of inputs than the tape was recorded with");
  bool there = on_calling_thread_;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_not_failed(inputs[i]);
    if (inputs[i].shape() != inputs_[i].first || inputs[i].dtype() != inputs_[i].second)
      bad_argument("an input has another shape or type than the tape was recorded with");
    there = there && inputs[i].is_available() && !inputs[i].is_tracer();
  }
  return there ? computed(inputs, spent) : built(inputs);
}

Arrays Tape::host_inputs(const void* const* data, size_t n) const {
  if (n != inputs_.size()) bad_argument("another number of inputs than the tape was recorded with");
  Arrays inputs;
  inputs.reserve(n);
  for (size_t i = 0; i < n; ++i) inputs.push_back(host_input(data[i], inputs_[i].first, inputs_[i].second));
  return inputs;
}

Arrays Tape::run(const void* const* data, size_t n, int64_t& spent) const {
  auto inputs = host_inputs(data, n); // held to the end: MLX reuses the memory of an array that nobody holds
  if (on_calling_thread_) return computed(std::move(inputs), spent);
  auto results = built(inputs);
  const Timer timer(spent);
  evaluate(results);
  return results;
}

void Tape::fill(void* const* results, size_t n_results, const void* const* data, size_t n, int64_t& spent) const {
  if (n_results != outputs_.size()) bad_argument("another number of outputs than the tape was recorded with");
  Lending lending;
  auto made = on_calling_thread_ ? computed(host_inputs(data, n), spent, results, &lending) : run(data, n, spent);
  for (const auto& array : made)
    if (array.size() && !array.flags().row_contiguous) bad_argument("an output is not row-contiguous");
  // what lies where another one goes: it passes on an input, or shares memory
  std::vector<std::vector<char>> aside(n_results);
  for (size_t i = 0; i < n_results; ++i) {
    if (!results[i] || !made[i].size() || made[i].data<char>() == results[i]) continue;
    for (size_t k = 0; k < n_results; ++k)
      if (results[k] && overlap(made[i].data<char>(), made[i].nbytes(), results[k], made[k].nbytes()))
        aside[i].assign(made[i].data<char>(), made[i].data<char>() + made[i].nbytes());
  }
  for (size_t i = 0; i < n_results; ++i) {
    if (!results[i] || !made[i].size() || made[i].data<char>() == results[i]) continue;
    std::memcpy(results[i], aside[i].empty() ? made[i].data<char>() : aside[i].data(), made[i].nbytes());
  }
}

Arrays Tape::built(Arrays values) const {
  values.reserve(slots_);
  values.insert(values.end(), further_.begin(), further_.end());
  for (const auto& node : nodes_) {
    Arrays arguments;
    arguments.reserve(node->inputs.size());
    for (int slot : node->inputs) arguments.push_back(value(values, slot));
    if (node->shapes.size() == 1) {
      values.emplace_back(node->shapes[0], node->dtypes[0], node->primitive, std::move(arguments));
    } else {
      for (auto& made : mx::array::make_arrays(node->shapes, node->dtypes, node->primitive, arguments))
        values.push_back(std::move(made));
    }
  }
  return results_of(values);
}

Arrays Tape::computed(Arrays values, int64_t& spent, void* const* results, Lending* lending) const {
  const Timer timer(spent);
  values.reserve(slots_);
  values.insert(values.end(), further_.begin(), further_.end());
  guard_allocations();
  CallingThread thread;
  Arrays arguments, made;
  auto last = last_.begin();
  auto maker = makers_.begin();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto& node = *nodes_[i];
    bool lends = false;
    for (; maker != makers_.end() && maker->node == int(i); ++maker) {
      if (!results || lends || !may_lie_at(results[maker->output], *maker, values)) continue;
      lending->offer(results[maker->output], maker->bytes);
      lends = true;
    }
    for (int slot : node.inputs) {
      const bool dropped = *last++;
      if (dropped && !lends)
        arguments.push_back(std::move(values[slot])); // held by nobody else: its memory may become the result's
      else
        arguments.push_back(value(values, slot)); // with memory for the result at hand it stays
    }
    for (size_t k = 0; k < node.shapes.size(); ++k)
      made.emplace_back(node.shapes[k], node.dtypes[k], node.primitive, Arrays{});
    thread.compute(arguments, made);
    if (lends) lending->withdraw();
    std::move(made.begin(), made.end(), std::back_inserter(values));
    arguments.clear();
    made.clear();
  }
  return results_of(values);
}

Arrays Tape::results_of(const Arrays& values) const {
  Arrays results;
  results.reserve(outputs_.size());
  for (int slot : outputs_) results.push_back(value(values, slot));
  return results;
}

size_t Tape::count(const std::string& primitive) const {
  return std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& n) { return primitive == n->primitive->name(); });
}

} // namespace mlxc

namespace {

const Tape& tape_of(mlxc_py_tape tape) {
  if (!tape.ctx) empty_handle("mlxc_py_tape");
  return *static_cast<const Tape*>(tape.ctx);
}

mlx_array new_placeholder(const int* dims, int dim, mlx_dtype type) {
  return make<mlx_array>(placeholder(c_dims(dims, dim), c_dtype(type)));
}

void apply(mlx_array* res, size_t n_res, int64_t* spent, const Tape& tape, const mlx_array* inputs, size_t n) {
  if (!spent) bad_argument("NULL");
  auto results = tape.apply(c_arrays(inputs, n), *spent);
  if (!res || results.size() != n_res) bad_argument("another number of outputs than the tape was recorded with");
  for (size_t i = 0; i < n_res; ++i) res[i] = make<mlx_array>(std::move(results[i]));
}

void run(mlx_array* res, void** addresses, size_t n_res, int64_t* spent, const Tape& tape, const void* const* data, size_t n) {
  if (!res || !addresses || !spent || (!data && n)) bad_argument("NULL");
  auto results = tape.run(data, n, *spent);
  if (results.size() != n_res) bad_argument("another number of outputs than the tape was recorded with");
  for (const auto& result : results)
    if (result.size() && !result.flags().row_contiguous) bad_argument("an output is not row-contiguous");
  for (size_t i = 0; i < n_res; ++i) {
    addresses[i] = results[i].size() ? results[i].data<char>() : nullptr;
    res[i] = make<mlx_array>(std::move(results[i]));
  }
}

} // namespace

extern "C" {

mlx_array mlxc_py_array_new_placeholder(const int* shape, int dim, mlx_dtype dtype)
    MLXC_RETURN({}, new_placeholder(shape, dim, dtype))

bool mlxc_py_tapes_on_calling_thread(void) { return computes_on_calling_thread(); }

int mlxc_py_eval_on_calling_thread(const mlx_array* arrays, size_t n) MLXC_TRY(evaluate_here(c_arrays(arrays, n));)

int mlxc_py_tape_new(
    mlxc_py_tape* res, const mlx_array* inputs, size_t n_inputs, const mlx_array* outputs, size_t n_outputs)
    MLXC_TRY(res->ctx = new Tape(c_arrays(inputs, n_inputs), c_arrays(outputs, n_outputs));)

int mlxc_py_tape_apply(
    mlx_array* res, size_t n_res, int64_t* spent, mlxc_py_tape tape, const mlx_array* inputs, size_t n_inputs)
    MLXC_TRY(apply(res, n_res, spent, tape_of(tape), inputs, n_inputs);)

int mlxc_py_tape_run(
    mlx_array* res,
    void** addresses,
    size_t n_res,
    int64_t* spent,
    mlxc_py_tape tape,
    const void* const* data,
    size_t n_inputs)
    MLXC_TRY(run(res, addresses, n_res, spent, tape_of(tape), data, n_inputs);)

// No handler hears of a failure: one of Python's must not be called where nobody holds its lock and it may be ending.
int mlxc_py_tape_fill(
    void* const* results, size_t n_res, int64_t* spent, mlxc_py_tape tape, const void* const* data, size_t n_inputs) try {
  tape_of(tape).fill(results, n_res, data, n_inputs, *spent);
  return 0;
} catch (...) {
  return 1;
}

int mlxc_py_tape_count(size_t* res, mlxc_py_tape tape, const char* primitive)
    MLXC_TRY(*res = primitive ? tape_of(tape).count(primitive) : tape_of(tape).size();)

int mlxc_py_tape_free(mlxc_py_tape tape) MLXC_TRY(delete static_cast<const Tape*>(tape.ctx);)

} // extern "C"
