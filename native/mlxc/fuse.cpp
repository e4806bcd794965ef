#include "fuse.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "cpu_primitives.hpp"

namespace mlxc {

namespace {

constexpr int block_size = 1024; // floats that every operation of a group is done on before the next block
constexpr size_t most_operations = 32;
constexpr size_t most_inputs = 24;

// On registers: first the group's inputs, then one for each operation before. b < 0: a function of a alone.
struct Operation {
  int kind;
  float p, q;
  int a, b;
};

bool alike(const Operation& x, const Operation& y) {
  return x.kind == y.kind && x.p == y.p && x.q == y.q && x.a == y.a && x.b == y.b;
}

// A tensor's place in memory as the loops see it: rows and columns below some outer axes.
struct Operand {
  const float* data;
  mx::Strides outer;
  int64_t row, column;
  bool scalar() const {
    return !row && !column && std::all_of(outer.begin(), outer.end(), [](auto step) { return !step; });
  }
};

// Axes that are walked in one stride by every operand become one; axes of size 1 go.
void collapse(mx::Shape& shape, std::vector<mx::Strides>& strides) {
  mx::Shape sizes;
  std::vector<mx::Strides> steps(strides.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    bool joins = !sizes.empty();
    for (size_t i = 0; joins && i < strides.size(); ++i) joins = steps[i].back() == strides[i][axis] * shape[axis];
    if (joins) {
      sizes.back() *= shape[axis];
      for (size_t i = 0; i < strides.size(); ++i) steps[i].back() = strides[i][axis];
    } else {
      sizes.push_back(shape[axis]);
      for (size_t i = 0; i < strides.size(); ++i) steps[i].push_back(strides[i][axis]);
    }
  }
  shape = std::move(sizes);
  strides = std::move(steps);
}

class Loop {
 public:
  Loop(const std::vector<Operation>& operations, mx::Shape shape, std::vector<mx::Strides> strides,
       const std::vector<const float*>& data, float* out)
      : operations_(operations), out_(out) {
    collapse(shape, strides);
    columns_ = shape.empty() ? 1 : shape.back();
    rows_ = shape.size() < 2 ? 1 : shape[shape.size() - 2];
    const size_t outer = shape.size() < 2 ? 0 : shape.size() - 2;
    outer_ = mx::Shape(shape.begin(), shape.begin() + outer);
    for (size_t i = 0; i < data.size(); ++i) {
      const auto& s = strides[i];
      operands_.push_back({data[i], mx::Strides(s.begin(), s.begin() + outer), s.size() < 2 ? 0 : s[outer],
                           s.empty() ? 0 : s.back()});
    }
    plan();
  }

  void run() {
    std::vector<int> at(outer_.size(), 0);
    std::vector<const float*> base;
    for (const auto& operand : operands_) base.push_back(operand.data);
    for (;;) {
      plane(base);
      int axis = int(outer_.size()) - 1;
      for (; axis >= 0; --axis) {
        for (size_t i = 0; i < base.size(); ++i) base[i] += operands_[i].outer[axis];
        if (++at[axis] < outer_[axis]) break;
        for (size_t i = 0; i < base.size(); ++i) base[i] -= operands_[i].outer[axis] * outer_[axis];
        at[axis] = 0;
      }
      if (axis < 0) return;
    }
  }

 private:
  // Which inputs are used as scalars, and where intermediate results lie: as few buffers as their lives allow.
  void plan() {
    const size_t n = operands_.size();
    filled_.assign(n, false);
    std::vector<bool> scalar(n);
    for (size_t i = 0; i < n; ++i) scalar[i] = operands_[i].scalar();
    auto is_scalar = [&](int reg) { return reg >= 0 && size_t(reg) < n && scalar[reg]; };
    std::vector<size_t> last(n + operations_.size(), 0);
    for (size_t i = 0; i < operations_.size(); ++i) {
      const auto& o = operations_[i];
      if (is_scalar(o.a) && (o.b < 0 || is_scalar(o.b))) filled_[o.a] = true;
      last[o.a] = i;
      if (o.b >= 0) last[o.b] = i;
    }
    buffer_.assign(n + operations_.size(), -1);
    scalar_.assign(n, false);
    int buffers = 0;
    for (size_t i = 0; i < n; ++i) {
      scalar_[i] = scalar[i] && !filled_[i];
      if (!scalar_[i]) buffer_[i] = buffers++;
    }
    std::vector<int> free;
    for (size_t i = 0; i + 1 < operations_.size(); ++i) {
      for (int reg : std::set<int>{operations_[i].a, operations_[i].b})
        if (reg >= int(n) && last[reg] == i) free.push_back(buffer_[reg]);
      if (free.empty()) free.push_back(buffers++);
      buffer_[n + i] = free.back();
      free.pop_back();
    }
    memory_.resize(size_t(buffers) * block_size);
    cached_.assign(n, nullptr);
  }

