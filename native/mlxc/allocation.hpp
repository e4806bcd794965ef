// MLX's CPU allocator, which leaves unchecked that malloc fails: the next kernel crashes on NULL. And arrays that lie in
// memory that is not its own.
#pragma once

#include <cstddef>
#include <vector>

namespace mlxc {

// Makes MLX's CPU allocator throw when memory runs out. Does nothing for the Metal and CUDA allocators, which do so
// themselves, and after the first call.
void guard_allocations();

// Whether arrays live in plain malloc'ed memory (no GPU back end).
bool host_allocator();

// Memory of the caller's that arrays of this thread may lie in. It outlives them; they are dropped on this thread. A
// thread has one at a time.
class Lending {
 public:
  Lending();
  ~Lending();
  Lending(const Lending&) = delete;
  Lending& operator=(const Lending&) = delete;

  // The next array of so many bytes is to lie there; before `data` there may be anything.
  void offer(void* data, size_t size) { offered_ = {data, size}; }
  void withdraw() { offered_ = {}; }

 private:
  friend struct Lender;
  struct Piece {
    void* data = nullptr;
    size_t size = 0;
  };
  Piece offered_;
  std::vector<Piece> lent_;
};

} // namespace mlxc
