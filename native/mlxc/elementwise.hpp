// Chains of elementwise float32 arithmetic.
#pragma once

#include <algorithm>
#include <set>

#include "copies.hpp"

namespace mlxc {

// On registers: first the inputs, then one for each operation before. b < 0: a function of a alone.
struct Operation {
  int kind;
  float p, q;
  int a, b;
};

inline bool alike(const Operation& x, const Operation& y) {
  return x.kind == y.kind && x.p == y.p && x.q == y.q && x.a == y.a && x.b == y.b;
}

// A tensor's place in memory as the loops see it: rows and columns below some outer axes.
struct Operand {
  const float* data;
  mx::Strides outer;
  int64_t row, column;
  bool scalar() const {
    return !row && !column && std::all_of(outer.begin(), outer.end(), [](auto step) { return !step; });
  }
};

// A chain of operations, done on a block of elements after the other.
class Loop {
 public:
  static constexpr int block_size = 1024; // floats

  Loop(const std::vector<Operation>& operations, mx::Shape shape, std::vector<mx::Strides> strides,
       const std::vector<const float*>& data, float* out)
      : operations_(operations), out_(out) {
    collapse(shape, strides);
    columns_ = shape.empty() ? 1 : shape.back();
    rows_ = shape.size() < 2 ? 1 : shape[shape.size() - 2];
    const size_t outer = shape.size() < 2 ? 0 : shape.size() - 2;
    outer_ = mx::Shape(shape.begin(), shape.begin() + outer);
    for (size_t i = 0; i < data.size(); ++i) {
      const auto& s = strides[i];
      operands_.push_back({data[i], mx::Strides(s.begin(), s.begin() + outer), s.size() < 2 ? 0 : s[outer],
                           s.empty() ? 0 : s.back()});
    }
    plan();
  }

  // On rows of a result that is made elsewhere, `columns` wide: the first operand, each time given to `rows`. The others
  // are one element, as many as there are columns, or as many as the result has.
  Loop(const std::vector<Operation>& operations, int columns, const std::vector<std::pair<const float*, size_t>>& others)
      : operations_(operations), columns_(columns) {
    operands_.push_back({nullptr, {}, columns, 1});
    for (auto [data, size] : others)
      operands_.push_back({data, {}, size == 1 || size == size_t(columns) ? 0 : columns, size == 1 ? 0 : 1});
    plan();
  }

  // `n` of them from `first` on, in place.
  void rows(float* made, int64_t first, int64_t n) {
    std::vector<const float*> base{made};
    for (size_t i = 1; i < operands_.size(); ++i) base.push_back(operands_[i].data + first * operands_[i].row);
    out_ = made;
    rows_ = n;
    plane(base);
  }

  void run() {
    std::vector<int> at(outer_.size(), 0);
    std::vector<const float*> base;
    for (const auto& operand : operands_) base.push_back(operand.data);
    for (;;) {
      plane(base);
      int axis = int(outer_.size()) - 1;
      for (; axis >= 0; --axis) {
        for (size_t i = 0; i < base.size(); ++i) base[i] += operands_[i].outer[axis];
        if (++at[axis] < outer_[axis]) break;
        for (size_t i = 0; i < base.size(); ++i) base[i] -= operands_[i].outer[axis] * outer_[axis];
        at[axis] = 0;
      }
      if (axis < 0) return;
    }
  }

