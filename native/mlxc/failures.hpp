// Arrays whose evaluation failed in a worker thread.
//
// MLX reports such an error once, to whoever uses the stream next, and clears it; evaluating the array again then
// succeeds and leaves it with whatever its memory held. Here it stays an error: until the array is freed, computing
// with it or reading it is refused. That holds for the arrays given to an evaluation, and on the CPU also for the
// intermediates that other handles hold.
#pragma once

#include <atomic>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlxc {

extern std::atomic<bool> any_failure;

// Throws if the array belongs to a failed evaluation.
void check_not_failed_slow(const mlx::core::array& a);

inline void check_not_failed(const mlx::core::array& a) {
  if (any_failure.load(std::memory_order_relaxed)) check_not_failed_slow(a);
}

// mlx::core::eval, async_eval, array::wait and synchronize; what a worker thread's error spoiled is marked. On the CPU
// any thread may evaluate on a thread-unsafe stream while others do.
void evaluate(const std::vector<mlx::core::array>& arrays);
void start_evaluation(const std::vector<mlx::core::array>& arrays);
void await(const mlx::core::array& a);
void await(mlx::core::Stream stream);

} // namespace mlxc
