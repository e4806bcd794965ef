// CPU primitives computed on the thread that evaluates them.
//
// MLX's eval_cpu hands its loops to the worker thread of a stream, and whoever wants the result sleeps until that is
// done: two wake-ups, 30 to 90 us, for a graph that may take 5. Here a thread can say that it computes by itself.
#pragma once

#include <exception>

#include "mlx/backend/cpu/encoder.h"

#include "handles.hpp"

namespace mlxc {

// Whether CallingThread works here; false beside a GPU, and where MLX's library was linked or loaded in a way this does
// not know.
bool computes_on_calling_thread();

// As long as it lives, what this thread's eval_cpu calls dispatch runs at once, on this thread, whatever their stream.
class CallingThread {
 public:
  CallingThread();
  ~CallingThread();
  CallingThread(const CallingThread&) = delete;
  CallingThread& operator=(const CallingThread&) = delete;

  // Computes `outputs`: all of one primitive, in its order, each without inputs and siblings. What a loop throws is thrown.
  void compute(const Arrays& inputs, Arrays& outputs);

 private:
  friend struct Hooks;
  mx::cpu::CommandEncoder encoder_;
  std::exception_ptr error_;
  CallingThread* outer_;
};

// Evaluates a graph, on this thread if that can be.
void evaluate_here(const Arrays& outputs);

} // namespace mlxc
