#include "allocation.hpp"

#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include <unistd.h>

#include "mlx/allocator.h"
#include "mlx/memory.h"

#include "patch.hpp"

namespace mlxc {

using mlx::core::allocator::Allocator;
using mlx::core::allocator::Buffer;

namespace {

// Allocator's first virtual functions, in this order. A member function is called like a function with `this` first.
struct Functions {
  Buffer (*malloc)(Allocator*, size_t);
  void (*free)(Allocator*, Buffer);
  size_t (*size)(const Allocator*, Buffer);
};

Functions original;
size_t memory_size = 0;
thread_local Lending* lending = nullptr;

// Smaller requests are left to malloc alone: what is done for the others costs a lock.
constexpr size_t kLarge = size_t(1) << 20;

// The machine's memory, or the container's limit where that is less.
size_t available_memory() {
  size_t size = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::FILE* f = std::fopen(path, "r");
    if (!f) continue;
    unsigned long long limit = 0;
    if (std::fscanf(f, "%llu", &limit) == 1 && limit < size) size = size_t(limit);
    std::fclose(f);
  }
  return size;
}

[[noreturn]] void out_of_memory(size_t size, const std::string& why) {
  throw std::runtime_error("[malloc] cannot allocate " + std::to_string(size) + " bytes: " + why);
}

// MLX keeps freed buffers for the next of their size, but 32 MiB at most. Fresh ones cost a page fault for every 4096
// bytes, which takes longer than most operations on them, so this grows with what arrays have needed: what a graph's run
// frees amounts to more than is in use at once, because sizes differ. Whoever sets a limit of their own keeps it.
class CacheLimit {
 public:
  // Before a buffer of this size is made.
  void make_room(size_t size) {
    std::lock_guard lock(mutex_);
    if (!ours_) return;
    if (const size_t wanted = 2 * (mlx::core::get_peak_memory() + size); wanted > limit_) {
      const size_t found = mlx::core::set_cache_limit(wanted);
      if (found != limit_) {
        mlx::core::set_cache_limit(found);
        ours_ = false;
        return;
      }
      limit_ = wanted;
    }
    // MLX lets go of nothing for the sake of what is freed next
    if (mlx::core::get_cache_memory() + size > limit_) mlx::core::clear_cache();
  }

 private:
  std::mutex mutex_;
  size_t limit_ = size_t(32) << 20;
  bool ours_ = true;
};

CacheLimit& cache_limit() {
  static auto* limit = new CacheLimit; // never destroyed: arrays may be made while the process ends
  return *limit;
}

} // namespace

// What stands in for CommonAllocator's functions.
struct Lender {
  static const Lending::Piece* lent(Buffer buffer) {
    if (lending)
      for (const auto& piece : lending->lent_)
        if (buffer.ptr() == header_of(piece)) return &piece;
    return nullptr;
  }

  // MLX's buffers point at a size_t that precedes the data; nothing reads this one.
  static void* header_of(const Lending::Piece& piece) { return static_cast<size_t*>(piece.data) - 1; }

  static Buffer malloc(Allocator* self, size_t size) {
    if (lending && lending->offered_.data && lending->offered_.size == size) {
      lending->lent_.push_back(lending->offered_);
      lending->withdraw();
      return Buffer(header_of(lending->lent_.back()));
    }
    if (size >= kLarge) {
      const size_t in_use = mlx::core::get_active_memory();
      if (size > memory_size || in_use > memory_size - size)
        out_of_memory(
            size, std::to_string(in_use) + " of " + std::to_string(memory_size) + " bytes of memory are in use by arrays");
      cache_limit().make_room(size);
    }
    Buffer buffer = original.malloc(self, size);
    if (size && !buffer.ptr()) out_of_memory(size, "the system has no memory left");
    return buffer;
  }

  static void free(Allocator* self, Buffer buffer) {
    if (!lent(buffer)) original.free(self, buffer);
  }

  static size_t size(const Allocator* self, Buffer buffer) {
    const auto* piece = lent(buffer);
    return piece ? piece->size : original.size(self, buffer);
  }
};

namespace {

void install() {
  auto& allocator = mlx::core::allocator::allocator();
  memory_size = available_memory();
  auto** entries = *reinterpret_cast<void***>(&allocator);
  std::memcpy(&original, entries, sizeof original);
  void* const ours[] = {
      reinterpret_cast<void*>(&Lender::malloc),
      reinterpret_cast<void*>(&Lender::free),
      reinterpret_cast<void*>(&Lender::size)};
  // Where it is refused, the allocator stays as it is, which is no worse than MLX alone. malloc comes last: what it
  // lends must not be freed.
  for (int i : {2, 1, 0})
    if (!patch(entries + i, ours[i])) return;
}

} // namespace

Lending::Lending() { lending = this; }

Lending::~Lending() { lending = nullptr; }

bool host_allocator() {
  static const bool host = [] {
    const auto& allocator = mlx::core::allocator::allocator();
    return std::string(typeid(allocator).name()).find("CommonAllocator") != std::string::npos;
  }();
  return host;
}

void guard_allocations() {
  static const bool done = [] {
    if (host_allocator()) install();
    return true;
  }();
  (void)done;
}

} // namespace mlxc
