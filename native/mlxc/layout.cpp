#include "layout.hpp"

#include <numeric>
#include <unordered_set>

#include "mlx/primitives.h"

#include "cpu_primitives.hpp"

namespace mlxc {

Arrays in_order(const Arrays& outputs) {
  Arrays order;
  std::unordered_set<std::uintptr_t> entered;
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

namespace {

// One element in, one out, at the same place, whatever the shape.
const std::unordered_set<std::string> elementwise{
    "Abs",       "Add",        "ArcCos",     "ArcCosh",    "ArcSin",      "ArcSinh",   "ArcTan",     "ArcTan2",
    "ArcTanh",   "AsType",     "BitwiseAnd", "BitwiseOr",  "BitwiseXor",  "Ceil",      "Copy",       "Cos",
    "Cosh",      "CpuBinary",  "CpuConvert", "CpuUnary",   "Divide",     "Equal",      "Erf",         "ErfInv",    "Exp",        "Expm1",
    "Floor",     "Greater",    "GreaterEqual", "Less",     "LessEqual",   "Log",       "Log10",      "Log1p",
    "Log2",      "LogAddExp",  "LogicalAnd", "LogicalNot", "LogicalOr",   "Maximum",   "Minimum",    "Multiply",
    "NaNEqual",  "Negative",   "NotEqual",   "Power",      "Remainder",   "Round",     "Rsqrt",      "Select",
    "Sigmoid",   "Sign",       "Sin",        "Sinh",       "Sqrt",        "Square",    "Subtract",   "Tan",
    "Tanh"};
const std::unordered_set<std::string> reductions{"And", "Or", "Sum", "Prod", "Min", "Max"};
const std::unordered_set<std::string> same_elements{"ExpandDims", "Flatten", "Reshape", "Squeeze", "Unflatten"};

// An array of the original graph as transpose(base, axes); no axes: as it is.
struct View {
  mx::array base;
  Ints axes;
};

Ints inverse(const Ints& axes) {
  Ints back(axes.size());
  for (size_t i = 0; i < axes.size(); ++i) back[axes[i]] = int(i);
  return back;
}

// The sizes of a base whose view has this shape.
mx::Shape base_shape(const mx::Shape& shape, const Ints& axes) {
  mx::Shape base(shape.size());
  for (size_t i = 0; i < axes.size(); ++i) base[axes[i]] = shape[i];
  return base;
}

// The transpose; of a broadcast array, what is broadcast is turned, which may be a constant.
mx::array turned(const mx::array& a, const Ints& order, mx::Stream stream) {
  if (!a.has_primitive() || a.primitive().name() != std::string("Broadcast")) return mx::transpose(a, order, stream);
  const auto& given = a.inputs()[0];
  mx::Shape whole(a.ndim() - given.ndim(), 1), shape;
  whole.insert(whole.end(), given.shape().begin(), given.shape().end());
  for (int axis : order) shape.push_back(a.shape(axis));
  return mx::broadcast_to(mx::transpose(mx::reshape(given, whole, stream), order, stream), shape, stream);
}

// Axes before and after a reshape that hold the same elements.
struct Run {
  Ints from, to;
  std::int64_t size = 1;
};

// The shortest runs that two shapes of one size consist of.
std::vector<Run> runs_of(const mx::Shape& from, const mx::Shape& to) {
  std::vector<Run> runs;
  for (size_t i = 0, j = 0; i < from.size() || j < to.size();) {
    Run run;
    std::int64_t made = 1;
    auto take = [&] { run.size *= from[run.from.emplace_back(int(i++))]; };
    auto make = [&] { made *= to[run.to.emplace_back(int(j++))]; };
    if (i < from.size()) take();
    if (j < to.size()) make();
    while (run.size != made) run.size < made ? take() : make();
    runs.push_back(std::move(run));
  }
  return runs;
}

View view_of(mx::array base, Ints axes) {
  const bool moved = !std::is_sorted(axes.begin(), axes.end());
  return {std::move(base), moved ? std::move(axes) : Ints{}};
}

class Layout {
 public:
  Arrays run(const Arrays& outputs) {
    for (const auto& a : in_order(outputs))
      if (!views_.count(a.id())) visit(a);
    Arrays results;
    for (const auto& out : outputs) results.push_back(plain(out, out));
    return results;
  }

 private:
  void visit(const mx::array& a) {
    if (!a.has_primitive() || !moved(a)) return keep(a, {a, {}});
    const std::string name = a.primitive().name();
    const auto& first = view(a.inputs()[0]);
    if (name == "Transpose") return keep(a, transposed(first, static_cast<mx::Transpose&>(a.primitive()).state()));
    if (elementwise.count(name)) return in_layout(a, axes_of(a));
    if (name == "Concatenate") return concatenated(a, axes_of(a));
    if (!first.axes.empty()) {
      if (name == "CpuQuantize" || name == "CpuDequantize") return scaled(a, first);
      if (name == "CpuTakeSums") return along_axis(a, first);
      if (name == "Broadcast" && first.base.ndim() == a.ndim())
        return keep(a, {mx::broadcast_to(first.base, base_shape(a.shape(), first.axes), stream(a)), first.axes});
      if (reductions.count(name)) return reduced(a, first);
      if (name == "Slice" && sliced(a, first)) return;
      if (name == "Pad") return padded(a, first);
      if (name == "Split") return split(a, first);
      if (same_elements.count(name) && reshaped(a, first)) return;
      if (name == "CpuDynamicQuantize") return quantized(a, first);
    }
    rebuild(a);
  }

  // Whether anything about the node changes.
  bool moved(const mx::array& a) const {
    if (a.primitive().name() == std::string("Transpose")) return true;
    for (const auto& input : a.inputs()) {
      const auto& v = views_.at(input.id());
      if (!v.axes.empty() || v.base.id() != input.id()) return true;
    }
    return false;
  }

  const View& view(const mx::array& a) const { return views_.at(a.id()); }
  void keep(const mx::array& a, View v) { views_.insert_or_assign(a.id(), std::move(v)); }
  static mx::Stream stream(const mx::array& a) { return a.primitive().stream(); }

  static View transposed(const View& of, const Ints& order) {
    if (of.axes.empty()) return view_of(of.base, order);
    Ints axes;
    for (int axis : order) axes.push_back(of.axes[axis]);
    return view_of(of.base, std::move(axes));
  }

  // The array itself, as an operation of `user` reads it.
  mx::array plain(const mx::array& a, const mx::array& user) {
    const auto& v = view(a);
    if (v.axes.empty()) return v.base;
    const auto found = plain_.find(a.id());
    if (found != plain_.end()) return found->second;
    const auto where = user.has_primitive() ? stream(user) : stream(a);
    return plain_.emplace(a.id(), mx::transpose(v.base, v.axes, where)).first->second;
  }

  // The base of a view with these axes.
  mx::array based(const mx::array& a, const Ints& axes, const mx::array& user) {
    const auto& v = view(a);
    if (v.axes == axes) return v.base;
    auto [base, order] = transposed(v, inverse(axes));
    return order.empty() ? base : turned(base, order, stream(user));
  }

  // The layout to work in: that of the first input that has one and is not broadcast to its size.
  Ints axes_of(const mx::array& a) const {
    const Ints* some = nullptr;
    for (const auto& input : a.inputs()) {
      const auto& v = view(input);
      if (v.axes.empty()) continue;
      if (!some) some = &v.axes;
      if (!input.has_primitive() || input.primitive().name() != std::string("Broadcast")) return v.axes;
    }
    return some ? *some : Ints{};
  }

  void in_layout(const mx::array& a, const Ints& axes) {
    if (axes.empty()) return rebuild(a);
    Arrays inputs;
    for (const auto& input : a.inputs()) inputs.push_back(based(input, axes, a));
    keep(a, {mx::array(base_shape(a.shape(), axes), a.dtype(), a.primitive_ptr(), std::move(inputs)), axes});
  }

  void concatenated(const mx::array& a, const Ints& axes) {
    if (axes.empty()) return rebuild(a);
    Arrays inputs;
    for (const auto& input : a.inputs()) inputs.push_back(based(input, axes, a));
    const int axis = static_cast<mx::Concatenate&>(a.primitive()).state();
    keep(a, {mx::concatenate(std::move(inputs), axes[axis], stream(a)), axes});
  }

  // Only the first input is an image, the others are scalars.
  void scaled(const mx::array& a, const View& of) {
    Arrays inputs{of.base};
    for (size_t i = 1; i < a.inputs().size(); ++i) inputs.push_back(plain(a.inputs()[i], a));
    keep(a, {mx::array(base_shape(a.shape(), of.axes), a.dtype(), a.primitive_ptr(), std::move(inputs)), of.axes});
  }

  void along_axis(const mx::array& a, const View& of) {
    auto& primitive = static_cast<CpuAlongAxis&>(a.primitive());
    Arrays inputs{of.base};
    for (size_t i = 1; i < a.inputs().size(); ++i) inputs.push_back(plain(a.inputs()[i], a));
    auto turned = primitive.along(of.axes[primitive.axis]);
    keep(a, {mx::array(base_shape(a.shape(), of.axes), a.dtype(), std::move(turned), std::move(inputs)), of.axes});
  }

  void reduced(const mx::array& a, const View& of) {
    auto [kind, axes] = static_cast<mx::Reduce&>(a.primitive()).state();
    for (int& axis : axes) axis = of.axes[axis];
    std::sort(axes.begin(), axes.end());
    auto primitive = std::make_shared<mx::Reduce>(stream(a), kind, axes);
    keep(a, {mx::array(base_shape(a.shape(), of.axes), a.dtype(), std::move(primitive), {of.base}), of.axes});
  }

  bool sliced(const mx::array& a, const View& of) {
    auto [start, end, step] = static_cast<mx::Slice&>(a.primitive()).state();
    // what a negative step ends before has no form that mx::slice takes back
    if (std::any_of(step.begin(), step.end(), [](auto s) { return s < 1; })) return false;
    auto based = mx::slice(of.base, base_shape(start, of.axes), base_shape(end, of.axes), base_shape(step, of.axes), stream(a));
    keep(a, {std::move(based), of.axes});
    return true;
  }

  void padded(const mx::array& a, const View& of) {
    auto [axes, low, high] = static_cast<mx::Pad&>(a.primitive()).state();
    for (int& axis : axes) axis = of.axes[axis];
    keep(a, {mx::pad(of.base, axes, low, high, plain(a.inputs()[1], a), "constant", stream(a)), of.axes});
  }

  void split(const mx::array& a, const View& of) {
    auto [places, axis] = static_cast<mx::Split&>(a.primitive()).state();
    const auto parts = mx::split(of.base, places, of.axes[axis], stream(a));
    const auto outputs = a.outputs();
    for (size_t i = 0; i < outputs.size(); ++i) keep(outputs[i], {parts[i], of.axes});
  }

  // Levels lie like the data; scale and zero point are scalars.
  void quantized(const mx::array& a, const View& of) {
    const auto outputs = a.outputs();
    std::vector<mx::Dtype> dtypes;
    for (const auto& out : outputs) dtypes.push_back(out.dtype());
    const auto made = mx::array::make_arrays({of.base.shape(), {}, {}}, dtypes, a.primitive_ptr(), {of.base});
    for (size_t i = 0; i < outputs.size(); ++i) keep(outputs[i], {made[i], i ? Ints{} : of.axes});
  }

  // What is merged must lie side by side in the base; what lies there in another order is turned.
  bool reshaped(const mx::array& a, const View& of) {
    if (!a.size()) return false;
    const auto runs = runs_of(a.inputs()[0].shape(), a.shape());
    Ints run_of(of.axes.size()), order, axes(a.ndim());
    for (size_t r = 0; r < runs.size(); ++r)
      for (int axis : runs[r].from) run_of[of.axes[axis]] = int(r);
    mx::Shape shape;
    std::vector<bool> met(runs.size());
    auto enter = [&](size_t r) {
      met[r] = true;
      for (int axis : runs[r].from) order.push_back(of.axes[axis]);
      for (int axis : runs[r].to) {
        axes[axis] = int(shape.size());
        shape.push_back(a.shape(axis));
      }
    };
    for (int axis = 0, last = -1; axis < int(of.axes.size()); ++axis) {
      const int r = run_of[axis];
      const bool one = of.base.shape(axis) == 1; // nowhere in particular
      if (r == last || (one && (met[r] || runs[r].size != 1))) continue;
      if (met[r]) return false;
      enter(r);
      if (!one) last = r;
    }
    for (size_t r = 0; r < runs.size(); ++r)
      if (!met[r]) enter(r);
    Ints longer;
    for (int axis : order)
      if (of.base.shape(axis) != 1) longer.push_back(axis);
    const bool kept = std::is_sorted(longer.begin(), longer.end());
    const auto base = kept ? of.base : mx::transpose(of.base, order, stream(a));
    keep(a, view_of(mx::reshape(base, shape, stream(a)), std::move(axes)));
    return true;
  }

  void rebuild(const mx::array& a) {
    Arrays inputs;
    for (const auto& input : a.inputs()) inputs.push_back(plain(input, a));
    const auto outputs = a.outputs();
    if (outputs.size() == 1) return keep(a, {mx::array(a.shape(), a.dtype(), a.primitive_ptr(), std::move(inputs)), {}});
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    for (const auto& out : outputs) {
      shapes.push_back(out.shape());
      dtypes.push_back(out.dtype());
    }
    const auto made = mx::array::make_arrays(shapes, dtypes, a.primitive_ptr(), inputs);
    for (size_t i = 0; i < outputs.size(); ++i) keep(outputs[i], {made[i], {}});
  }

  std::unordered_map<std::uintptr_t, View> views_;
  std::unordered_map<std::uintptr_t, mx::array> plain_;
};

} // namespace

Arrays laid_out(const Arrays& outputs) { return Layout().run(outputs); }

} // namespace mlxc