 private:
  // Which inputs are used as scalars, and where intermediate results lie: as few buffers as their lives allow.
  void plan() {
    const size_t n = operands_.size();
    filled_.assign(n, false);
    std::vector<bool> scalar(n);
    for (size_t i = 0; i < n; ++i) scalar[i] = operands_[i].scalar();
    auto is_scalar = [&](int reg) { return reg >= 0 && size_t(reg) < n && scalar[reg]; };
    std::vector<size_t> last(n + operations_.size(), 0);
    for (size_t i = 0; i < operations_.size(); ++i) {
      const auto& o = operations_[i];
      if (is_scalar(o.a) && (o.b < 0 || is_scalar(o.b))) filled_[o.a] = true;
      last[o.a] = i;
      if (o.b >= 0) last[o.b] = i;
    }
    buffer_.assign(n + operations_.size(), -1);
    scalar_.assign(n, false);
    int buffers = 0;
    for (size_t i = 0; i < n; ++i) {
      scalar_[i] = scalar[i] && !filled_[i];
      if (!scalar_[i]) buffer_[i] = buffers++;
    }
    std::vector<int> free;
    for (size_t i = 0; i + 1 < operations_.size(); ++i) {
      for (int reg : std::set<int>{operations_[i].a, operations_[i].b})
        if (reg >= int(n) && last[reg] == i) free.push_back(buffer_[reg]);
      if (free.empty()) free.push_back(buffers++);
      buffer_[n + i] = free.back();
      free.pop_back();
    }
    memory_.resize(size_t(buffers) * block_size);
    cached_.assign(n, nullptr);
  }

  float* buffer(int reg) { return memory_.data() + size_t(buffer_[reg]) * block_size; }

  void plane(const std::vector<const float*>& base) {
    std::vector<const float*> seen(operands_.size());
    const int64_t in_block = std::max<int64_t>(1, block_size / columns_);
    for (int64_t row = 0; row < rows_; row += in_block) {
      const int64_t rows = std::min(in_block, rows_ - row);
      for (int64_t column = 0; column < columns_; column += block_size) {
        const int64_t columns = std::min<int64_t>(block_size, columns_ - column);
        for (size_t i = 0; i < operands_.size(); ++i)
          seen[i] = operand(int(i), base[i] + row * operands_[i].row + column * operands_[i].column, rows, columns);
        compute(seen, size_t(rows * columns));
        out_ += rows * columns;
      }
    }
  }

  // `rows` times `columns` elements side by side: where they lie, or a copy.
  const float* operand(int i, const float* from, int64_t rows, int64_t columns) {
    const auto& o = operands_[i];
    if (scalar_[i] || (o.column == 1 && (rows == 1 || o.row == columns))) return from;
    // what is the same for every row is copied once, as often as a block may need it
    const bool repeats = !o.row && (!o.column || columns == columns_);
    float* const to = buffer(i);
    if (repeats && cached_[i] == from) return to;
    cached_[i] = repeats ? from : nullptr;
    if (repeats && !o.column) {
      std::fill_n(to, block_size, *from);
      return to;
    }
    const int64_t copies = repeats ? std::max<int64_t>(1, block_size / columns) : rows;
    for (int64_t row = 0; row < copies; ++row)
      for (int64_t c = 0; c < columns; ++c) to[row * columns + c] = from[row * o.row + c * o.column];
    return to;
  }

  void compute(const std::vector<const float*>& seen, size_t n) {
    const auto& table = kernels::chosen();
    const int inputs = int(operands_.size());
    auto read = [&](int reg) { return reg < inputs ? seen[reg] : buffer(reg); };
    auto is_scalar = [&](int reg) { return reg < inputs && scalar_[reg]; };
    for (size_t i = 0; i < operations_.size(); ++i) {
      const auto& o = operations_[i];
      float* to = i + 1 == operations_.size() ? out_ : buffer(inputs + int(i));
      if (o.b < 0) {
        table.unary[o.kind][kernels::float32](read(o.a), to, n, o.p, o.q);
        continue;
      }
      const auto operands = is_scalar(o.a) ? kernels::scalar_first : is_scalar(o.b) ? kernels::scalar_second : kernels::both;
      table.binary[o.kind][kernels::float32][operands](read(o.a), read(o.b), to, n);
    }
  }

  const std::vector<Operation>& operations_;
  std::vector<Operand> operands_;
  mx::Shape outer_;
  int64_t rows_ = 1, columns_ = 1;
  std::vector<bool> scalar_, filled_;
  std::vector<int> buffer_;
  std::vector<float> memory_;
  std::vector<const float*> cached_;
  float* out_ = nullptr;
};

} // namespace mlxc
