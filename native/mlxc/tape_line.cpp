#include "tape_line.hpp"

#include <cmath>
#include <set>
#include <typeinfo>

#include "copies.hpp"
#include "extras.h"
#include "fuse.hpp"
#include "layout.hpp"
#include "mlx/primitives.h"

using namespace mlxc;

namespace mlxc {

namespace {

using Numbers = std::vector<double>;

// Doubles are exact up to here.
constexpr double most = double(int64_t(1) << 53);

[[noreturn]] void uneven(const std::string& what) { bad_argument((what + " does not grow evenly").c_str()); }

void require(bool holds, const std::string& what) {
  if (!holds) uneven(what);
}

template <class... Parts>
Numbers numbers(const Parts&... parts) {
  Numbers all;
  (all.insert(all.end(), parts.begin(), parts.end()), ...);
  return all;
}

// The n-th of parts of one length.
template <class Sequence = mx::Shape>
Sequence part(const Numbers& all, size_t parts = 1, size_t n = 0) {
  const size_t length = all.size() / parts;
  Sequence made;
  for (size_t i = n * length; i < (n + 1) * length; ++i) made.push_back(typename Sequence::value_type(all[i]));
  return made;
}

Growing growing(const Numbers& start, const Numbers& next, const std::string& what) {
  require(start.size() == next.size(), what);
  Growing made{start, {}};
  // infinities stay what they are
  for (size_t i = 0; i < start.size(); ++i) made.slope.push_back(start[i] == next[i] ? 0 : next[i] - start[i]);
  return made;
}

} // namespace

// ---- primitives that hold sizes
// Their numbers one after the other, and how MLX makes one anew, as an operation on arrays without data.
struct Sized {
  Numbers (*read)(const mx::Primitive&);
  mx::array (*make)(const Arrays& inputs, const Numbers& all, mx::Primitive& like);
};

namespace {

template <class P>
auto state_of(const mx::Primitive& p) {
  return static_cast<const P&>(p).state();
}

const std::unordered_map<std::string, Sized> sized_kinds{
    {"Reshape",
     {[](const mx::Primitive& p) { return numbers(state_of<mx::Reshape>(p)); },
      [](const Arrays& in, const Numbers& all, mx::Primitive& p) { return mx::reshape(in[0], part(all), p.stream()); }}},
    {"CpuRows",
     {[](const mx::Primitive& p) { return numbers(shape_of_rows(p)); },
      [](const Arrays& in, const Numbers& all, mx::Primitive& p) { return in_rows(in[0], part(all), p.stream()); }}},
    {"Broadcast",
     {[](const mx::Primitive& p) { return numbers(state_of<mx::Broadcast>(p)); },
      [](const Arrays& in, const Numbers& all, mx::Primitive& p) {
        return mx::broadcast_to(in[0], part(all), p.stream());
      }}},
    {"Unflatten",
     {[](const mx::Primitive& p) { return numbers(state_of<mx::Unflatten>(p).second); },
      [](const Arrays& in, const Numbers& all, mx::Primitive& p) {
        return mx::unflatten(in[0], state_of<mx::Unflatten>(p).first, part(all), p.stream());
      }}},
    {"Slice",
     {[](const mx::Primitive& p) {
        const auto [start, end, step] = state_of<mx::Slice>(p);
        return numbers(start, end, step);
      },
      [](const Arrays& in, const Numbers& all, mx::Primitive& p) {
        return mx::slice(in[0], part(all, 3, 0), part(all, 3, 1), part(all, 3, 2), p.stream());
      }}},
    {"SliceUpdate",
     {[](const mx::Primitive& p) {
        const auto [kind, start, end, step] = state_of<mx::SliceUpdate>(p);
        return numbers(start, end, step);
      },
      [](const Arrays& in, const Numbers& all, mx::Primitive& p) {
        return mx::slice_update(in[0], in[1], part(all, 3, 0), part(all, 3, 1), part(all, 3, 2), p.stream());
      }}},
    {"Pad",
     {[](const mx::Primitive& p) {
        const auto [axes, low, high] = state_of<mx::Pad>(p);
        return numbers(axes, low, high);
      },
      [](const Arrays& in, const Numbers& all, mx::Primitive& p) {
        return mx::pad(
            in[0], part<Ints>(all, 3, 0), part(all, 3, 1), part(all, 3, 2), in[1], "constant", p.stream());
      }}},
    {"Split",
     {[](const mx::Primitive& p) { return numbers(state_of<mx::Split>(p).first); },
      [](const Arrays& in, const Numbers& all, mx::Primitive& p) {
        return mx::split(in[0], part(all), state_of<mx::Split>(p).second, p.stream())[0];
      }}},
    {"Gather",
     {[](const mx::Primitive& p) { return numbers(state_of<mx::Gather>(p).second); },
      [](const Arrays& in, const Numbers& all, mx::Primitive& p) {
        return mx::gather(
            in[0], Arrays(in.begin() + 1, in.end()), state_of<mx::Gather>(p).first, part(all), p.stream());
      }}},
    {"Arange",
     {[](const mx::Primitive& p) {
        const auto [start, stop, step] = state_of<mx::Arange>(p);
        return Numbers{start, stop, step};
      },
      [](const Arrays&, const Numbers& all, mx::Primitive& p) {
        return mx::arange(all[0], all[1], all[2], mx::float32, p.stream());
      }}},
};

bool equivalent(const mx::Primitive& a, const mx::Primitive& b) {
  return &a == &b || (typeid(a) == typeid(b) && a.is_equivalent(b));
}

// ---- constants
template <class Function>
auto with_type(mx::Dtype dtype, Function f) {
  switch (dtype) {
    case mx::bool_: return f(bool());
    case mx::uint8: return f(uint8_t());
    case mx::int8: return f(int8_t());
    case mx::int32: return f(int32_t());
    case mx::uint32: return f(uint32_t());
    case mx::int64: return f(int64_t());
    case mx::float16: return f(mx::float16_t());
    case mx::bfloat16: return f(mx::bfloat16_t());
    case mx::float32: return f(float());
    case mx::float64: return f(double());
    default: uneven("a constant of a rare type");
  }
}

bool same_bytes(const mx::array& a, const mx::array& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype() || !a.flags().row_contiguous || !b.flags().row_contiguous)
    return false;
  return !a.size() || !std::memcmp(a.data<char>(), b.data<char>(), a.nbytes());
}

// The first element and the difference along each axis.
Numbers values_form(const mx::array& a) {
  require(a.size() && a.flags().row_contiguous, "a constant");
  return with_type(a.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* data = a.data<T>();
    Numbers form{double(data[0])};
    for (int axis = 0; axis < int(a.ndim()); ++axis) {
      const double next = a.shape(axis) > 1 ? double(data[a.strides()[axis]]) : form[0];
      form.push_back(next == form[0] ? 0 : next - form[0]);
    }
    return form;
  });
}

