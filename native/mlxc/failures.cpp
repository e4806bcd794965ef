#include "failures.hpp"

#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>

#include "mlx/event.h"
#include "mlx/transforms.h"

#include "allocation.hpp"

namespace mlxc {

using mlx::core::array;
using mlx::core::Event;

std::atomic<bool> any_failure{false};

namespace {

// All arrays of one evaluation on one stream share its event, so a failed event names the intermediates too, which
// other handles may hold. An event kept here keeps its address from being used again.
struct Failure {
  Event event;
  std::string message;
};

constexpr size_t kKept = 256;

struct Failures {
  std::mutex lock;
  std::deque<Failure> list;
};

Failures& failures() {
  static auto* all = new Failures;
  return *all;
}

bool same(const Event& a, const Event& b) { return &a.cast<char>() == &b.cast<char>() && a.value() == b.value(); }

// Marked by us: evaluated, so that its graph is gone, and yet "unscheduled". MLX refuses to evaluate such an array.
bool marked(const array& a) {
  return a.status() == array::Status::unscheduled && !a.has_primitive() && !a.is_tracer() && a.data_shared_ptr();
}

[[noreturn]] void refuse(const std::string& message) {
  throw std::runtime_error("this array was not computed, its evaluation failed: " + message);
}

void remember(const std::vector<array>& arrays, const std::string& message) {
  for (const auto& a : arrays)
    if (a.status() == array::Status::unscheduled) return; // failed before it was scheduled: it can be tried again
  auto& all = failures();
  std::lock_guard lock(all.lock);
  for (const auto& a : arrays) {
    if (a.status() != array::Status::evaluated) continue;
    if (a.event().valid()) {
      all.list.push_back({a.event(), message});
      if (all.list.size() > kKept) all.list.pop_front();
    }
    a.set_status(array::Status::unscheduled);
    any_failure.store(true, std::memory_order_relaxed);
  }
}

template <class Function>
void guarded(const std::vector<array>& arrays, Function function) {
  guard_allocations();
  for (const auto& a : arrays) check_not_failed(a);
  try {
    function();
  } catch (const std::exception& e) {
    remember(arrays, e.what());
    throw;
  }
}

} // namespace

void check_not_failed_slow(const array& a) {
  const bool is_marked = marked(a);
  if (!is_marked && (a.status() != array::Status::evaluated || !a.event().valid())) return;
  auto& all = failures();
  std::lock_guard lock(all.lock);
  for (const auto& f : all.list)
    if (a.event().valid() && same(f.event, a.event())) refuse(f.message);
  if (is_marked) refuse("see the error reported then");
}

void evaluate(const std::vector<array>& arrays) {
  // eval attaches no events to intermediates, async_eval does; on the CPU it costs the same.
  if (!host_allocator()) return guarded(arrays, [&] { mlx::core::eval(arrays); });
  guarded(arrays, [&] {
    mlx::core::async_eval(arrays);
    for (auto a : arrays) a.wait();
  });
}

void start_evaluation(const std::vector<array>& arrays) {
  guarded(arrays, [&] { mlx::core::async_eval(arrays); });
}

void await(const array& a) {
  guarded({a}, [copy = a]() mutable { copy.wait(); });
}

} // namespace mlxc
