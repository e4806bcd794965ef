// A CUDA device through the driver's own functions, found in the library that MLX has loaded: no toolkit is needed to
// build, and elsewhere there is nothing of it.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "handles.hpp"

namespace mlxc::cuda {

// What MLX's arrays point to on CUDA (mlx/backend/cuda/allocator.h, which needs the toolkit's headers).
struct CudaBuffer {
  void* data;
  size_t size;
  int device; // -1: managed memory
};

inline CudaBuffer* buffer_of(const mx::array& a) { return static_cast<CudaBuffer*>(a.buffer().ptr()); }

// The types are those of cuda.h.
struct Driver {
  using Pointer = unsigned long long;
  int (*initialize)(unsigned) = nullptr;
  int (*get_error)(int, const char**) = nullptr;
  int (*retain_context)(void**, int) = nullptr;
  int (*push_context)(void*) = nullptr;
  int (*pop_context)(void**) = nullptr;
  int (*create_stream)(void**, unsigned) = nullptr;
  int (*synchronize)(void*) = nullptr;
  int (*create_event)(void**, unsigned) = nullptr;
  int (*record)(void*, void*) = nullptr;
  int (*await_event)(void*) = nullptr;
  int (*allocate)(Pointer*, size_t, void*) = nullptr;
  int (*release)(Pointer, void*) = nullptr;
  int (*release_managed)(Pointer) = nullptr;
  int (*allocate_locked)(void**, size_t) = nullptr;
  int (*to_device)(Pointer, const void*, size_t, void*) = nullptr;
  int (*to_host)(void*, Pointer, size_t, void*) = nullptr;
  int (*on_device)(Pointer, Pointer, size_t, void*) = nullptr;
  int (*create_graph)(void**, unsigned) = nullptr;
  int (*destroy_graph)(void*) = nullptr;
  int (*add_dependencies)(void*, void* const*, void* const*, const void*, size_t) = nullptr;
  int (*instantiate)(void**, void*, unsigned long long) = nullptr;
  int (*launch)(void*, void*) = nullptr;
  int (*destroy_launchable)(void*) = nullptr;
  bool complete = false; // all but what graphs need, which came with CUDA 12.3
  bool graphs = false;

  Driver();
  void check(int status, const char* what) const; // throws, with the driver's own words
};

const Driver& driver();

// From ordinary memory the driver copies in one thread, at half of what the bus carries: large copies are made by a few
// threads, each through page-locked memory of its own, a ring of chunks.
struct Lane {
  static constexpr size_t kChunk = size_t(1) << 20, kChunks = 2;

  void* stream = nullptr;
  char* locked = nullptr;
  void* copied[kChunks] = {}; // events

  int make();
  int upload(Driver::Pointer to, const char* from, size_t bytes) const;
  int download(char* to, Driver::Pointer from, size_t bytes) const;
};

// Threads that work beside their caller, one caller at a time. They stay until the process ends.
class Crew {
 public:
  // work(i) for each i < n, on n threads, of which the caller is one.
  void run(size_t n, const std::function<void(size_t)>& work);

 private:
  void serve(size_t i);

  std::mutex mutex_;
  std::condition_variable called_, done_;
  const std::function<void(size_t)>* work_ = nullptr;
  size_t members_ = 0, wanted_ = 0, calls_ = 0, busy_ = 0;
};

// MLX's context of one device, and a stream for copies and launches that waits for no other.
class Device {
 public:
  explicit Device(int index);

  // The context is current on this thread while this lives.
  struct Current {
    explicit Current(const Device& device);
    ~Current();
    Current(const Current&) = delete;
  };

  void* stream() const { return stream_; }

  // For the last reference to what can be launched, on whichever thread.
  std::shared_ptr<void> launchable(void* graph);

  // An evaluated array whose elements are whatever the memory held.
  mx::array make(mx::Shape shape, mx::Dtype dtype);

  // Both wait until the copy is made; `fill` also for what the stream did before.
  void fill(void* to, const void* from, size_t bytes);
  void read(void* to, const void* from, size_t bytes);

 private:
  CudaBuffer* take(size_t bytes);
  void give_back(CudaBuffer* buffer) noexcept;
  bool in_lanes(size_t bytes, const std::function<int(const Lane&, size_t first, size_t count)>& part);

  int index_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  std::vector<Lane> lanes_;
  bool no_lanes_ = false;
  std::mutex lanes_mutex_;
  Crew crew_;
  std::mutex mutex_;
  std::multimap<size_t, CudaBuffer*> kept_;
  size_t kept_bytes_ = 0;
};

// Bad argument where MLX has no CUDA device.
Device& device(int index);

} // namespace mlxc::cuda
