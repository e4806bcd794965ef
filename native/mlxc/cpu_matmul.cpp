// Products of matrices on the CPU of which neither is known beforehand: the second is packed, then each row of the first
// is a pixel of a convolution with one element.
#include "cpu_matmul.hpp"

#include <cstring>

#include "cpu_windows.hpp"

namespace mlxc {

namespace {

using kernels::block;
using kernels::Window;

// Matrices [rows, columns] in blocks of columns, the last filled up with zeros.
class Packing {
 public:
  Packing(int rows, int columns, int64_t row, int64_t column)
      : rows_(rows), columns_(columns), row_(row), column_(column), block_(sizeof(float), {rows, block}, {row, column}),
        packed_((size_t(columns) + block - 1) / block * rows * block) {}

  const float* of(const float* matrix) {
    if (matrix == last_) return packed_.data();
    last_ = matrix;
    float* to = packed_.data();
    int done = 0;
    for (; done + block <= columns_; done += block, to += size_t(rows_) * block)
      block_(reinterpret_cast<const char*>(matrix + done * column_), reinterpret_cast<char*>(to));
    for (int k = 0; k < rows_; ++k)
      for (int j = done; j < columns_; ++j) to[size_t(k) * block + j - done] = matrix[k * row_ + j * column_];
    return packed_.data();
  }

 private:
  const int rows_, columns_;
  const int64_t row_, column_;
  const Copy block_;
  std::vector<float> packed_;
  const float* last_ = nullptr;
};

struct Products {
  mx::Shape batch;
  mx::Strides a, b; // from one matrix of the batch to the next, of a row and a column
  int rows, terms, columns;

  // after(the first of some rows, how many): what is done next with them
  template <class After>
  void run(const float* left, const float* right, float* out, After after) const {
    const size_t outer = batch.size();
    Packing packing(terms, columns, b[outer], b[outer + 1]);
    const auto convolve = kernels::chosen().convolve;
    Window window{};
    window.channels = terms;
    window.out_channels = columns;
    window.kernel_height = window.kernel_width = window.groups = 1;
    std::vector<const float*> seen(kernels::chunk + 16);
    std::vector<int> at(outer, 0);
    for (;;) {
      const float* weights = packing.of(right);
      for (int first = 0; first < rows; first += kernels::chunk) {
        const int n = std::min(kernels::chunk, rows - first);
        for (size_t i = 0; i < seen.size(); ++i) seen[i] = left + std::min<int64_t>(first + i, rows - 1) * a[outer];
        convolve(seen.data(), weights, nullptr, out, n, window);
        after(out, n);
        out += size_t(n) * columns;
      }
      int axis = int(outer) - 1;
      for (; axis >= 0; --axis) {
        left += a[axis];
        right += b[axis];
        if (++at[axis] < batch[axis]) break;
        left -= a[axis] * batch[axis];
        right -= b[axis] * batch[axis];
        at[axis] = 0;
      }
      if (axis < 0) return;
    }
  }
};

class CpuMatmul : public CpuWindowed {
 public:
  CpuMatmul(mx::Stream stream, std::vector<Operation> after) : CpuWindowed(stream, Window{}, 2, std::move(after)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const auto &a = inputs[0], &b = inputs[1];
    Products products{mx::Shape(a.shape().begin(), a.shape().end() - 2), a.strides(), b.strides(), a.shape(-2), a.shape(-1),
                      b.shape(-1)};
    // a row of the first is read as it lies, element by element
    const bool in_rows = a.strides(-1) == 1;
    if (!in_rows)
      for (int64_t axis = a.ndim() - 1, step = 1; axis >= 0; step *= a.shape(axis--)) products.a[axis] = step;
    encoder.dispatch([products = std::move(products), left = in_rows ? a.data<float>() : dense(a, encoder),
                      right = b.data<float>(), to = out.data<float>(), after = after_, others = others(inputs, encoder)] {
      Loop loop(after, products.columns, others);
      products.run(left, right, to, [&](float* made, int n) {
        if (!after.empty()) loop.rows(made, (made - to) / products.columns, n);
      });
    });
  }

  std::shared_ptr<CpuPrimitive> followed_by(std::vector<Operation> operations) override {
    return std::make_shared<CpuMatmul>(stream(), std::move(operations));
  }
  const char* name() const override { return "CpuMatmul"; }
};

} // namespace

std::shared_ptr<mx::Primitive> own_matmul(
    mx::Primitive& matmul, const mx::Shape& a, const mx::Shape& b, mx::Dtype dtype) {
  const bool narrow = std::strncmp(kernels::chosen().name, "avx512", 6) != 0;
  if (matmul.device() != mx::Device::cpu || dtype != mx::float32 || narrow) return nullptr;
  if (a.size() < 2 || a.size() != b.size() || a.end()[-2] < 16 || b.back() < 8 || a.back() < 4) return nullptr;
  // for few rows, packing a matrix that is larger than the cache takes longer than the product
  if (int64_t(a.back()) * b.back() > 1 << 20 && a.end()[-2] < 64) return nullptr;
  // whoever gives BLAS several threads gains by them from about here on
  if (int64_t(a.end()[-2]) * a.back() * b.back() > 1 << 28) return nullptr;
  return std::make_shared<CpuMatmul>(matmul.stream(), std::vector<Operation>{});
}

} // namespace mlxc
