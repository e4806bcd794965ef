// Host bytes to and from a CUDA device's own memory. MLX keeps host arrays in managed memory, whose pages move to the
// device by faults, one by one, whenever a kernel reads what the host wrote: a copy by the driver is ten times faster.
#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>

#include "allocation.hpp"
#include "extras.h"
#include "handles.hpp"

using namespace mlxc;

namespace {

// What MLX's arrays point to on CUDA (mlx/backend/cuda/allocator.h, which needs the toolkit's headers).
struct CudaBuffer {
  void* data;
  size_t size;
  int device; // -1: managed memory
};

// The driver's functions, found in the library that MLX has loaded; their types are those of cuda.h.
struct Driver {
  using Pointer = unsigned long long;
  int (*initialize)(unsigned) = nullptr;
  int (*get_error)(int, const char**) = nullptr;
  int (*retain_context)(void**, int) = nullptr;
  int (*push_context)(void*) = nullptr;
  int (*pop_context)(void**) = nullptr;
  int (*create_stream)(void**, unsigned) = nullptr;
  int (*synchronize)(void*) = nullptr;
  int (*allocate)(Pointer*, size_t, void*) = nullptr;
  int (*release)(Pointer, void*) = nullptr;
  int (*release_managed)(Pointer) = nullptr;
  int (*allocate_locked)(void**, size_t) = nullptr;
  int (*to_device)(Pointer, const void*, size_t, void*) = nullptr;
  int (*to_host)(void*, Pointer, size_t, void*) = nullptr;
  bool complete = false;

  Driver() {
    void* library = mx::cu::is_available() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : nullptr;
    complete = library && find(library, "cuInit", initialize) && find(library, "cuGetErrorString", get_error) &&
        find(library, "cuDevicePrimaryCtxRetain", retain_context) &&
        find(library, "cuCtxPushCurrent_v2", push_context) && find(library, "cuCtxPopCurrent_v2", pop_context) &&
        find(library, "cuStreamCreate", create_stream) && find(library, "cuStreamSynchronize", synchronize) &&
        find(library, "cuMemAllocAsync", allocate) && find(library, "cuMemFreeAsync", release) &&
        find(library, "cuMemFree_v2", release_managed) && find(library, "cuMemAllocHost_v2", allocate_locked) && find(library, "cuMemcpyHtoDAsync_v2", to_device) &&
        find(library, "cuMemcpyDtoHAsync_v2", to_host) && initialize(0) == 0;
  }

  template <class Function>
  static bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }

  void check(int status, const char* what) const {
    if (status == 0) return;
    const char* text = nullptr;
    get_error(status, &text);
    throw std::runtime_error(std::string("[cuda] ") + what + ": " + (text ? text : std::to_string(status)));
  }
};

const Driver& driver() {
  static const Driver found;
  return found;
}

// MLX's context of one device, current while this lives, and a stream for copies that waits for no other.
class Device {
 public:
  explicit Device(int index) : index_(index) {
    driver().check(driver().retain_context(&context_, index), "no context");
    Current here(*this);
    driver().check(driver().create_stream(&stream_, kNonBlocking), "no stream");
  }

  struct Current {
    explicit Current(const Device& device) { driver().check(driver().push_context(device.context_), "no context"); }
    ~Current() {
      void* context = nullptr;
      driver().pop_context(&context);
    }
  };

  CudaBuffer* take(size_t bytes) {
    const size_t size = rounded(bytes);
    {
      std::lock_guard lock(mutex_);
      if (auto found = kept_.extract(size)) {
        kept_bytes_ -= size;
        return found.mapped();
      }
    }
    Driver::Pointer data = 0;
    driver().check(driver().allocate(&data, size, stream_), ("cannot allocate " + std::to_string(size) + " bytes").c_str());
    return new CudaBuffer{reinterpret_cast<void*>(data), size, index_};
  }

  // On whichever thread drops the last reference, after the kernels that read the buffer.
  void give_back(CudaBuffer* buffer) noexcept {
    if (buffer->device == index_) {
      std::lock_guard lock(mutex_);
      if (kept_bytes_ + buffer->size <= kMostKept) {
        kept_bytes_ += buffer->size;
        kept_.emplace(buffer->size, buffer);
        return;
      }
    }
    if (driver().push_context(context_) == 0) {
      const auto data = reinterpret_cast<Driver::Pointer>(buffer->data);
      // MLX has moved it to managed memory if the host has read it
      buffer->device == index_ ? driver().release(data, stream_) : driver().release_managed(data);
      void* context = nullptr;
      driver().pop_context(&context);
    }
    delete buffer;
  }

  void fill(CudaBuffer* buffer, const void* from, size_t bytes) {
    const auto to = reinterpret_cast<Driver::Pointer>(buffer->data);
    auto part = [&](const Lane& lane, size_t first, size_t count) {
      return upload(lane, to + first, static_cast<const char*>(from) + first, count);
    };
    if (in_lanes(bytes, part)) return;
    driver().check(driver().to_device(to, from, bytes, stream_), "copy to the device");
    driver().check(driver().synchronize(stream_), "copy to the device");
  }

  void read(void* to, const char* from, size_t bytes) {
    const auto source = reinterpret_cast<Driver::Pointer>(from);
    auto part = [&](const Lane& lane, size_t first, size_t count) {
      return download(lane, static_cast<char*>(to) + first, source + first, count);
    };
    if (in_lanes(bytes, part)) return;
    driver().check(driver().to_host(to, source, bytes, stream_), "copy to the host");
    driver().check(driver().synchronize(stream_), "copy to the host");
  }