// ---- graphs
std::string title(const Sighting& s) { return s.primitive ? s.primitive->name() : "an input"; }

bool alike(const std::vector<Source>& a, const std::vector<Source>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Source& x, const Source& y) {
    if (x.place != y.place || bool(x.constant) != bool(y.constant)) return false;
    return !x.constant || (x.constant->dtype() == y.constant->dtype() && x.constant->ndim() == y.constant->ndim());
  });
}

bool alike(const mx::Primitive& a, const mx::Primitive& b) {
  return typeid(a) == typeid(b) && const_cast<mx::Primitive&>(a).device() == const_cast<mx::Primitive&>(b).device();
}

// Whether two graphs are of the same operations, sizes apart.
void require_alike(const std::vector<Sighting>& a, const std::vector<Sighting>& b) {
  require(a.size() == b.size(), "the number of operations");
  for (size_t i = 0; i < a.size(); ++i) {
    const auto &x = a[i], &y = b[i];
    const bool same_kind = x.primitive && y.primitive ? alike(*x.primitive, *y.primitive) : x.primitive == y.primitive;
    require(
        same_kind && x.sibling == y.sibling && alike(x.inputs, y.inputs) && x.dtype == y.dtype &&
            x.shape.size() == y.shape.size(),
        "what " + title(x) + " is computed from");
  }
}

