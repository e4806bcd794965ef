#include "failures.hpp"

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_set>

#include "mlx/event.h"
#include "mlx/primitives.h"
#include "mlx/scheduler.h"
#include "mlx/transforms.h"

#include "allocation.hpp"

namespace mlxc {

using mlx::core::array;
using mlx::core::Event;
using mlx::core::Stream;

std::atomic<bool> any_failure{false};

namespace {

// All arrays of one evaluation on one stream share its event, so a failed event names the intermediates too. An event
// kept here keeps its address from being used again.
struct Failure {
  Event event;
  std::string message;
};

constexpr size_t kKept = 256;

struct State {
  std::mutex lock;
  std::deque<Failure> failed;
  std::deque<Event> pending; // of asynchronous evaluations that nobody has waited for through us
};

State& state() {
  static auto* all = new State;
  return *all;
}

template <class T>
void keep(std::deque<T>& list, T value) {
  list.push_back(std::move(value));
  if (list.size() > kKept) list.pop_front();
}

bool same(const Event& a, const Event& b) { return &a.cast<char>() == &b.cast<char>() && a.value() == b.value(); }

// What hangs on arrays: events of what was scheduled, streams of what was not.
struct Graph {
  std::vector<Event> events;
  std::vector<Stream> streams;
  std::unordered_set<std::uintptr_t> seen;

  explicit Graph(const std::vector<array>& arrays) {
    for (const auto& a : arrays) visit(a);
  }

  void add(const Event& event) {
    if (std::none_of(events.begin(), events.end(), [&](const Event& e) { return same(e, event); })) events.push_back(event);
  }

  void add(Stream stream) {
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  }

  void visit(const array& root) {
    std::vector<array> open{root};
    while (!open.empty()) {
      const array a = std::move(open.back());
      open.pop_back();
      if (a.status() == array::Status::available || !seen.insert(a.id()).second) continue;
      if (a.event().valid()) {
        add(a.event());
        add(a.event().stream());
      }
      if (!a.has_primitive()) continue;
      add(a.primitive().stream());
      for (const auto& input : a.inputs()) open.push_back(input);
    }
  }
};

// Thrown before anything ran, so the array can be tried again: on its own thread, or when there is memory. An error
// handed over from a worker thread is a plain runtime_error.
bool can_be_retried(const std::exception& e) {
  return typeid(e) != typeid(std::runtime_error) || std::string_view(e.what()).substr(0, 18) == "There is no Stream";
}

void fail_event(State& all, const Event& event, const std::string& message) {
  keep(all.failed, Failure{event, message});
  any_failure.store(true, std::memory_order_relaxed);
}

void fail_pending(State& all, const std::vector<Stream>& streams, const std::string& message) {
  std::erase_if(all.pending, [&](const Event& event) {
    if (std::find(streams.begin(), streams.end(), event.stream()) == streams.end()) return false;
    fail_event(all, event, message);
    return true;
  });
}

// MLX counts the tasks that a failed evaluation leaves undone as running for ever, and an evaluation waits while there
// are a hundred. Counted down too often it only waits later, so other threads' tasks need no exact account.
std::atomic<int> evaluations{0};

void settle_tasks(std::vector<Stream> streams, int running_before) {
  std::erase_if(streams, [](const Stream& stream) { return stream.device != mlx::core::Device::cpu; }); // a GPU's end
  for (auto stream : streams) {
    try {
      mlx::core::synchronize(stream);
    } catch (const std::exception&) {
      continue; // another thread's stream, or the same error once more: the count is right all the same
    }
  }
  const bool alone = host_allocator() && evaluations == 1;
  const int undone = mlx::core::scheduler::n_active_tasks() - (alone ? 0 : running_before);
  for (int i = 0; i < undone && !streams.empty(); ++i) mlx::core::scheduler::notify_task_completion(streams[0]);
}

void mark_failed(const std::vector<array>& arrays, const std::exception& e, int running_before) {
  const bool scheduled = std::none_of(
      arrays.begin(), arrays.end(), [](const array& a) { return a.status() == array::Status::unscheduled; });
  const Graph graph(arrays);
  settle_tasks(graph.streams, running_before);
  if (!scheduled && can_be_retried(e)) return;
  auto& all = state();
  std::lock_guard lock(all.lock);
  fail_pending(all, graph.streams, e.what());
  for (const auto& event : graph.events) fail_event(all, event, e.what());
  if (!scheduled && graph.events.empty()) return; // nothing of it ran: the error was left by an earlier evaluation
  for (auto a : arrays) {
    if (a.status() == array::Status::available || a.is_tracer()) continue;
    if (!a.event().valid() && !graph.events.empty()) a.attach_event(graph.events.front());
    // Unscheduled and without a graph: MLX itself will not evaluate it either.
    a.detach();
    a.set_status(array::Status::unscheduled);
  }
}

void forget_pending(const std::vector<Event>& events) {
  auto& all = state();
  std::lock_guard lock(all.lock);
  std::erase_if(all.pending, [&](const Event& pending) {
    return std::any_of(events.begin(), events.end(), [&](const Event& e) { return same(e, pending); });
  });
}

template <class Function>
void guarded(const std::vector<array>& arrays, Function function) {
  guard_allocations();
  std::vector<Event> awaited;
  for (const auto& a : arrays) {
    check_not_failed(a);
    if (a.status() == array::Status::evaluated && a.event().valid()) awaited.push_back(a.event());
  }
  ++evaluations;
  const int running_before = mlx::core::scheduler::n_active_tasks();
  try {
    function();
  } catch (const std::exception& e) {
    mark_failed(arrays, e, running_before);
    --evaluations;
    throw;
  }
  --evaluations;
  if (!awaited.empty()) forget_pending(awaited);
}

// MLX's encoder of a stream that any thread may use is not locked: two schedulers at once end the process. A lock for
// each stream, or for a few where there are more than kLocks: a busy one must not keep the others waiting.
class Scheduling {
 public:
  explicit Scheduling(const std::vector<array>& arrays) {
    std::set<size_t> wanted; // in order, so that two threads never wait for each other
    for (const auto& a : arrays)
      if (a.has_primitive()) wanted.insert(size_t(a.primitive().stream().index) % kLocks);
    for (size_t i : wanted) held_.emplace_back(locks()[i]);
  }

