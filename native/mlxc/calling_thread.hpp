// CPU primitives computed on the thread that evaluates them.
//
// MLX's eval_cpu hands its loops to the worker thread of a stream, and whoever wants the result sleeps until that is
// done: two wake-ups, 30 to 90 us, for a graph that may take 5. Here a thread can say that it computes by itself.
#pragma once

#include <exception>

#include "mlx/backend/cpu/encoder.h"

namespace mlxc {

// Whether CallingThread works here; false where MLX's library was linked or loaded in a way this does not know.
bool computes_on_calling_thread();

// As long as it lives, what this thread's eval_cpu calls dispatch runs at once, on this thread, whatever the stream.
class CallingThread {
 public:
  explicit CallingThread(mlx::core::Stream stream);
  ~CallingThread();
  CallingThread(const CallingThread&) = delete;
  CallingThread& operator=(const CallingThread&) = delete;

  // After each eval_cpu: lets go of its temporaries; throws what a loop has thrown.
  void finish();

 private:
  friend struct Hooks;
  mlx::core::cpu::CommandEncoder encoder_;
  std::exception_ptr error_;
  CallingThread* outer_;
};

} // namespace mlxc
