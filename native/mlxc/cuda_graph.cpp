// A graph of MLX operations as one launch on CUDA. MLX lays every operation out anew in each evaluation, which takes the
// host 8 to 30 us an operation; what it lays out is a CUDA graph, and that can be kept and launched again over the same
// memory. MLX has no call for it: its encoder of a stream is read and emptied here, as one release of MLX has it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <unordered_set>

#include <dlfcn.h>

#include "cuda_driver.hpp"
#include "extras.h"
#include "tape.hpp"

namespace mlxc::cuda {

namespace {

constexpr const char* kKnownRelease = "0.32.4";

// mlx::core::cu::CommandEncoder of that release up to the last member that is touched (mlx/backend/cuda/device.h, which
// needs the toolkit's headers).
struct Encoder {
  void* device;
  void* stream;
  void* graph;
  std::shared_ptr<void> worker;
  int node_count;
  bool in_concurrent;
  std::vector<void*> from_nodes;
  std::vector<void*> to_nodes;
  std::string graph_nodes_key;
  std::string graph_deps_key;
  std::vector<void*> concurrent_nodes;
  std::vector<std::shared_ptr<mx::array::Data>> temporaries;
};
static_assert(sizeof(Encoder) == 0xd0, "the members before graph_cache_");

struct Internals {
  Encoder& (*encoder_of)(mx::Stream) = nullptr;
  void* (*device_of)(mx::Device) = nullptr;
  void (*clear)(Encoder&) = nullptr;
  bool complete = false;

  Internals() {
    if (!driver().graphs || std::strcmp(mx::version(), kKnownRelease) != 0) return;
    Dl_info mlx; // it may be loaded for its users only, so its symbols are asked of it
    const bool known = dladdr(reinterpret_cast<const void*>(&mx::version), &mlx) != 0;
    void* library = known ? dlopen(mlx.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library ? dlsym(library, name) : nullptr);
      return function != nullptr;
    };
    complete = find("_ZN3mlx4core2cu19get_command_encoderENS0_6StreamE", encoder_of) &&
        find("_ZN3mlx4core2cu6deviceENS0_6DeviceE", device_of) &&
        find("_ZN3mlx4core2cu14CommandEncoder17clear_graph_stateEv", clear);
  }
};

const Internals& internals() {
  static const Internals found;
  return found;
}

// What has to be computed for `outputs`, inputs before users.
Arrays to_compute(const Arrays& outputs, mx::Stream stream) {
  Arrays order;
  std::unordered_set<std::uintptr_t> seen;
  std::vector<std::pair<mx::array, size_t>> open;
  auto enter = [&](const mx::array& a) {
    if (a.status() != mx::array::Status::unscheduled || !seen.insert(a.id()).second) return;
    for (const auto& sibling : a.siblings()) seen.insert(sibling.id());
    if (!a.has_primitive()) bad_argument("the graph reads a placeholder");
    if (a.primitive().stream() != stream) bad_argument("the graph computes on several streams");
    open.emplace_back(a, 0);
  };
  for (const auto& output : outputs) {
    enter(output);
    while (!open.empty()) {
      auto& [a, next] = open.back();
      if (next < a.inputs().size()) {
        const mx::array input = a.inputs()[next++];
        enter(input);
      } else {
        order.push_back(a);
        open.pop_back();
      }
    }
  }
  return order;
}

class CudaGraph {
 public:
  CudaGraph(const Arrays& inputs, const Arrays& outputs, size_t most_bytes)
      : device_(device(0)), inputs_(inputs), outputs_(outputs) {
    if (!internals().complete) bad_argument("graphs are kept on CUDA with MLX 0.32.4 only");
    const auto first = std::find_if(outputs.begin(), outputs.end(), [](const mx::array& a) {
      return a.status() == mx::array::Status::unscheduled && a.has_primitive();
    });
    if (first == outputs.end()) bad_argument("there is nothing to compute");
    const auto stream = first->primitive().stream();
    await(stream);
    Device::Current here(device_);
    Recording recording(stream);
    for (const auto& a : to_compute(outputs, stream)) {
      for (const auto& input : a.inputs()) hold(input);
      auto made = a.outputs();
      a.primitive().eval_gpu(a.inputs(), made);
      for (const auto& output : made) {
        output.set_status(mx::array::Status::evaluated);
        bytes_ += hold(output);
      }
      if (bytes_ > most_bytes) bad_argument("its intermediate results take more memory than is left for graphs");
      order_.push_back(a); // MLX writes into the memory of an array that nobody holds
    }
    for (const auto& a : outputs)
      if (!a.flags().row_contiguous) bad_argument("an output is not row-contiguous");
    recording.finish();
    launchable_ = device_.launchable(recording.graph());
    temporaries_ = recording.temporaries();
    for (const auto& data : temporaries_) bytes_ += hold(*data);
    for (auto& a : order_) a.detach();
    order_.clear();
  }

  CudaGraph(const CudaGraph&) = delete;