// Whether an operation is the same in both graphs, what it reads apart.
bool unchanged(const Sighting& a, const Sighting& b) {
  return a.shape == b.shape && (a.id == b.id || a.primitive == b.primitive || equivalent(*a.primitive, *b.primitive));
}

Numbers shapes_of(const TapeNode& node) {
  Numbers all;
  for (const auto& shape : node.shapes) all.insert(all.end(), shape.begin(), shape.end());
  return all;
}

// A size of 0 or 1 is read differently: it has nothing, or is broadcast.
void require_plain(const Growing& shape, const Numbers& sizes, const std::string& what) {
  for (size_t i = 0; i < sizes.size(); ++i) require(!shape.slope[i] || sizes[i] >= 2, "from 1, " + what);
}

} // namespace

Numbers Growing::at(int64_t steps) const {
  Numbers made(start);
  for (size_t i = 0; i < made.size(); ++i)
    if (slope[i]) made[i] += slope[i] * double(steps);
  return made;
}

mx::array Ramp::at(int64_t steps) const {
  const auto sizes = part(shape.at(steps));
  const auto numbers = form.at(steps);
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    std::vector<int> place(sizes.size(), 0);
    const size_t count = std::accumulate(sizes.begin(), sizes.end(), size_t(1), std::multiplies<>());
    auto data = std::make_unique<T[]>(count);
    for (size_t i = 0; i < count; ++i) {
      double value = numbers[0];
      for (size_t axis = 0; axis < sizes.size(); ++axis)
        if (numbers[axis + 1]) value += numbers[axis + 1] * place[axis];
      data[i] = T(value);
      for (int axis = int(sizes.size()) - 1; axis >= 0 && ++place[axis] == sizes[axis]; --axis) place[axis] = 0;
    }
    return mx::array(data.get(), sizes, dtype);
  });
}

Sight::Sight(const Arrays& inputs, const Arrays& recorded) : outputs(laid_out(recorded)) {
  order = in_order(outputs);
  std::unordered_map<std::uintptr_t, int> place_of;
  std::unordered_set<std::uintptr_t> opened;
  const auto source = [&](const mx::array& a) {
    const auto at = place_of.find(a.id());
    return at == place_of.end() ? Source{-1, a} : Source{at->second, {}};
  };
  // in the order of the inputs, whether the graph reads them or not
  for (const auto& input : inputs) {
    place_of.emplace(input.id(), int(seen.size()));
    opened.insert(input.id());
    seen.push_back({input.id(), nullptr, 0, {}, input.shape(), input.dtype()});
  }
  for (const auto& a : order) {
    if (opened.count(a.id())) {
      places.push_back(place_of.at(a.id()));
      continue;
    }
    if (!a.has_primitive()) {
      places.push_back(-1);
      continue;
    }
    Sighting found{a.id(), a.primitive_ptr(), int(a.sibling_position()), {}, a.shape(), a.dtype()};
    for (const auto& input : a.inputs()) found.inputs.push_back(source(input));
    places.push_back(int(seen.size()));
    place_of.emplace(a.id(), int(seen.size()));
    seen.push_back(std::move(found));
  }
  for (const auto& output : outputs) given.push_back(source(output));
}