 private:
  // As MLX rounds, so that its arrays can take over such a buffer.
  static size_t rounded(size_t bytes) {
    constexpr size_t kPage = 16384;
    if (bytes >= kPage) return (bytes + kPage - 1) / kPage * kPage;
    size_t size = 8;
    while (size < bytes) size *= 2;
    return size;
  }

  // From ordinary memory the driver copies in one thread, at half of what the bus carries: large copies are made by a
  // few threads, each through page-locked memory of its own.
  struct Lane {
    void* stream = nullptr;
    char* locked = nullptr;
  };

  static int upload(const Lane& lane, Driver::Pointer to, const char* from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      for (size_t i = 0; i < kChunks && done < bytes; ++i) {
        const size_t count = std::min(kChunk, bytes - done);
        std::memcpy(lane.locked + i * kChunk, from + done, count);
        if (int status = driver().to_device(to + done, lane.locked + i * kChunk, count, lane.stream)) return status;
        done += count;
      }
      if (int status = driver().synchronize(lane.stream)) return status;
    }
    return 0;
  }

  static int download(const Lane& lane, char* to, Driver::Pointer from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const size_t count = std::min(kChunk * kChunks, bytes - done);
      if (int status = driver().to_host(lane.locked, from + done, count, lane.stream)) return status;
      if (int status = driver().synchronize(lane.stream)) return status;
      std::memcpy(to + done, lane.locked, count);
      done += count;
    }
    return 0;
  }

  // Whether `part` was called for pieces of a copy, in all lanes at once; not for a small one, or while another has them.
  template <class Part>
  bool in_lanes(size_t bytes, const Part& part) {
    std::unique_lock lock(lanes_mutex_, std::try_to_lock);
    if (bytes < kLarge || !lock) return false;
    while (lanes_.size() < std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kLanes)) {
      Lane lane;
      if (driver().allocate_locked(reinterpret_cast<void**>(&lane.locked), kChunk * kChunks) != 0) return false;
      driver().check(driver().create_stream(&lane.stream, kNonBlocking), "no stream");
      lanes_.push_back(lane);
    }
    auto work = [&](size_t i) {
      Current here(*this);
      const size_t first = bytes * i / lanes_.size(), last = bytes * (i + 1) / lanes_.size();
      return part(lanes_[i], first, last - first);
    };
    std::vector<std::future<int>> others;
    for (size_t i = 1; i < lanes_.size(); ++i) others.push_back(std::async(std::launch::async, work, i));
    int status = work(0);
    for (auto& other : others) status = std::max(status, other.get());
    driver().check(status, "copy");
    return true;
  }

  static constexpr size_t kMostKept = size_t(256) << 20;
  static constexpr size_t kLarge = size_t(4) << 20, kLanes = 4, kChunk = size_t(512) << 10, kChunks = 4;
  static constexpr unsigned kNonBlocking = 1;

  int index_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  std::vector<Lane> lanes_;
  std::mutex lanes_mutex_;
  std::mutex mutex_;
  std::multimap<size_t, CudaBuffer*> kept_;
  size_t kept_bytes_ = 0;
};

Device& device(int index) {
  if (!driver().complete) bad_argument("this MLX has no CUDA device");
  static std::mutex mutex;
  static auto* devices = new std::map<int, Device>; // arrays may outlive every static
  std::lock_guard lock(mutex);
  return devices->try_emplace(index, index).first->second;
}

mlx_array new_on_device(const void* data, const int* dims, int dim, mlx_dtype type, int index) {
  auto shape = c_dims(dims, dim);
  const auto dtype = c_dtype(type);
  const size_t bytes = c_nbytes(shape, dtype);
  if (!bytes) return make<mlx_array>(mx::allocator::malloc(0), std::move(shape), dtype);
  if (!data) bad_argument("NULL data");
  auto& own = device(index);
  Device::Current here(own);
  CudaBuffer* buffer = own.take(bytes);
  mx::allocator::Data owner(mx::allocator::Buffer(buffer), [&own](mx::allocator::Buffer dropped) {
    own.give_back(static_cast<CudaBuffer*>(dropped.ptr()));
  });
  own.fill(buffer, data, bytes);
  return make<mlx_array>(std::move(owner), std::move(shape), dtype);
}

void copy_to(void* to, mlx_array handle) {
  auto& a = c_ref(handle);
  if (!a.data_shared_ptr() || a.status() == mx::array::Status::unscheduled)
    bad_argument("array has no data yet: evaluate it first");
  if (!a.flags().row_contiguous) bad_argument("the array is not row-contiguous");
  if (!a.nbytes()) return;
  if (!to) bad_argument("NULL destination");
  if (!a.is_available()) await(a);
  const auto* buffer = static_cast<const CudaBuffer*>(a.buffer().ptr());
  auto& own = device(buffer->device < 0 ? 0 : buffer->device); // any device reads managed memory
  Device::Current here(own);
  own.read(to, static_cast<const char*>(buffer->data) + a.offset(), a.nbytes());
}

} // namespace

extern "C" {

bool mlxc_py_has_device_memory(void) MLXC_RETURN(false, driver().complete)

mlx_array mlxc_py_array_new_on_device(const void* data, const int* shape, int dim, mlx_dtype dtype, int device)
    MLXC_RETURN({}, new_on_device(data, shape, dim, dtype, device))

int mlxc_py_array_copy_to(void* to, mlx_array a) MLXC_TRY(copy_to(to, a);)

} // extern "C"
