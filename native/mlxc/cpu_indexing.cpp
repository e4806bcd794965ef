// Elements by index on the CPU: slices along an axis; single elements as ONNX's GatherElements and ScatterElements name
// them. Indices count from either end and are clamped into the axis.
#include "copies.hpp"
#include "extras.h"

using namespace mlxc;

namespace {

enum Kind { take_slices, take_elements, put_elements, add_elements };

template <class E>
struct Take {
  using T = E;
  static void one(T& data, T& value) { value = data; }
  static void row(T* data, T* values, int64_t n) { std::memcpy(values, data, n * sizeof(T)); }
};

template <class E>
struct Put {
  using T = E;
  static void one(T& data, T& value) { data = value; }
  static void row(T* data, T* values, int64_t n) { std::memcpy(data, values, n * sizeof(T)); }
};

template <class E>
struct Add {
  using T = E;
  static void one(T& data, T& value) { data += value; }
  static void row(T* data, T* values, int64_t n) {
    if constexpr (std::is_same_v<T, float>)
      kernels::chosen().binary[kernels::add][kernels::float32][kernels::both](data, values, data, n);
    else
      for (int64_t i = 0; i < n; ++i) one(data[i], values[i]);
  }
};

// Every index with the element that it names, before that is moved along the axis, and the value that belongs to it.
struct Walk {
  mx::Shape shape;
  std::vector<mx::Strides> strides; // of data, indices, values
  int64_t length, step;             // of the axis

  template <class I, class Op>
  void run(char* data, const char* indices, char* values) const {
    using T = typename Op::T;
    auto d = reinterpret_cast<T*>(data);
    auto i = reinterpret_cast<const I*>(indices);
    auto v = reinterpret_cast<T*>(values);
    const int last = int(shape.size()) - 1;
    std::vector<int> at(last, 0);
    for (;;) {
      row<I, Op>(d, i, v);
      int axis = last - 1;
      for (; axis >= 0; --axis) {
        d += strides[0][axis];
        i += strides[1][axis];
        v += strides[2][axis];
        if (++at[axis] < shape[axis]) break;
        d -= strides[0][axis] * shape[axis];
        i -= strides[1][axis] * shape[axis];
        v -= strides[2][axis] * shape[axis];
        at[axis] = 0;
      }
      if (axis < 0) return;
    }
  }

 private:
  template <class I, class Op, class T = typename Op::T>
  void row(T* data, const I* index, T* values) const {
    const int64_t n = shape.back(), d = strides[0].back(), i = strides[1].back(), v = strides[2].back();
    if (i == 0) {
      data += place(*index) * step;
      if (d == 1 && v == 1) return Op::row(data, values, n);
      for (int64_t j = 0; j < n; ++j) Op::one(data[j * d], values[j * v]);
    } else {
      for (int64_t j = 0; j < n; ++j) Op::one(data[j * d + place(index[j * i]) * step], values[j * v]);
    }
  }

  int64_t place(int64_t index) const {
    if (index < 0) index += length;
    return index < 0 ? 0 : index < length ? index : length - 1;
  }
};

using Run = void (Walk::*)(char* data, const char* indices, char* values) const;

template <class I, template <class> class Op>
Run by_width(size_t width) {
  return width == 1   ? &Walk::run<I, Op<uint8_t>>
         : width == 2 ? &Walk::run<I, Op<uint16_t>>
         : width == 4 ? &Walk::run<I, Op<uint32_t>>
                      : &Walk::run<I, Op<uint64_t>>;
}

template <class I>
Run run_of(Kind kind, mx::Dtype dtype) {
  if (kind == put_elements) return by_width<I, Put>(dtype.size());
  if (kind != add_elements) return by_width<I, Take>(dtype.size());
  if (dtype == mx::float32) return &Walk::run<I, Add<float>>;
  if (dtype == mx::float64) return &Walk::run<I, Add<double>>;
  return dtype == mx::int32 ? &Walk::run<I, Add<uint32_t>> : &Walk::run<I, Add<uint64_t>>;
}

mx::Shape slices_shape(const mx::array& data, const mx::array& indices, int axis) {
  mx::Shape shape = data.shape();
  shape.erase(shape.begin() + axis);
  shape.insert(shape.begin() + axis, indices.shape().begin(), indices.shape().end());
  return shape;
}

// Inputs: data, indices and, to put or to add, values.
class CpuIndexed : public CpuPrimitive {
 public:
  CpuIndexed(mx::Stream stream, Kind kind, int axis) : CpuPrimitive(stream), kind_(kind), axis_(axis) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const bool takes = kind_ < put_elements;
    if (takes)
      out.set_data(mx::allocator::malloc(out.nbytes()));
    else
      start(inputs[0], out, encoder);
    const auto &data = takes ? inputs[0] : out, &indices = inputs[1], &values = takes ? out : inputs[2];
    if (!values.size()) return;
    auto walk = walk_of(data, indices, values);
    auto run = indices.dtype() == mx::int32 ? run_of<int32_t>(kind_, out.dtype()) : run_of<int64_t>(kind_, out.dtype());
    // what is only read, data or values, is not written by the run of its kind
    encoder.dispatch([walk = std::move(walk), run, d = const_cast<char*>(data.data<char>()), i = indices.data<char>(),
                      v = const_cast<char*>(values.data<char>())] { (walk.*run)(d, i, v); });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    if (kind_ == take_slices) return {slices_shape(inputs[0], inputs[1], axis_)};
    return {inputs[kind_ == take_elements ? 1 : 0].shape()};
  }
  const char* name() const override { return "CpuIndexed"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const CpuIndexed&>(other);
    return kind_ == o.kind_ && axis_ == o.axis_;
  }