TapeLine::TapeLine(
    const Arrays& inputs, const Arrays& outputs, const Arrays& next_inputs, const Arrays& next_outputs) {
  const Sight sight(inputs, outputs), next(next_inputs, next_outputs);
  require_alike(sight.seen, next.seen);
  seen_ = sight.seen;
  given_ = sight.given;
  find_ramps(sight, next);
  const auto is_ramp = [&](const Source& s) {
    return s.constant && std::any_of(ramps_.begin(), ramps_.end(), [&](auto& r) { return r.first == s.constant->id(); });
  };
  std::unordered_set<std::uintptr_t> varying;
  for (size_t place = 0; place < seen_.size(); ++place) {
    const auto& s = seen_[place];
    const bool below = std::any_of(s.inputs.begin(), s.inputs.end(), [&](const Source& source) {
      return source.constant ? is_ramp(source) : bool(varies_[source.place]);
    });
    varies_.push_back(below || !unchanged(s, next.seen[place]));
    if (varies_.back()) varying.insert(s.id);
  }
  auto opened = inputs;
  for (const auto& [id, ramp] : ramps_)
    opened.push_back(*std::find_if(sight.order.begin(), sight.order.end(), [&, id = id](auto& a) { return a.id() == id; }));
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs_.push_back(growing(numbers(inputs[i].shape()), numbers(next_inputs.at(i).shape()), "an input"));
    dtypes_.push_back(inputs[i].dtype());
    require_plain(inputs_.back(), inputs_.back().start, "an input");
  }
  recording_ = recorded(opened, sight.outputs, sight.order, varying, [&](size_t place, size_t other) {
    return !unchanged(next.seen[sight.places[place]], next.seen[sight.places[other]]);
  });
  for (auto& place : recording_.places) place = size_t(sight.places[place]);
  for (auto& [place, other] : recording_.repeated) place = sight.places[place], other = sight.places[other];
  outputs_ = recording_.outputs;
  for (auto& node : fused(recording_.nodes, shapes_of_inputs(0), recording_.constants->values, outputs_))
    nodes_.push_back(std::make_shared<TapeNode>(std::move(node)));
  results_.resize(opened.size());
  for (size_t node = 0; node < nodes_.size(); ++node)
    for (size_t k = 0; k < nodes_[node]->shapes.size(); ++k) results_.emplace_back(node, k);
  auto last = recording_.outputs;
  const auto next_nodes = fused(nodes_from(next), shapes_of_inputs(1), recording_.constants->values, last);
  require(next_nodes.size() == nodes_.size(), "what is joined");
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto& p = nodes_[i]->primitive;
    const auto& q = next_nodes[i].primitive;
    const bool same = equivalent(*p, *q);
    const auto shapes = shapes_of(*nodes_[i]), next_shapes = shapes_of(next_nodes[i]);
    if (same && shapes == next_shapes) {
      growths_.emplace_back();
      continue;
    }
    const auto found = sized_kinds.find(p->name());
    require(same || (alike(*p, *q) && found != sized_kinds.end()), std::string("what ") + p->name() + " does");
    growths_.push_back(Growth{growing(shapes, next_shapes, p->name())});
    if (!same) {
      auto all = growing(found->second.read(*p), found->second.read(*q), p->name());
      const auto known = std::find_if(remade_.begin(), remade_.end(), [&](const Remade& other) {
        return equivalent(*nodes_[other.node]->primitive, *p) && other.numbers.slope == all.slope;
      });
      growths_[i]->primitive = int(known - remade_.begin());
      if (known == remade_.end()) remade_.push_back({&found->second, i, std::move(all)});
    }
    require_plain(growths_[i]->shapes, shapes, p->name());
  }
  check(1, next);
}

// Constants that differ, each for all who read it.
void TapeLine::find_ramps(const Sight& sight, const Sight& next) {
  std::unordered_map<std::uintptr_t, const mx::array*> follows;
  const auto look = [&](const std::vector<Source>& a, const std::vector<Source>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (!a[i].constant) continue;
      const auto &x = *a[i].constant, &y = *b[i].constant;
      const auto [known, is_new] = follows.emplace(x.id(), &y);
      if (!is_new) {
        require(known->second->id() == y.id() || same_bytes(*known->second, y), "a constant that two operations read");
        continue;
      }
      if (x.id() == y.id() || same_bytes(x, y)) continue;
      Ramp ramp{
          x.dtype(),
          growing(numbers(x.shape()), numbers(y.shape()), "a constant"),
          growing(values_form(x), values_form(y), "a constant")};
      require(same_bytes(ramp.at(0), x), "a constant"); // the form is of its first elements alone
      // where a slope has a fraction, it is unknown what is rounded
      for (double slope : ramp.form.slope) require(slope == std::floor(slope) && std::abs(slope) < most, "a constant");
      ramps_.emplace_back(x.id(), std::move(ramp));
    }
  };
  require(alike(sight.given, next.given), "what is given");
  for (size_t place = 0; place < sight.seen.size(); ++place) look(sight.seen[place].inputs, next.seen[place].inputs);
  look(sight.given, next.given);
}

