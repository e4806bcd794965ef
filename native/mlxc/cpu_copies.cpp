#include "copies.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace mlxc {

namespace {

// In blocks: where the rows' axis is the dense one (a transposed image), each cache line that is read then serves several
// rows. The inner loop is the longer one.
template <class T>
void copy_plane(
    const T* from, T* to, int64_t rows, int64_t columns, int64_t row_step, int64_t column_step, int64_t to_row) {
  if (column_step == 1) {
    for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * to_row, from + r * row_step, columns * sizeof(T));
    return;
  }
  constexpr int64_t few = 8, block = 16, long_block = 512;
  if (columns < few) {
    for (int64_t first = 0; first < rows; first += long_block)
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = first; r < std::min(first + long_block, rows); ++r)
          to[r * to_row + c] = from[r * row_step + c * column_step];
    return;
  }
  const int64_t wide = rows < few ? long_block : block;
  for (int64_t first = 0; first < columns; first += wide) {
    const int64_t end = std::min(first + wide, columns);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = first; c < end; ++c) to[r * to_row + c] = from[r * row_step + c * column_step];
  }
}

} // namespace

Copy::Copy(size_t width, mx::Shape shape, mx::Strides strides) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) shape = {0}, strides = {1};
  std::vector<mx::Strides> all{std::move(strides)};
  collapse(shape, all);
  const auto& steps = all[0];
  const int last = int(shape.size()) - 1;
  int rows = last - 1;
  if (last >= 0) {
    columns_ = shape[last];
    column_step_ = steps[last];
    const auto dense = std::find(steps.begin(), steps.end(), 1);
    if (column_step_ != 1 && dense != steps.end()) rows = int(dense - steps.begin());
  }
  int64_t to = columns_;
  for (int axis = last - 1; axis >= 0; to *= shape[axis--]) {
    if (axis == rows) {
      rows_ = shape[axis];
      row_step_ = steps[axis];
      to_row_ = to;
    } else {
      outer_.push_back(shape[axis]);
      outer_steps_.push_back(steps[axis]);
      outer_to_.push_back(to);
    }
  }
  switch (width) {
    case 1: run = planes<uint8_t>; break;
    case 2: run = planes<uint16_t>; break;
    case 4: run = planes<uint32_t>; break;
    case 8: run = planes<uint64_t>; break;
    default: bad_argument("elements of 1, 2, 4 or 8 bytes are needed");
  }
}

template <class T>
void Copy::planes(const char* from, char* to, const Copy& copy) {
  auto source = reinterpret_cast<const T*>(from);
  auto target = reinterpret_cast<T*>(to);
  std::vector<int> at(copy.outer_.size(), 0);
  for (;;) {
    copy_plane(source, target, copy.rows_, copy.columns_, copy.row_step_, copy.column_step_, copy.to_row_);
    size_t axis = 0;
    for (; axis < at.size(); ++axis) {
      source += copy.outer_steps_[axis];
      target += copy.outer_to_[axis];
      if (++at[axis] < copy.outer_[axis]) break;
      source -= copy.outer_steps_[axis] * copy.outer_[axis];
      target -= copy.outer_to_[axis] * copy.outer_[axis];
      at[axis] = 0;
    }
    if (axis == at.size()) return;
  }
}

namespace {

// The strides of elements in another shape where they lie, if there are any.
std::optional<mx::Strides> strides_in(const mx::Shape& shape, const mx::array& a) {
  std::vector<int64_t> sizes(a.shape().begin(), a.shape().end()); // together they may be more than an int counts
  std::vector<mx::Strides> steps{a.strides()};
  collapse(sizes, steps);
  mx::Strides strides(shape.size(), 1);
  size_t axis = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    if (axis == sizes.size() || sizes[axis] % shape[i]) return {};
    sizes[axis] /= shape[i];
    strides[i] = steps[0][axis] * sizes[axis];
    if (sizes[axis] == 1) ++axis;
  }
  return strides;
}

// The same elements in the result's shape: where they lie, if they may, or copied row by row.
class CpuRows : public CpuPrimitive {
 public:
  // dense: they may lie in no other way than row by row, and keep their shape
  CpuRows(mx::Stream stream, bool dense, mx::Shape shape)
      : CpuPrimitive(stream), dense_(dense), shape_(std::move(shape)) {}

  const mx::Shape& shape() const { return shape_; }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const auto& in = inputs[0];
    if (const auto strides = place(in, out)) {
      auto flags = in.flags();
      const auto [size, by_row, by_column] = mx::check_contiguity(out.shape(), *strides);
      flags.row_contiguous = by_row;
      flags.col_contiguous = by_column;
      return out.copy_shared_buffer(in, *strides, flags, in.data_size());
    }
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    mx::cpu::get_command_encoder(stream()).dispatch(
        [copy = Copy(in.itemsize(), in.shape(), in.strides()), from = in.data<char>(), to = out.data<char>()] {
          copy(from, to);
        });
  }

  const char* name() const override { return "CpuRows"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const CpuRows&>(other);
    return dense_ == o.dense_ && shape_ == o.shape_;
  }

 private:
  std::optional<mx::Strides> place(const mx::array& in, const mx::array& out) const {
    // a small array does not hold a large buffer
    constexpr size_t spare = 16384;
    if (dense_ && (!in.flags().row_contiguous || in.buffer_size() > out.nbytes() + spare)) return {};
    return in.size() ? strides_in(out.shape(), in) : std::nullopt;
  }

  const bool dense_;
  const mx::Shape shape_;
};

} // namespace

std::shared_ptr<mx::Primitive> own_copy(mx::Primitive& primitive) {
  if (primitive.device() != mx::Device::cpu) return nullptr;
  const std::string name = primitive.name();
  if (name == "Contiguous") return std::make_shared<CpuRows>(primitive.stream(), true, mx::Shape());
  if (name != "Reshape") return nullptr;
  return std::make_shared<CpuRows>(primitive.stream(), false, static_cast<mx::Reshape&>(primitive).state());
}

const mx::Shape& shape_of_rows(const mx::Primitive& rows) { return static_cast<const CpuRows&>(rows).shape(); }

mx::array in_rows(const mx::array& x, mx::Shape shape, mx::Stream stream) {
  return {shape, x.dtype(), std::make_shared<CpuRows>(stream, false, shape), {x}};
}

const float* dense(const mx::array& a, mx::cpu::CommandEncoder& encoder) {
  if (a.flags().row_contiguous) return a.data<float>();
  mx::array copy(a.shape(), a.dtype(), nullptr, {});
  copy.set_data(mx::allocator::malloc(copy.nbytes()));
  auto target = copy.data<char>();
  encoder.add_temporary(copy);
  encoder.dispatch([source = a.data<char>(), target, all = Copy(sizeof(float), a.shape(), a.strides())] {
    all(source, target);
  });
  return reinterpret_cast<const float*>(target);
}

} // namespace mlxc