 private:
  // The result as it is before values come.
  static void start(const mx::array& data, mx::array& out, mx::cpu::CommandEncoder& encoder) {
    if (data.flags().row_contiguous && mx::is_donatable(data, out)) return out.copy_shared_buffer(data);
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    encoder.dispatch([copy = Copy(data.itemsize(), data.shape(), data.strides()), from = data.data<char>(),
                      to = out.data<char>()] { copy(from, to); });
  }

  Walk walk_of(const mx::array& data, const mx::array& indices, const mx::array& values) const {
    Walk walk{values.shape(), {data.strides(), indices.strides(), values.strides()}, data.shape(axis_), data.strides()[axis_]};
    auto &d = walk.strides[0], &i = walk.strides[1];
    if (kind_ == take_slices) {
      mx::Strides places(data.ndim() - 1, 0);
      places.insert(places.begin() + axis_, i.begin(), i.end());
      i = std::move(places);
      d.erase(d.begin() + axis_);
      d.insert(d.begin() + axis_, indices.ndim(), 0);
    } else {
      d[axis_] = 0;
    }
    collapse(walk.shape, walk.strides);
    if (walk.shape.empty()) {
      walk.shape.push_back(1);
      for (auto& strides : walk.strides) strides.push_back(0);
    }
    return walk;
  }

  const Kind kind_;
  const int axis_;
};

void check(const mx::array& data, const mx::array& indices, int axis) {
  if (indices.dtype() != mx::int32 && indices.dtype() != mx::int64) bad_argument("int32 or int64 indices are needed");
  if (axis < 0 || axis >= int(data.ndim())) bad_argument("no such axis");
  if (!data.shape(axis) && indices.size()) bad_argument("an index into an axis of length 0");
}

void check_elements(const mx::array& data, const mx::array& indices, int axis) {
  check(data, indices, axis);
  if (indices.ndim() != data.ndim()) bad_argument("as many axes are needed as the data have");
  for (int i = 0; i < int(data.ndim()); ++i)
    if (i != axis && indices.shape(i) > data.shape(i)) bad_argument("more indices along an axis than the data have");
}

mx::array slices(const mx::array& data, const mx::array& indices, int axis, mx::Stream stream) {
  check(data, indices, axis);
  return mx::array(
      slices_shape(data, indices, axis), data.dtype(), std::make_shared<CpuIndexed>(stream, take_slices, axis), {data, indices});
}

mx::array elements(const mx::array& data, const mx::array& indices, int axis, mx::Stream stream) {
  check_elements(data, indices, axis);
  return mx::array(
      indices.shape(), data.dtype(), std::make_shared<CpuIndexed>(stream, take_elements, axis), {data, indices});
}

mx::array replaced(
    const mx::array& data, const mx::array& indices, const mx::array& values, int axis, bool add, mx::Stream stream) {
  check_elements(data, indices, axis);
  if (values.shape() != indices.shape() || values.dtype() != data.dtype())
    bad_argument("a value of the data's type for each index is needed");
  if (add && data.dtype() != mx::float32 && data.dtype() != mx::float64 && data.dtype() != mx::int32 &&
      data.dtype() != mx::int64)
    bad_argument("float32, float64, int32 or int64 is needed to add");
  auto primitive = std::make_shared<CpuIndexed>(stream, add ? add_elements : put_elements, axis);
  return mx::array(data.shape(), data.dtype(), std::move(primitive), {data, indices, values});
}

} // namespace

extern "C" {

int mlxc_py_cpu_take(mlx_array* res, mlx_array a, mlx_array indices, int axis, mlx_stream s)
    MLXC_TRY(put(res, slices(c_ref(a), c_ref(indices), axis, cpu_stream(s)));)

int mlxc_py_cpu_take_elements(mlx_array* res, mlx_array a, mlx_array indices, int axis, mlx_stream s)
    MLXC_TRY(put(res, elements(c_ref(a), c_ref(indices), axis, cpu_stream(s)));)

int mlxc_py_cpu_put_elements(
    mlx_array* res, mlx_array a, mlx_array indices, mlx_array values, int axis, bool add, mlx_stream s)
    MLXC_TRY(put(res, replaced(c_ref(a), c_ref(indices), c_ref(values), axis, add, cpu_stream(s)));)

} // extern "C"