  float* buffer(int reg) { return memory_.data() + size_t(buffer_[reg]) * block_size; }

  void plane(const std::vector<const float*>& base) {
    std::vector<const float*> seen(operands_.size());
    const int64_t in_block = std::max<int64_t>(1, block_size / columns_);
    for (int64_t row = 0; row < rows_; row += in_block) {
      const int64_t rows = std::min(in_block, rows_ - row);
      for (int64_t column = 0; column < columns_; column += block_size) {
        const int64_t columns = std::min<int64_t>(block_size, columns_ - column);
        for (size_t i = 0; i < operands_.size(); ++i)
          seen[i] = operand(int(i), base[i] + row * operands_[i].row + column * operands_[i].column, rows, columns);
        compute(seen, size_t(rows * columns));
        out_ += rows * columns;
      }
    }
  }

  // `rows` times `columns` elements side by side: where they lie, or a copy.
  const float* operand(int i, const float* from, int64_t rows, int64_t columns) {
    const auto& o = operands_[i];
    if (scalar_[i] || (o.column == 1 && (rows == 1 || o.row == columns))) return from;
    // what is the same for every row is copied once, as often as a block may need it
    const bool repeats = !o.row && (!o.column || columns == columns_);
    float* const to = buffer(i);
    if (repeats && cached_[i] == from) return to;
    cached_[i] = repeats ? from : nullptr;
    if (repeats && !o.column) {
      std::fill_n(to, block_size, *from);
      return to;
    }
    const int64_t copies = repeats ? std::max<int64_t>(1, block_size / columns) : rows;
    for (int64_t row = 0; row < copies; ++row)
      for (int64_t c = 0; c < columns; ++c) to[row * columns + c] = from[row * o.row + c * o.column];
    return to;
  }

  void compute(const std::vector<const float*>& seen, size_t n) {
    const auto& table = kernels::chosen();
    const int inputs = int(operands_.size());
    auto read = [&](int reg) { return reg < inputs ? seen[reg] : buffer(reg); };
    auto is_scalar = [&](int reg) { return reg < inputs && scalar_[reg]; };
    for (size_t i = 0; i < operations_.size(); ++i) {
      const auto& o = operations_[i];
      float* to = i + 1 == operations_.size() ? out_ : buffer(inputs + int(i));
      if (o.b < 0) {
        table.unary[o.kind][kernels::float32](read(o.a), to, n, o.p, o.q);
        continue;
      }
      const auto operands = is_scalar(o.a) ? kernels::scalar_first : is_scalar(o.b) ? kernels::scalar_second : kernels::both;
      table.binary[o.kind][kernels::float32][operands](read(o.a), read(o.b), to, n);
    }
  }

