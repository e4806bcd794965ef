#include "fuse.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "cpu_matmul.hpp"
#include "cpu_windows.hpp"

namespace mlxc {

namespace {

constexpr size_t most_operations = 32;
constexpr size_t most_inputs = 24;

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

  const std::vector<Operation>& operations() const { return *operations_; }
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

// Another shape for elements that stay in order.
const std::set<std::string> reshapes{"Reshape", "Squeeze", "ExpandDims", "Flatten", "Unflatten"};

int64_t elements(const mx::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<>());
}

const std::map<std::string, kernels::Binary> binaries{
    {"Add", kernels::add},         {"Subtract", kernels::subtract}, {"Multiply", kernels::multiply},
    {"Divide", kernels::divide},   {"Maximum", kernels::maximum},   {"Minimum", kernels::minimum},
    {"Square", kernels::multiply},
};

class Fuser {
 public:
  Fuser(
      std::vector<TapeNode> nodes, const std::vector<mx::Shape>& inputs, const Arrays& constants, std::vector<int>& outputs)
      : nodes_(std::move(nodes)), inputs_(inputs.size()), given_(inputs), constants_(constants), outputs_(outputs) {
    for (size_t i = 0; i < nodes_.size(); ++i)
      for (size_t k = 0; k < nodes_[i].shapes.size(); ++k) producer_.push_back(int(i));
    for (auto& node : nodes_)
      if (auto levels = in_levels(node)) node = *levels;
    readers_.resize(inputs_ + producer_.size());
    for (size_t i = 0; i < nodes_.size(); ++i)
      for (int slot : nodes_[i].inputs)
        if (slot >= 0) readers_[slot].push_back(int(i));
    for (int slot : outputs_)
      if (slot >= 0) readers_[slot].push_back(int(nodes_.size())); // the end reads it
    first_.resize(nodes_.size());
    for (size_t i = 0, slot = inputs_; i < nodes_.size(); slot += nodes_[i++].shapes.size()) first_[i] = int(slot);
    for (auto& node : nodes_)
      if (node.primitive->name() == std::string("Matmul"))
        if (auto own = own_matmul(*node.primitive, slot_shape(node.inputs[0]), slot_shape(node.inputs[1]), node.dtypes[0]))
          node.primitive = std::move(own);
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
      if (auto own = own_copy(*made.back().primitive)) made.back().primitive = std::move(own);
      made_from.push_back(i);
    }
    return numbered(std::move(made), made_from);
  }

 private:
  const mx::Shape& shape(int node) const { return nodes_[node].shapes[0]; }

  int producer(int slot) const { return slot < int(inputs_) ? -1 : producer_[slot - inputs_]; }

  // The one value of a constant with a single element; nothing for other slots.
  std::optional<float> constant(int slot) const {
    if (slot >= 0 || constants_[-1 - slot].size() != 1) return {};
    const auto& a = constants_[-1 - slot];
    if (a.dtype() == mx::float32) return *a.data<float>();
    if (a.dtype() == mx::uint8) return *a.data<uint8_t>();
    if (a.dtype() == mx::int8) return *a.data<int8_t>();
    return {};
  }

  // Bytes that are floats again: the floats rounded to one of 256 levels, which is elementwise arithmetic.
  std::optional<TapeNode> in_levels(const TapeNode& node) const {
    if (node.primitive->name() != std::string("CpuDequantize") || producer(node.inputs[0]) < 0) return {};
    const auto& bytes = nodes_[producer(node.inputs[0])];
    if (bytes.primitive->name() != std::string("CpuQuantize")) return {};
    const auto scale = constant(node.inputs[1]), zero = constant(node.inputs[2]);
    if (!scale || !zero || constant(bytes.inputs[1]) != scale || constant(bytes.inputs[2]) != zero) return {};
    const float low = bytes.dtypes[0] == mx::int8 ? -128 : 0;
    auto levels = unary_primitive(node.primitive->stream(), kernels::levels, *scale, low - *zero);
    return TapeNode{std::move(levels), node.shapes, node.dtypes, {bytes.inputs[0]}};
  }

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

