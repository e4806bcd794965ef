#include "cuda_driver.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include <dlfcn.h>

namespace mlxc::cuda {

namespace {

constexpr unsigned kNonBlocking = 1;
constexpr size_t kMostKept = size_t(256) << 20;
constexpr size_t kLarge = size_t(4) << 20, kLanes = 4;

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
      find("cuStreamSynchronize", synchronize) && find("cuEventCreate", create_event) &&
      find("cuEventRecord", record) && find("cuEventSynchronize", await_event) && find("cuMemAllocAsync", allocate) &&
      find("cuMemFreeAsync", release) &&
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

std::shared_ptr<void> Device::launchable(void* graph) {
  void* made = nullptr;
  driver().check(driver().instantiate(&made, graph, 0), "no graph");
  return {made, [this](void* dropped) {
            if (driver().push_context(context_) != 0) return;
            driver().destroy_launchable(dropped);
            void* context = nullptr;
            driver().pop_context(&context);
          }};
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
    return lane.upload(pointer(to) + first, static_cast<const char*>(from) + first, count);
  };
  driver().check(driver().synchronize(stream_), "copy to the device");
  if (in_lanes(bytes, part)) return;
  driver().check(driver().to_device(pointer(to), from, bytes, stream_), "copy to the device");
  driver().check(driver().synchronize(stream_), "copy to the device");
}

void Device::read(void* to, const void* from, size_t bytes) {
  auto part = [&](const Lane& lane, size_t first, size_t count) {
    return lane.download(static_cast<char*>(to) + first, pointer(from) + first, count);
  };
  if (in_lanes(bytes, part)) return;
  driver().check(driver().to_host(to, pointer(from), bytes, stream_), "copy to the host");
  driver().check(driver().synchronize(stream_), "copy to the host");
}

// Whether `part` has copied pieces, in all lanes at once; not for a small copy, or while another one has the lanes.
bool Device::in_lanes(size_t bytes, const std::function<int(const Lane&, size_t first, size_t count)>& part) {
  if (bytes < kLarge) return false;
  std::unique_lock lock(lanes_mutex_, std::try_to_lock);
  if (!lock || no_lanes_) return false;
  while (lanes_.size() < std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kLanes)) {
    Lane lane;
    no_lanes_ = lane.make() != 0; // for good: what was made of it stays, once
    if (no_lanes_) return false;
    lanes_.push_back(lane);
  }
  std::vector<int> status(lanes_.size());
  crew_.run(lanes_.size(), [&](size_t i) {
    if ((status[i] = driver().push_context(context_)) != 0) return;
    const size_t first = bytes * i / lanes_.size(), last = bytes * (i + 1) / lanes_.size();
    status[i] = part(lanes_[i], first, last - first);
    void* context = nullptr;
    driver().pop_context(&context);
  });
  driver().check(*std::max_element(status.begin(), status.end()), "copy");
  return true;
}

// ---- lanes
int Lane::make() {
  constexpr unsigned kNoTiming = 2;
  if (int status = driver().create_stream(&stream, kNonBlocking)) return status;
  for (auto& event : copied)
    if (int status = driver().create_event(&event, kNoTiming)) return status;
  return driver().allocate_locked(reinterpret_cast<void**>(&locked), kChunk * kChunks);
}

int Lane::upload(Driver::Pointer to, const char* from, size_t bytes) const {
  for (size_t done = 0, k = 0; done < bytes; ++k) {
    const size_t i = k % kChunks, count = std::min(kChunk, bytes - done);
    if (k >= kChunks)
      if (int status = driver().await_event(copied[i])) return status;
    std::memcpy(locked + i * kChunk, from + done, count);
    if (int status = driver().to_device(to + done, locked + i * kChunk, count, stream)) return status;
    if (int status = driver().record(copied[i], stream)) return status;
    done += count;
  }
  return driver().synchronize(stream);
}

int Lane::download(char* to, Driver::Pointer from, size_t bytes) const {
  const size_t chunks = (bytes + kChunk - 1) / kChunk;
  const auto start = [&](size_t k) {
    const size_t i = k % kChunks, first = k * kChunk;
    if (int status = driver().to_host(locked + i * kChunk, from + first, std::min(kChunk, bytes - first), stream)) return status;
    return driver().record(copied[i], stream);
  };
  for (size_t k = 0; k < std::min(chunks, kChunks); ++k)
    if (int status = start(k)) return status;
  for (size_t k = 0; k < chunks; ++k) {
    const size_t i = k % kChunks, first = k * kChunk;
    if (int status = driver().await_event(copied[i])) return status;
    std::memcpy(to + first, locked + i * kChunk, std::min(kChunk, bytes - first));
    if (k + kChunks < chunks)
      if (int status = start(k + kChunks)) return status;
  }
  return 0;
}

void Crew::run(size_t n, const std::function<void(size_t)>& work) {
  std::unique_lock lock(mutex_);
  for (; members_ + 1 < n; ++members_) std::thread(&Crew::serve, this, members_ + 1).detach();
  work_ = &work;
  wanted_ = n;
  busy_ = n - 1;
  ++calls_;
  called_.notify_all();
  lock.unlock();
  work(0);
  lock.lock();
  done_.wait(lock, [&] { return busy_ == 0; });
}

void Crew::serve(size_t i) {
  std::unique_lock lock(mutex_);
  for (size_t seen = calls_ - 1;;) { // it is started by the first call that wants it, under the lock
    called_.wait(lock, [&] { return calls_ != seen; });
    seen = calls_;
    if (i >= wanted_) continue;
    lock.unlock();
    (*work_)(i);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

Device& device(int index) {
  if (!driver().complete) bad_argument("this MLX has no CUDA device");
  static std::mutex mutex;
  static auto* devices = new std::map<int, Device>; // arrays may outlive every static
  std::lock_guard lock(mutex);
  return devices->try_emplace(index, index).first->second;
}

} // namespace mlxc::cuda
