// Tapes for the sizes along a line: a graph whose shapes grow by the same amount with each step, as a decoder's do with
// its cache. A few recordings explain it, and the tapes between them are made without recording.
#pragma once

#include "tape.hpp"

namespace mlxc {

// Numbers that grow evenly with each step.
struct Growing {
  std::vector<double> start, slope;

  std::vector<double> at(int64_t steps) const;
};

// A constant whose elements grow evenly along each axis, too. `form`: the first element, then the difference along axes.
struct Ramp {
  mx::Dtype dtype;
  Growing shape, form;

  mx::array at(int64_t steps) const;
};

// What an operation reads, or what a graph gives: the array at a place of the graph, or a constant.
struct Source {
  int place = -1;
  std::optional<mx::array> constant;
};

// An array of a graph that is no constant, as it was before anything was evaluated.
struct Sighting {
  std::uintptr_t id;
  std::shared_ptr<mx::Primitive> primitive; // none: an input
  int sibling = 0;
  std::vector<Source> inputs;
  mx::Shape shape;
  mx::Dtype dtype;
};

// A recorded graph. Constants are told by who reads them: whether two of them are one array says nothing.
struct Sight {
  Arrays order, outputs;
  std::vector<int> places; // of `order`, -1 for constants
  std::vector<Sighting> seen;
  std::vector<Source> given;

  Sight(const Arrays& inputs, const Arrays& outputs);
};

// What grows about a node: the shapes of its results, one after the other, and its primitive, if not -1.
struct Growth {
  Growing shapes;
  int primitive = -1;
};

// A primitive whose numbers grow, as the node has it; other nodes may have equal ones.
struct Sized;
struct Remade {
  const Sized* kind;
  size_t node;
  Growing numbers;
};

class TapeLine {
 public:
  // From two recordings a step apart; steps are counted from the first. Bad argument, which says what does not grow
  // evenly, where that is so.
  TapeLine(const Arrays& inputs, const Arrays& outputs, const Arrays& next_inputs, const Arrays& next_outputs);

  // Bad argument where a recording at another step is not what the line says.
  void check(int64_t steps, const Arrays& inputs, const Arrays& outputs) const;

  // The tape at a step between those that were checked.
  std::unique_ptr<Tape> at(int64_t steps) const;

 private:
  void find_ramps(const Sight& sight, const Sight& next);
  void check(int64_t steps, const Sight& sight) const;
  std::vector<TapeNode> nodes_from(const Sight& sight) const;
  std::vector<mx::Shape> shapes_of_inputs(int64_t steps) const;
  Tape::Form form_of(int slot, int64_t steps) const;
  using Primitives = std::vector<std::shared_ptr<mx::Primitive>>;
  Primitives remade(int64_t steps) const;
  TapeNode grown(size_t node, int64_t steps, const Primitives& remade) const;

  std::vector<Sighting> seen_;
  std::vector<Source> given_;
  std::vector<bool> varies_; // by place
  std::vector<std::pair<std::uintptr_t, Ramp>> ramps_; // by constant; their slots follow the inputs'
  std::vector<Growing> inputs_;                        // shapes
  std::vector<mx::Dtype> dtypes_;
  Recording recording_; // before operations are joined
  Tape::Nodes nodes_;   // after
  std::vector<int> outputs_;
  std::vector<std::optional<Growth>> growths_;     // by node
  std::vector<Remade> remade_;
  std::vector<std::pair<size_t, size_t>> results_; // node and number, by slot
};

} // namespace mlxc
