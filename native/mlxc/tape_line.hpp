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

// What is known of an array of a graph, once the graph is gone.
struct Sighting {
  std::uintptr_t id;
  std::shared_ptr<mx::Primitive> primitive;
  int sibling;
  std::vector<int> inputs; // places
  mx::Shape shape;
  mx::Dtype dtype;
  int given;                      // which of the graph's inputs it is, or -1
  std::optional<mx::array> value; // a constant
};

// What grows about a node: the shapes of its results, one after the other, and the numbers of its primitive.
struct Growth {
  Growing shapes, numbers;
};

class TapeLine {
 public:
  // From two recordings a step apart; steps are counted from the first. Bad argument, which says what does not grow
  // evenly, where that is so.
  TapeLine(const Arrays& inputs, const Arrays& outputs, const Arrays& next_inputs, const Arrays& next_outputs);

  // Bad argument where a recording at another step is not what the line says.
  void check(int64_t steps, const Arrays& inputs, const Arrays& outputs) const;

  // The tape at a step between those that were checked. Nothing where a size that grows meets another: translations may
  // do something else there.
  std::unique_ptr<Tape> at(int64_t steps) const;

 private:
  std::vector<TapeNode> nodes_from(const Arrays& order) const;
  std::vector<mx::Shape> shapes_of_inputs(int64_t steps) const;
  mx::Shape shape_of(int slot, int64_t steps) const;
  TapeNode grown(size_t node, int64_t steps) const;
  void check(int64_t steps, const Arrays& inputs, const std::vector<Sighting>& seen, const Arrays& order) const;

  std::vector<Sighting> seen_;
  std::vector<bool> varies_; // by place
  std::vector<std::pair<size_t, Ramp>> ramps_; // by place; their slots follow the inputs'
  std::vector<Growing> inputs_;                // shapes
  std::vector<mx::Dtype> dtypes_;
  Recording recording_; // before operations are joined
  Tape::Nodes nodes_;   // after
  std::vector<int> outputs_;
  std::vector<std::optional<Growth>> growths_;    // by node
  std::vector<std::pair<size_t, size_t>> results_; // node and number, by slot
  std::unordered_set<int64_t> meetings_;
};

} // namespace mlxc