  const mx::Shape& slot_shape(int slot) const {
    if (slot < 0) return constants_[-1 - slot].shape();
    return slot < int(inputs_) ? given_[slot] : nodes_[producer(slot)].shapes[slot - first_[producer(slot)]];
  }

  // The convolution that makes a slot, which nobody else reads; in between there may be another shape, or the conversion
  // from integers. -1: there is none.
  int convolution_of(int slot) const {
    for (;;) {
      const int node = producer(slot);
      if (node < 0) return -1;
      const auto& n = nodes_[node];
      if (dynamic_cast<const CpuWindowed*>(n.primitive.get())) return node;
      const std::string name = n.primitive->name();
      const bool converts = name == "AsType" && n.dtypes[0] == mx::float32;
      if (!converts && !reshapes.count(name)) return -1;
      slot = n.inputs[0];
      if (slot < int(inputs_) || readers_[slot].size() != 1) return -1;
      const auto dtype = nodes_[producer(slot)].dtypes[slot - first_[producer(slot)]];
      if (dtype != mx::float32 && dtype != mx::int32) return -1;
    }
  }

  // Whether a group's values lie like pixels of a convolution, and whether another operand does or repeats for each.
  bool lies_alike(int convolution, int root) const {
    const auto &made = shape(convolution), &wanted = shape(root);
    return !wanted.empty() && made.back() == wanted.back() && elements(made) == elements(wanted) &&
           nodes_[convolution].primitive->stream() == nodes_[root].primitive->stream();
  }
  bool fits(int slot, int root) const {
    const auto &given = slot_shape(slot), &wanted = shape(root);
    const int64_t size = elements(given);
    return size == 1 || given == wanted || (size == wanted.back() && given.back() == wanted.back());
  }

  // A group as part of the convolution that makes one of its inputs, if there is one.
  std::optional<TapeNode> joined(const std::set<int>& group, int root, const TapeNode& alone) const {
    for (size_t k = 0; k < alone.inputs.size(); ++k) {
      const int slot = alone.inputs[k];
      const int node = convolution_of(slot);
      if (node < 0 || !lies_alike(node, root) || slot_shape(slot) != shape(root)) continue;
      const auto& readers = readers_[slot];
      if (!std::all_of(readers.begin(), readers.end(), [&](int reader) { return group.count(reader); })) continue;
      auto others = alone.inputs;
      others.erase(others.begin() + k);
      if (!std::all_of(others.begin(), others.end(), [&](int other) { return fits(other, root); })) continue;
      // registers as the convolution counts them: its own result is the first
      auto operations = static_cast<const CpuFused&>(*alone.primitive).operations();
      auto renamed = [&](int reg) { return reg > int(k) ? reg : reg == int(k) ? 0 : reg + 1; };
      for (auto& o : operations) {
        o.a = renamed(o.a);
        if (o.b >= 0) o.b = renamed(o.b);
      }
      auto& convolution = static_cast<CpuWindowed&>(*nodes_[node].primitive);
      TapeNode made{convolution.followed_by(std::move(operations)), alone.shapes, alone.dtypes, nodes_[node].inputs};
      made.inputs.insert(made.inputs.end(), others.begin(), others.end());
      return made;
    }
    return {};
  }

  TapeNode merged(const std::set<int>& group, int root) const {
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
    if (auto found = joined(group, root, node)) return *found;
    const bool alone = group.size() == 1 && dynamic_cast<const CpuPrimitive*>(nodes_[root].primitive.get());
    return alone ? nodes_[root] : node;
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
  const std::vector<mx::Shape>& given_;
  const Arrays& constants_;
  std::vector<int>& outputs_;
  std::vector<int> producer_;             // node of each slot after the inputs
  std::vector<int> first_;                // first slot of each node
  std::vector<std::vector<int>> readers_; // nodes, by slot
};

} // namespace

std::vector<TapeNode> fused(
    std::vector<TapeNode> nodes, const std::vector<mx::Shape>& inputs, const Arrays& constants, std::vector<int>& outputs) {
  return Fuser(std::move(nodes), inputs, constants, outputs).run();
}

} // namespace mlxc