  const std::vector<Operation>& operations_;
  std::vector<Operand> operands_;
  mx::Shape outer_;
  int64_t rows_ = 1, columns_ = 1;
  std::vector<bool> scalar_, filled_;
  std::vector<int> buffer_;
  std::vector<float> memory_;
  std::vector<const float*> cached_;
  float* out_;
};

template <class Sequence>
Sequence permuted(const Sequence& values, const std::vector<int>& order) {
  Sequence sorted;
  for (int axis : order) sorted.push_back(values[axis]);
  return sorted;
}

// The strides of an input as it is broadcast to `shape`.
mx::Strides broadcast_strides(const mx::array& a, const mx::Shape& shape) {
  mx::Strides strides(shape.size(), 0);
  const size_t missing = shape.size() - a.ndim();
  for (int i = 0; i < int(a.ndim()); ++i)
    if (a.shape(i) != 1) strides[missing + i] = a.strides()[i];
  return strides;
}

class CpuFused : public CpuPrimitive {
 public:
  CpuFused(mx::Stream stream, std::vector<Operation> operations)
      : CpuPrimitive(stream), operations_(std::make_shared<std::vector<Operation>>(std::move(operations))) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    // The result lies in memory like an input of its size, in whose place it may go: every block is read before it is
    // written.
    const mx::array* leader = nullptr;
    for (const auto& a : inputs) {
      if (a.shape() != out.shape() || !a.flags().contiguous || a.data_size() != a.size()) continue;
      if (!leader || a.flags().row_contiguous > leader->flags().row_contiguous) leader = &a;
    }
    const auto given = std::find_if(inputs.begin(), inputs.end(), [&](const mx::array& a) {
      return leader && a.shape() == out.shape() && a.strides() == leader->strides() && mx::is_donatable(a, out);
    });
    if (given != inputs.end())
      out.copy_shared_buffer(*given);
    else if (leader)
      out.set_data(mx::allocator::malloc(out.nbytes()), leader->data_size(), leader->strides(), leader->flags());
    else
      out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    std::vector<int> order(out.ndim());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return out.strides()[x] > out.strides()[y]; });
    auto shape = permuted(out.shape(), order);
    std::vector<mx::Strides> strides;
    std::vector<const float*> data;
    for (const auto& input : inputs) {
      strides.push_back(permuted(broadcast_strides(input, out.shape()), order));
      data.push_back(input.data<float>());
    }
    auto& encoder = mx::cpu::get_command_encoder(stream());
    encoder.dispatch([operations = operations_, shape = std::move(shape), strides = std::move(strides), data = std::move(data),
                      target = out.data<float>()] {
      Loop(*operations, shape, strides, data, target).run();
    });
  }

  const char* name() const override { return "CpuFused"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& theirs = *static_cast<const CpuFused&>(other).operations_;
    return std::equal(operations_->begin(), operations_->end(), theirs.begin(), theirs.end(), alike);
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    mx::Shape shape;
    for (const auto& input : inputs) shape = mx::broadcast_shapes(shape, input.shape());
    return {shape};
  }

 private:
  std::shared_ptr<const std::vector<Operation>> operations_;
};

const std::map<std::string, kernels::Binary> binaries{
    {"Add", kernels::add},         {"Subtract", kernels::subtract}, {"Multiply", kernels::multiply},
    {"Divide", kernels::divide},   {"Maximum", kernels::maximum},   {"Minimum", kernels::minimum},
    {"Square", kernels::multiply},
};

class Fuser {
 public:
  Fuser(std::vector<TapeNode> nodes, size_t inputs, std::vector<int>& outputs)
      : nodes_(std::move(nodes)), inputs_(inputs), outputs_(outputs) {
    for (size_t i = 0; i < nodes_.size(); ++i)
      for (size_t k = 0; k < nodes_[i].shapes.size(); ++k) producer_.push_back(int(i));
    readers_.resize(inputs_ + producer_.size());
    for (size_t i = 0; i < nodes_.size(); ++i)
      for (int slot : nodes_[i].inputs)
        if (slot >= 0) readers_[slot].push_back(int(i));
    for (int slot : outputs_)
      if (slot >= 0) readers_[slot].push_back(int(nodes_.size())); // the end reads it
    first_.resize(nodes_.size());
    for (size_t i = 0, slot = inputs_; i < nodes_.size(); slot += nodes_[i++].shapes.size()) first_[i] = int(slot);
  }

