#include "calling_thread.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <dlfcn.h>
#ifdef __linux__
#include <link.h>
#endif

#include "mlx/primitives.h"
#include "mlx/scheduler.h"

#include "allocation.hpp"
#include "failures.hpp"
#include "layout.hpp"
#include "patch.hpp"

namespace mlxc {

using mx::Stream;
using mx::cpu::CommandEncoder;
using mx::scheduler::Scheduler;

namespace {

thread_local CallingThread* here = nullptr;

} // namespace

// What stands in for two functions of MLX. A member function is called like a function with `this` first.
struct Hooks {
  static inline void (*enqueue_in_mlx)(Scheduler*, Stream, std::function<void()>) = nullptr;
  static inline CommandEncoder& (*encoder_in_mlx)(Stream) = nullptr;

  static void enqueue(Scheduler* self, Stream stream, std::function<void()> task) {
    if (!here) return enqueue_in_mlx(self, stream, std::move(task));
    try {
      task();
    } catch (...) { // MLX counts its tasks, so those behind it must run as well
      if (!here->error_) here->error_ = std::current_exception();
    }
  }

  static CommandEncoder& encoder(Stream stream) { return here ? here->encoder_ : encoder_in_mlx(stream); }
};

namespace {

#if defined(__linux__) && defined(__LP64__)

// Where a library's calls of a function read its address.
struct Calls {
  const void* function;
  const char* name;
  const void* inside; // some address in the library
  std::vector<void**> slots;
  bool bound = true; // a slot that is bound at the first call would be written once more

  Calls(void* function, const void* inside) : function(function), inside(inside) {
    Dl_info found;
    name = dladdr(function, &found) ? found.dli_sname : nullptr;
    if (name) dl_iterate_phdr(visit, this);
  }

  bool all_known() const { return bound && !slots.empty(); }

  static int visit(dl_phdr_info* info, size_t, void* argument) {
    auto& calls = *static_cast<Calls*>(argument);
    const auto wanted = reinterpret_cast<uintptr_t>(calls.inside);
    const ElfW(Dyn)* dynamic = nullptr;
    bool holds = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& header = info->dlpi_phdr[i];
      const uintptr_t start = info->dlpi_addr + header.p_vaddr;
      if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(start);
      holds = holds || (header.p_type == PT_LOAD && wanted >= start && wanted < start + header.p_memsz);
    }
    if (holds && dynamic) calls.search(dynamic, info->dlpi_addr);
    return holds;
  }

  void search(const ElfW(Dyn)* dynamic, uintptr_t base) {
    std::map<decltype(dynamic->d_tag), uintptr_t> values;
    for (; dynamic->d_tag != DT_NULL; ++dynamic) values[dynamic->d_tag] = dynamic->d_un.d_val;
    const auto at = [&](auto tag) { // glibc has relocated addresses in place, musl has not
      return values[tag] < base ? values[tag] + base : values[tag];
    };
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(at(DT_SYMTAB));
    const auto* strings = reinterpret_cast<const char*>(at(DT_STRTAB));
    for (const auto& [table, size] : {std::pair(DT_RELA, DT_RELASZ), std::pair(DT_JMPREL, DT_PLTRELSZ)}) {
      const auto* entry = reinterpret_cast<const ElfW(Rela)*>(at(table));
      for (size_t i = 0; i < values[size] / sizeof *entry; ++i) {
        if (std::strcmp(strings + symbols[ELF64_R_SYM(entry[i].r_info)].st_name, name)) continue;
        auto** slot = reinterpret_cast<void**>(base + entry[i].r_offset);
        slots.push_back(slot);
        bound = bound && *slot == function;
      }
    }
  }
};

bool install_hooks() {
  auto member = &Scheduler::enqueue;
  std::memcpy(&Hooks::enqueue_in_mlx, &member, sizeof Hooks::enqueue_in_mlx); // of a function that is not virtual
  Hooks::encoder_in_mlx = &mx::cpu::get_command_encoder;
  const std::pair<void*, void*> replaced[] = {
      {reinterpret_cast<void*>(Hooks::enqueue_in_mlx), reinterpret_cast<void*>(&Hooks::enqueue)},
      {reinterpret_cast<void*>(Hooks::encoder_in_mlx), reinterpret_cast<void*>(&Hooks::encoder)}};
  std::vector<std::pair<void**, void*>> writes;
  for (const auto& [original, hook] : replaced)
    for (const void* library : {replaced[0].first, reinterpret_cast<void*>(&install_hooks)}) { // MLX's and this one
      const Calls calls(original, library);
      if (!calls.all_known()) return false;
      for (auto** slot : calls.slots) writes.emplace_back(slot, hook);
    }
  size_t done = 0;
  while (done < writes.size() && patch(writes[done].first, writes[done].second)) ++done;
  return done == writes.size(); // some hooks alone change nothing: no thread says that it computes by itself
}

#else

bool install_hooks() { return false; }

#endif

} // namespace

bool computes_on_calling_thread() {
  static const bool installed = host_allocator() && install_hooks();
  return installed;
}

// Which stream does not matter: nothing is enqueued.
CallingThread::CallingThread() : encoder_(mx::Stream(0, mx::Device::cpu)), outer_(std::exchange(here, this)) {}

CallingThread::~CallingThread() { here = outer_; }

void CallingThread::compute(const Arrays& inputs, Arrays& outputs) {
  outputs[0].primitive().eval_cpu(inputs, outputs);
  encoder_.temporaries().clear();
  if (error_) std::rethrow_exception(error_);
  for (auto& output : outputs) {
    output.detach();
    output.set_status(mx::array::Status::available);
  }
}

void evaluate_here(const Arrays& outputs) {
  if (!computes_on_calling_thread()) return evaluate(outputs);
  auto order = in_order(outputs);
  const auto unscheduled = [](const mx::array& a) { return a.status() == mx::array::Status::unscheduled; };
  const bool alone = std::all_of(order.begin(), order.end(), [&](const mx::array& a) {
    if (!unscheduled(a)) return a.is_available(); // else it is on its way, or has failed
    return a.has_primitive() && !a.is_tracer() && a.primitive().device() == mx::Device::cpu;
  });
  if (!alone) return evaluate(outputs);
  guard_allocations();
  CallingThread thread;
  for (auto& next : order) {
    const auto a = std::move(next); // held by nobody else, its memory may become a result's
    if (!unscheduled(a)) continue;
    auto made = a.outputs();
    thread.compute(a.inputs(), made);
  }
}

} // namespace mlxc