std::vector<mx::Shape> TapeLine::shapes_of_inputs(int64_t steps) const {
  std::vector<mx::Shape> shapes;
  for (const auto& input : inputs_) shapes.push_back(part(input.at(steps)));
  for (const auto& [id, ramp] : ramps_) shapes.push_back(part(ramp.shape.at(steps)));
  return shapes;
}

// The nodes of another recording, which was found to be alike.
std::vector<TapeNode> TapeLine::nodes_from(const Sight& sight) const {
  auto nodes = recording_.nodes;
  std::vector<const mx::array*> at(sight.seen.size());
  for (size_t i = 0; i < sight.order.size(); ++i)
    if (sight.places[i] >= 0) at[sight.places[i]] = &sight.order[i];
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto& a = *at[recording_.places[i]];
    nodes[i].primitive = a.primitive_ptr();
    nodes[i].shapes.clear();
    for (const auto& output : a.outputs()) nodes[i].shapes.push_back(output.shape());
  }
  return nodes;
}

void TapeLine::check(int64_t steps, const Arrays& inputs, const Arrays& outputs) const {
  require(inputs.size() == inputs_.size(), "the number of inputs");
  check(steps, Sight(inputs, outputs));
}

void TapeLine::check(int64_t steps, const Sight& sight) const {
  require_alike(seen_, sight.seen);
  require(alike(given_, sight.given), "what is given");
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const auto shape = numbers(sight.seen[i].shape);
    require(shape == inputs_[i].at(steps), "an input");
    require_plain(inputs_[i], shape, "an input");
  }
  std::unordered_map<std::uintptr_t, mx::array> ramps;
  for (const auto& [id, ramp] : ramps_) ramps.emplace(id, ramp.at(steps));
  const auto compare = [&](const std::vector<Source>& a, const std::vector<Source>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (!a[i].constant) continue;
      const auto ramp = ramps.find(a[i].constant->id());
      const auto& expected = ramp == ramps.end() ? *a[i].constant : ramp->second;
      require(expected.id() == b[i].constant->id() || same_bytes(expected, *b[i].constant), "a constant");
    }
  };
  for (size_t place = 0; place < seen_.size(); ++place) {
    require(varies_[place] || unchanged(seen_[place], sight.seen[place]), title(seen_[place]));
    compare(seen_[place].inputs, sight.seen[place].inputs);
  }
  compare(given_, sight.given);
  for (const auto& [place, other] : recording_.repeated)
    require(unchanged(sight.seen[place], sight.seen[other]), title(seen_[place]));
  auto outputs = recording_.outputs;
  const auto found = fused(nodes_from(sight), shapes_of_inputs(steps), recording_.constants->values, outputs);
  require(outputs == outputs_ && found.size() == nodes_.size(), "what is joined");
  const auto primitives = remade(steps);
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string name = found[i].primitive->name();
    const auto expected = growths_[i] ? grown(i, steps, primitives) : *nodes_[i];
    require(
        expected.shapes == found[i].shapes && expected.dtypes == found[i].dtypes && expected.inputs == found[i].inputs &&
            equivalent(*expected.primitive, *found[i].primitive) && alike(*expected.primitive, *found[i].primitive),
        name);
    if (growths_[i]) require_plain(growths_[i]->shapes, shapes_of(found[i]), name);
  }
}