  std::vector<TapeNode> run() {
    std::vector<bool> taken(nodes_.size());
    std::map<int, std::set<int>> groups; // by the last node of each
    for (int root = int(nodes_.size()) - 1; root >= 0; --root) {
      if (taken[root] || !operation(root)) continue;
      auto group = group_of(root, taken);
      for (int member : group) taken[member] = true;
      groups.emplace(root, std::move(group));
    }
    std::vector<TapeNode> made;
    std::vector<size_t> made_from;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (taken[i] && !groups.count(int(i))) continue;
      made.push_back(taken[i] ? merged(groups.at(int(i)), int(i)) : nodes_[i]);
      made_from.push_back(i);
    }
    return numbered(std::move(made), made_from);
  }

 private:
  const mx::Shape& shape(int node) const { return nodes_[node].shapes[0]; }

  int producer(int slot) const { return slot < int(inputs_) ? -1 : producer_[slot - inputs_]; }

  // What a node does, if it is arithmetic on float32 of one shape; its registers are not known yet.
  std::optional<Operation> operation(int i) const {
    const auto& node = nodes_[i];
    if (node.shapes.size() != 1 || node.dtypes[0] != mx::float32 || node.primitive->device() != mx::Device::cpu) return {};
    if (auto own = dynamic_cast<const CpuPrimitive*>(node.primitive.get())) {
      const auto function = own->function();
      if (!function) return {};
      return Operation{function->kind, function->p, function->q, 0, function->binary ? 0 : -1};
    }
    const auto found = binaries.find(node.primitive->name());
    if (found == binaries.end()) return {};
    return Operation{found->second, 0, 0, 0, 0};
  }

  std::set<int> group_of(int root, const std::vector<bool>& taken) const {
    std::set<int> group{root}, open;
    auto look = [&](int node) {
      for (int slot : nodes_[node].inputs)
        if (producer(slot) >= 0) open.insert(producer(slot));
    };
    look(root);
    size_t reads = nodes_[root].inputs.size();
    // from the last to the first, so that all that read a node have been seen before it
    while (!open.empty() && group.size() < most_operations && reads < most_inputs) {
      const int node = *open.rbegin();
      open.erase(node);
      if (taken[node] || !operation(node) || shape(node) != shape(root)) continue;
      if (nodes_[node].primitive->stream() != nodes_[root].primitive->stream()) continue;
      const auto& readers = readers_[first_[node]];
      if (!std::all_of(readers.begin(), readers.end(), [&](int reader) { return group.count(reader); })) continue;
      group.insert(node);
      reads += nodes_[node].inputs.size();
      look(node);
    }
    return group;
  }

  // Where a broadcast value comes from: the loops broadcast by themselves.
  int source(int slot) const {
    const int node = producer(slot);
    return node >= 0 && nodes_[node].primitive->name() == std::string("Broadcast") ? nodes_[node].inputs[0] : slot;
  }

  TapeNode merged(const std::set<int>& group, int root) const {
    if (group.size() == 1 && dynamic_cast<const CpuPrimitive*>(nodes_[root].primitive.get())) return nodes_[root];
    TapeNode node{nullptr, nodes_[root].shapes, nodes_[root].dtypes, {}};
    std::map<int, int> registers; // by slot
    for (int member : group)
      for (int slot : nodes_[member].inputs) {
        if (producer(slot) >= 0 && group.count(producer(slot))) continue;
        const int from = source(slot);
        const auto at = std::find(node.inputs.begin(), node.inputs.end(), from);
        registers[slot] = int(at - node.inputs.begin());
        if (at == node.inputs.end()) node.inputs.push_back(from);
      }
    std::vector<Operation> operations;
    for (int member : group) {
      auto o = *operation(member);
      o.a = registers.at(nodes_[member].inputs[0]);
      if (o.b >= 0) o.b = registers.at(nodes_[member].inputs.back());
      registers[first_[member]] = int(node.inputs.size() + operations.size());
      operations.push_back(o);
    }
    node.primitive = std::make_shared<CpuFused>(nodes_[root].primitive->stream(), std::move(operations));
    return node;
  }

  // Without nodes that nobody reads, slots counted again.
  std::vector<TapeNode> numbered(std::vector<TapeNode> made, const std::vector<size_t>& made_from) {
    std::set<int> read(outputs_.begin(), outputs_.end());
    std::vector<bool> needed(made.size());
    for (size_t i = made.size(); i-- > 0;) {
      const int first = first_[made_from[i]];
      for (size_t k = 0; k < made[i].shapes.size(); ++k) needed[i] = needed[i] || read.count(first + int(k));
      if (needed[i]) read.insert(made[i].inputs.begin(), made[i].inputs.end());
    }
    std::map<int, int> slots;
    std::vector<TapeNode> kept;
    int next = int(inputs_);
    auto renamed = [&](int slot) { return slot < int(inputs_) ? slot : slots.at(slot); };
    for (size_t i = 0; i < made.size(); ++i) {
      if (!needed[i]) continue;
      for (int& slot : made[i].inputs) slot = renamed(slot);
      for (size_t k = 0; k < made[i].shapes.size(); ++k) slots[first_[made_from[i]] + int(k)] = next++;
      kept.push_back(std::move(made[i]));
    }
    for (int& slot : outputs_) slot = renamed(slot);
    return kept;
  }

  std::vector<TapeNode> nodes_;
  const size_t inputs_;
  std::vector<int>& outputs_;
  std::vector<int> producer_;             // node of each slot after the inputs
  std::vector<int> first_;                // first slot of each node
  std::vector<std::vector<int>> readers_; // nodes, by slot
};

} // namespace

std::vector<TapeNode> fused(
    std::vector<TapeNode> nodes, size_t inputs, std::vector<int>& outputs) {
  return Fuser(std::move(nodes), inputs, outputs).run();
}

} // namespace mlxc
