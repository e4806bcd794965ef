#include "calling_thread.hpp"

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#ifdef __linux__
#include <link.h>
#endif

#include "mlx/primitives.h"
#include "mlx/scheduler.h"

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

using Slots = std::vector<void**>;

// Where a library's calls of `function` read its address. Only what the loader has bound for good is found: a slot that
// is bound at the first call would be written once more.
struct Search {
  const void* inside; // some address in the library
  const void* function;
  Slots found;

  static int visit(dl_phdr_info* info, size_t, void* argument) {
    auto& search = *static_cast<Search*>(argument);
    const auto wanted = reinterpret_cast<uintptr_t>(search.inside);
    const ElfW(Dyn)* dynamic = nullptr;
    bool holds = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& header = info->dlpi_phdr[i];
      const uintptr_t start = info->dlpi_addr + header.p_vaddr;
      if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(start);
      holds = holds || (header.p_type == PT_LOAD && wanted >= start && wanted < start + header.p_memsz);
    }
    if (!holds) return 0;
    const ElfW(Rela)* tables[2] = {};
    size_t sizes[2] = {};
    for (; dynamic && dynamic->d_tag != DT_NULL; ++dynamic) {
      uintptr_t address = dynamic->d_un.d_ptr;
      if (address < info->dlpi_addr) address += info->dlpi_addr; // glibc has relocated it in place, musl has not
      if (dynamic->d_tag == DT_RELA) tables[0] = reinterpret_cast<const ElfW(Rela)*>(address);
      if (dynamic->d_tag == DT_RELASZ) sizes[0] = dynamic->d_un.d_val;
      if (dynamic->d_tag == DT_JMPREL) tables[1] = reinterpret_cast<const ElfW(Rela)*>(address);
      if (dynamic->d_tag == DT_PLTRELSZ) sizes[1] = dynamic->d_un.d_val;
    }
    for (int t = 0; t < 2; ++t)
      for (size_t i = 0; tables[t] && i < sizes[t] / sizeof(ElfW(Rela)); ++i) {
        auto** slot = reinterpret_cast<void**>(info->dlpi_addr + tables[t][i].r_offset);
        if (*slot == search.function) search.found.push_back(slot);
      }
    return 1;
  }
};

Slots calls(const void* inside, const void* function) {
  Search search{inside, function, {}};
  dl_iterate_phdr(Search::visit, &search);
  return search.found;
}

bool install_hooks() {
  auto member = &Scheduler::enqueue;
  std::memcpy(&Hooks::enqueue_in_mlx, &member, sizeof Hooks::enqueue_in_mlx); // of a function that is not virtual
  Hooks::encoder_in_mlx = &mx::cpu::get_command_encoder;
  const std::pair<void*, void*> replaced[] = {
      {reinterpret_cast<void*>(Hooks::enqueue_in_mlx), reinterpret_cast<void*>(&Hooks::enqueue)},
      {reinterpret_cast<void*>(Hooks::encoder_in_mlx), reinterpret_cast<void*>(&Hooks::encoder)}};
  std::vector<std::pair<void**, void*>> writes;
  for (const auto& [original, hook] : replaced)
    for (const void* library : {replaced[0].first, static_cast<void*>(reinterpret_cast<void*>(&install_hooks))}) {
      const auto slots = calls(library, original);
      if (slots.empty()) return false;
      for (auto** slot : slots) writes.emplace_back(slot, hook);
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
  static const bool installed = install_hooks();
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

} // namespace mlxc