  Arrays run(const void* const* data, size_t n, int64_t& spent) {
    if (n != inputs_.size()) bad_argument("another number of inputs than the graph was kept with");
    std::lock_guard lock(mutex_);
    Device::Current here(device_);
    for (const auto& [buffer, address] : addresses_)
      if (buffer->data != address) bad_argument("memory of the graph was moved to the host");
    for (size_t i = 0; i < n; ++i)
      if (inputs_[i].nbytes()) device_.fill(address_of(inputs_[i]), data[i], inputs_[i].nbytes());
    Arrays results;
    const auto began = std::chrono::steady_clock::now();
    const auto& calls = driver();
    calls.check(calls.launch(launchable_.get(), device_.stream()), "launch");
    for (const auto& output : outputs_) {
      results.push_back(device_.make(output.shape(), output.dtype()));
      if (!output.nbytes()) continue;
      const auto to = reinterpret_cast<Driver::Pointer>(address_of(results.back()));
      const auto from = reinterpret_cast<Driver::Pointer>(address_of(output));
      calls.check(calls.on_device(to, from, output.nbytes(), device_.stream()), "copy of a result");
    }
    calls.check(calls.synchronize(device_.stream()), "run of a graph");
    spent += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
    return results;
  }

  size_t bytes() const { return bytes_; }

 private:
  // What primitives lay out meanwhile is taken from the encoder, whatever happens.
  class Recording {
   public:
    explicit Recording(mx::Stream stream) : encoder_(internals().encoder_of(stream)) {
      if (encoder_.device != internals().device_of(stream.device) || encoder_.node_count || !encoder_.graph)
        bad_argument("MLX's encoder is not as it was expected");
      encoder_.temporaries.clear(); // the stream has been waited for
    }
    ~Recording() {
      internals().clear(encoder_);
      encoder_.temporaries.clear();
      encoder_.node_count = 0;
      encoder_.in_concurrent = false;
      void* empty = nullptr;
      if (driver().create_graph(&empty, 0) != 0) return;
      driver().destroy_graph(encoder_.graph);
      encoder_.graph = empty;
    }
    Recording(const Recording&) = delete;

    void finish() {
      const auto &from = encoder_.from_nodes, &to = encoder_.to_nodes;
      if (from.empty()) return;
      driver().check(
          driver().add_dependencies(encoder_.graph, from.data(), to.data(), nullptr, from.size()), "dependencies");
    }
    void* graph() const { return encoder_.graph; }
    std::vector<std::shared_ptr<mx::array::Data>> temporaries() { return std::move(encoder_.temporaries); }

   private:
    Encoder& encoder_;
  };

  static void* address_of(const mx::array& a) { return static_cast<char*>(buffer_of(a)->data) + a.offset(); }

  // Keeps what the launches read or write, and where that was; its bytes where it is new.
  size_t hold(const mx::array& a) {
    if (!a.data_shared_ptr()) return 0;
    data_.push_back(a.data_shared_ptr());
    return hold(*a.data_shared_ptr());
  }
  size_t hold(const mx::array::Data& data) {
    auto* buffer = static_cast<CudaBuffer*>(const_cast<mx::array::Data&>(data).buffer().ptr());
    if (!buffer || !held_.insert(buffer).second) return 0;
    addresses_.emplace_back(buffer, buffer->data);
    return buffer->size;
  }

  Device& device_;
  Arrays inputs_, outputs_, order_;
  std::vector<std::shared_ptr<mx::array::Data>> data_, temporaries_;
  std::unordered_set<const CudaBuffer*> held_;
  std::vector<std::pair<const CudaBuffer*, void*>> addresses_;
  size_t bytes_ = 0;
  std::shared_ptr<void> launchable_;
  std::mutex mutex_;
};

CudaGraph& graph_of(mlxc_py_cuda_graph graph) {
  if (!graph.ctx) empty_handle("mlxc_py_cuda_graph");
  return *static_cast<CudaGraph*>(graph.ctx);
}

void run(mlx_array* res, size_t n_res, int64_t* spent, CudaGraph& graph, const void* const* data, size_t n) {
  if ((!res && n_res) || !spent || (!data && n)) bad_argument("NULL");
  auto results = graph.run(data, n, *spent);
  if (results.size() != n_res) bad_argument("another number of outputs than the graph was kept with");
  for (size_t i = 0; i < n_res; ++i) res[i] = make<mlx_array>(std::move(results[i]));
}

} // namespace

} // namespace mlxc::cuda

using namespace mlxc;

extern "C" {

bool mlxc_py_has_cuda_graphs(void) MLXC_RETURN(false, cuda::internals().complete)

int mlxc_py_cuda_graph_new(
    mlxc_py_cuda_graph* res,
    const mlx_array* inputs,
    size_t n_inputs,
    const mlx_array* outputs,
    size_t n_outputs,
    size_t most_bytes)
    MLXC_TRY(res->ctx = new cuda::CudaGraph(c_arrays(inputs, n_inputs), c_arrays(outputs, n_outputs), most_bytes);)

int mlxc_py_cuda_graph_run(
    mlx_array* res, size_t n_res, int64_t* spent, mlxc_py_cuda_graph graph, const void* const* data, size_t n_inputs)
    MLXC_TRY(cuda::run(res, n_res, spent, cuda::graph_of(graph), data, n_inputs);)

int mlxc_py_cuda_graph_bytes(size_t* res, mlxc_py_cuda_graph graph) MLXC_TRY(*res = cuda::graph_of(graph).bytes();)

int mlxc_py_cuda_graph_free(mlxc_py_cuda_graph graph) MLXC_TRY(delete static_cast<cuda::CudaGraph*>(graph.ctx);)

} // extern "C"
