#include "cuda_driver.hpp"

#include <algorithm>
#include <cstring>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>

#include <dlfcn.h>

namespace mlxc::cuda {

namespace {

constexpr unsigned kNonBlocking = 1;
constexpr size_t kMostKept = size_t(256) << 20;
constexpr size_t kLarge = size_t(4) << 20, kLanes = 8, kChunk = size_t(1) << 20, kChunks = 2;

// As MLX rounds, so that its arrays can take over such a buffer.
size_t rounded(size_t bytes) {
  constexpr size_t kPage = 16384;
  if (bytes >= kPage) return (bytes + kPage - 1) / kPage * kPage;
  size_t size = 8;
  while (size < bytes) size *= 2;
  return size;
}

Driver::Pointer pointer(const void* address) { return reinterpret_cast<Driver::Pointer>(address); }

} // namespace

// ---- the driver
Driver::Driver() {
  void* library = mx::cu::is_available() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : nullptr;
  auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  complete = library && find("cuInit", initialize) && find("cuGetErrorString", get_error) &&
      find("cuDevicePrimaryCtxRetain", retain_context) && find("cuCtxPushCurrent_v2", push_context) &&
      find("cuCtxPopCurrent_v2", pop_context) && find("cuStreamCreate", create_stream) &&
      find("cuStreamSynchronize", synchronize) && find("cuMemAllocAsync", allocate) && find("cuMemFreeAsync", release) &&
      find("cuMemFree_v2", release_managed) && find("cuMemAllocHost_v2", allocate_locked) &&
      find("cuMemcpyHtoDAsync_v2", to_device) && find("cuMemcpyDtoHAsync_v2", to_host) &&
      initialize(0) == 0;
  graphs = complete && find("cuMemcpyDtoDAsync_v2", on_device) && find("cuGraphCreate", create_graph) &&
      find("cuGraphDestroy", destroy_graph) && find("cuGraphAddDependencies_v2", add_dependencies) &&
      find("cuGraphInstantiateWithFlags", instantiate) && find("cuGraphLaunch", launch) &&
      find("cuGraphExecDestroy", destroy_launchable);
}

void Driver::check(int status, const char* what) const {
  if (status == 0) return;
  const char* text = nullptr;
  get_error(status, &text);
  throw std::runtime_error(std::string("[cuda] ") + what + ": " + (text ? text : std::to_string(status)));
}

const Driver& driver() {
  static const Driver found;
  return found;
}

// ---- a device
Device::Current::Current(const Device& device) { driver().check(driver().push_context(device.context_), "no context"); }

Device::Current::~Current() {
  void* context = nullptr;
  driver().pop_context(&context);
}

Device::Device(int index) : index_(index) {
  driver().check(driver().retain_context(&context_, index), "no context");
  Current here(*this);
  driver().check(driver().create_stream(&stream_, kNonBlocking), "no stream");
}

mx::array Device::make(mx::Shape shape, mx::Dtype dtype) {
  const size_t bytes = c_nbytes(shape, dtype);
  if (!bytes) return mx::array(mx::allocator::malloc(0), std::move(shape), dtype);
  mx::allocator::Data owner(mx::allocator::Buffer(take(bytes)), [this](mx::allocator::Buffer dropped) {
    give_back(static_cast<CudaBuffer*>(dropped.ptr()));
  });
  return mx::array(std::move(owner), std::move(shape), dtype);
}

CudaBuffer* Device::take(size_t bytes) {
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
void Device::give_back(CudaBuffer* buffer) noexcept {
  if (buffer->device == index_) {
    std::lock_guard lock(mutex_);
    if (kept_bytes_ + buffer->size <= kMostKept) {
      kept_bytes_ += buffer->size;
      kept_.emplace(buffer->size, buffer);
      return;
    }
  }
  if (driver().push_context(context_) == 0) {
    // MLX has moved it to managed memory if the host has read it
    buffer->device == index_ ? driver().release(pointer(buffer->data), stream_)
                             : driver().release_managed(pointer(buffer->data));
    void* context = nullptr;
    driver().pop_context(&context);
  }
  delete buffer;
}

void Device::fill(void* to, const void* from, size_t bytes) {
  auto part = [&](const Lane& lane, size_t first, size_t count) {
    return upload(lane, pointer(to) + first, static_cast<const char*>(from) + first, count);
  };
  driver().check(driver().synchronize(stream_), "copy to the device");
  if (in_lanes(bytes, part)) return;
  driver().check(driver().to_device(pointer(to), from, bytes, stream_), "copy to the device");
  driver().check(driver().synchronize(stream_), "copy to the device");
}

void Device::read(void* to, const void* from, size_t bytes) {
  auto part = [&](const Lane& lane, size_t first, size_t count) {
    return download(lane, static_cast<char*>(to) + first, pointer(from) + first, count);
  };
  if (in_lanes(bytes, part)) return;
  driver().check(driver().to_host(to, pointer(from), bytes, stream_), "copy to the host");
  driver().check(driver().synchronize(stream_), "copy to the host");
}

int Device::upload(const Lane& lane, Driver::Pointer to, const char* from, size_t bytes) {
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

int Device::download(const Lane& lane, char* to, Driver::Pointer from, size_t bytes) {
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
bool Device::in_lanes(size_t bytes, const Part& part) {
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

Device& device(int index) {
  if (!driver().complete) bad_argument("this MLX has no CUDA device");
  static std::mutex mutex;
  static auto* devices = new std::map<int, Device>; // arrays may outlive every static
  std::lock_guard lock(mutex);
  return devices->try_emplace(index, index).first->second;
}

} // namespace mlxc::cuda