 private:
  static constexpr size_t kLocks = 64;

  static std::mutex* locks() {
    static auto* all = new std::mutex[kLocks];
    return all;
  }

  std::vector<std::unique_lock<std::mutex>> held_;
};

} // namespace

void check_not_failed_slow(const array& a) {
  if (a.status() == array::Status::available || !a.event().valid()) return;
  auto& all = state();
  std::lock_guard lock(all.lock);
  for (const auto& f : all.failed)
    if (same(f.event, a.event()))
      throw std::runtime_error("this array was not computed, its evaluation failed: " + f.message);
}

void evaluate(const std::vector<array>& arrays) {
  // eval attaches no events to intermediates, async_eval does; on the CPU it costs the same.
  const bool on_gpu = std::any_of(arrays.begin(), arrays.end(), [](const array& a) {
    return a.has_primitive() && a.primitive().device() == mlx::core::Device::gpu;
  });
  if (on_gpu) return guarded(arrays, [&] { mlx::core::eval(arrays); });
  guarded(arrays, [&] {
    {
      const Scheduling lock(arrays);
      mlx::core::async_eval(arrays);
    }
    for (auto a : arrays) a.wait();
  });
}

void start_evaluation(const std::vector<array>& arrays) {
  guarded(arrays, [&] {
    const Scheduling lock(arrays);
    mlx::core::async_eval(arrays);
  });
  auto& all = state();
  std::lock_guard lock(all.lock);
  for (const auto& a : arrays)
    if (a.status() == array::Status::evaluated && a.event().valid()) keep(all.pending, a.event());
}

void await(const array& a) {
  guarded({a}, [copy = a]() mutable { copy.wait(); });
}

void await(Stream stream) {
  try {
    mlx::core::synchronize(stream);
  } catch (const std::exception& e) {
    auto& all = state();
    std::lock_guard lock(all.lock);
    fail_pending(all, {stream}, e.what());
    throw;
  }
}

} // namespace mlxc