Tape::Form TapeLine::form_of(int slot, int64_t steps) const {
  if (slot < 0) {
    const auto& constant = recording_.constants->values[-1 - slot];
    return {constant.shape(), constant.dtype()};
  }
  if (size_t(slot) < inputs_.size()) return {part(inputs_[slot].at(steps)), dtypes_[slot]};
  if (size_t(slot) < inputs_.size() + ramps_.size()) {
    const auto& ramp = ramps_[slot - inputs_.size()].second;
    return {part(ramp.shape.at(steps)), ramp.dtype};
  }
  const auto [node, number] = results_[slot];
  const auto& [primitive, shapes, dtypes, inputs] = *nodes_[node];
  if (!growths_[node]) return {shapes[number], dtypes[number]};
  size_t first = 0;
  for (size_t k = 0; k < number; ++k) first += shapes[k].size();
  const auto all = growths_[node]->shapes.at(steps);
  return {mx::Shape(all.begin() + first, all.begin() + first + shapes[number].size()), dtypes[number]};
}

TapeLine::Primitives TapeLine::remade(int64_t steps) const {
  Primitives made;
  for (const auto& [kind, i, numbers] : remade_) {
    const auto& node = *nodes_[i];
    Arrays inputs;
    for (int slot : node.inputs) {
      auto [shape, dtype] = form_of(slot, steps);
      inputs.push_back(placeholder(std::move(shape), dtype));
    }
    const auto all = numbers.at(steps);
    const auto result = kind->make(inputs, all, *node.primitive);
    require(
        result.has_primitive() && result.inputs().size() == inputs.size() && alike(result.primitive(), *node.primitive) &&
            kind->read(result.primitive()) == all,
        node.primitive->name());
    made.push_back(result.primitive_ptr());
  }
  return made;
}

TapeNode TapeLine::grown(size_t i, int64_t steps, const Primitives& remade) const {
  TapeNode node = *nodes_[i];
  const auto& [sizes, primitive] = *growths_[i];
  size_t k = 0;
  for (auto& shape : node.shapes)
    for (auto& length : shape) length = mx::ShapeElem(sizes.start[k] + sizes.slope[k] * double(steps)), ++k;
  if (primitive >= 0) node.primitive = remade[primitive];
  return node;
}

std::unique_ptr<Tape> TapeLine::at(int64_t steps) const {
  std::vector<Tape::Form> inputs;
  for (size_t i = 0; i < inputs_.size(); ++i) inputs.emplace_back(part(inputs_[i].at(steps)), dtypes_[i]);
  Arrays further;
  for (const auto& [id, ramp] : ramps_) further.push_back(ramp.at(steps));
  auto nodes = nodes_;
  const auto primitives = remade(steps);
  for (size_t i = 0; i < nodes.size(); ++i)
    if (growths_[i]) nodes[i] = std::make_shared<TapeNode>(grown(i, steps, primitives));
  return std::make_unique<Tape>(std::move(inputs), std::move(further), recording_.constants, std::move(nodes), outputs_);
}

} // namespace mlxc

namespace {

const TapeLine& line_of(mlxc_py_tape_line line) {
  if (!line.ctx) empty_handle("mlxc_py_tape_line");
  return *static_cast<const TapeLine*>(line.ctx);
}

} // namespace

extern "C" {

int mlxc_py_tape_line_new(
    mlxc_py_tape_line* res,
    const mlx_array* inputs,
    const mlx_array* next_inputs,
    size_t n_inputs,
    const mlx_array* outputs,
    const mlx_array* next_outputs,
    size_t n_outputs)
    MLXC_TRY(res->ctx = new TapeLine(
                 c_arrays(inputs, n_inputs),
                 c_arrays(outputs, n_outputs),
                 c_arrays(next_inputs, n_inputs),
                 c_arrays(next_outputs, n_outputs));)

int mlxc_py_tape_line_check(
    mlxc_py_tape_line line,
    int64_t steps,
    const mlx_array* inputs,
    size_t n_inputs,
    const mlx_array* outputs,
    size_t n_outputs)
    MLXC_TRY(line_of(line).check(steps, c_arrays(inputs, n_inputs), c_arrays(outputs, n_outputs));)

int mlxc_py_tape_line_at(mlxc_py_tape* res, mlxc_py_tape_line line, int64_t steps)
    MLXC_TRY(res->ctx = line_of(line).at(steps).release();)

int mlxc_py_tape_line_free(mlxc_py_tape_line line) MLXC_TRY(delete static_cast<const TapeLine*>(line.ctx);)

} // extern "C"
