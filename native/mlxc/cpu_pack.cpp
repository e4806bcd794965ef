// Weights on the CPU laid out as convolutions and products take them: 16 output channels side by side.
#include <algorithm>
#include <cstring>

#include "cpu_primitives.hpp"
#include "extras.h"

using namespace mlxc;

namespace {

constexpr int block = kernels::block;

// Lanes of two vectors by number, those of the second after those of the first.
template <int... lanes, class V>
V lanes_of(V a, V b) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, lanes...);
#else
  return __builtin_shuffle(a, b, V{lanes...});
#endif
}

using Four = uint32_t __attribute__((vector_size(16)));

Four load(const uint32_t* from) {
  Four four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

// 16 rows of n units of 4 bytes, `step` units apart, to n rows of 16.
void transpose(const uint32_t* rows, size_t step, size_t n, uint32_t* to) {
  const size_t whole = n / 4 * 4;
  for (size_t u = 0; u < whole; u += 4)
    for (int o = 0; o < block; o += 4) {
      const auto row = rows + o * step + u;
      const Four a = load(row), b = load(row + step), c = load(row + 2 * step), d = load(row + 3 * step);
      const Four low = lanes_of<0, 4, 1, 5>(a, b), high = lanes_of<2, 6, 3, 7>(a, b);
      const Four low2 = lanes_of<0, 4, 1, 5>(c, d), high2 = lanes_of<2, 6, 3, 7>(c, d);
      const Four made[] = {
          lanes_of<0, 1, 4, 5>(low, low2), lanes_of<2, 3, 6, 7>(low, low2),
          lanes_of<0, 1, 4, 5>(high, high2), lanes_of<2, 3, 6, 7>(high, high2)};
      for (int i = 0; i < 4; ++i) std::memcpy(to + (u + i) * block + o, &made[i], sizeof made[i]);
    }
  for (size_t u = whole; u < n; ++u)
    for (int o = 0; o < block; ++o) to[u * block + o] = rows[o * step + u];
}

using Bytes = int8_t __attribute__((vector_size(block)));
using Shorts = int16_t __attribute__((vector_size(2 * block)));

// 4 rows of 16 bytes, one byte of each at a time; adds what each column holds.
void interleave_four(const int8_t* from, int64_t step, int moved, int8_t* to, Shorts& sums) {
  Bytes rows[4];
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&rows[i], from + i * step, sizeof rows[i]);
    rows[i] ^= int8_t(moved);
    sums += __builtin_convertvector(rows[i], Shorts);
  }
  const auto low = [](auto a, auto b) {
    return lanes_of<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(a, b);
  };
  const auto high = [](auto a, auto b) {
    return lanes_of<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(a, b);
  };
  // even rows with even, odd with odd: the second zip then puts neighbours side by side
  const Bytes even_low = low(rows[0], rows[2]), even_high = high(rows[0], rows[2]);
  const Bytes odd_low = low(rows[1], rows[3]), odd_high = high(rows[1], rows[3]);
  const Bytes made[] = {
      low(even_low, odd_low), high(even_low, odd_low), low(even_high, odd_high), high(even_high, odd_high)};
  std::memcpy(to, made, sizeof made);
}

// The sum of floats, which nobody asks for.
struct Nothing {
  void operator+=(float) {}
};

// Weights [out, height, width, channels of a group] of any strides. Units of 4 bytes stay together: a float, or 4
// channels of a byte each.
struct Weights {
  const void* data;
  int shape[4];
  int64_t strides[4];
  int groups;

  int made() const { return shape[0] / groups; }
  int blocks() const { return (made() + block - 1) / block; }
  int units(size_t width) const { return int((shape[3] * width + 3) / 4); }
  int64_t length(size_t width) const { return int64_t(shape[1]) * shape[2] * units(width); }

  // f takes an element to what is packed; `sums` is of these, for each output.
  template <class T, class Sum, class Function>
  void pack(T* to, Sum* sums, Function f) const {
    // One cache line more than a row takes: 16 that lie a multiple of 4 KiB apart have no room in a cache together.
    const size_t length = this->length(sizeof(T)), step = length + 16;
    std::vector<uint32_t> rows(strides[0] == 1 ? 0 : step * block);
    auto target = reinterpret_cast<uint32_t*>(to);
    for (int g = 0; g < groups; ++g)
      for (int b = 0; b < blocks(); ++b, target += length * block) {
        const int first = g * made() + b * block, count = std::min(block, made() - b * block);
        const auto from = static_cast<const T*>(data) + first * strides[0];
        if (strides[0] == 1) {
          interleave(from, count, reinterpret_cast<T*>(target), sums + first, f);
          continue;
        }
        for (int o = 0; o < count; ++o)
          sums[first + o] = row<T, Sum>(from + o * strides[0], reinterpret_cast<T*>(&rows[o * step]), f);
        std::fill(rows.begin() + count * step, rows.end(), 0);
        transpose(rows.data(), step, length, target);
      }
  }

 private:
  // One output, channels last.
  template <class T, class Sum, class Function>
  Sum row(const T* from, T* to, Function f) const {
    const int channels = shape[3], filled = units(sizeof(T)) * int(4 / sizeof(T));
    const int64_t step = strides[3];
    Sum sum{};
    for (int y = 0; y < shape[1]; ++y)
      for (int x = 0; x < shape[2]; ++x, to += filled) {
        const T* at = from + y * strides[1] + x * strides[2];
        for (int c = 0; c < channels; ++c) sum += to[c] = f(at[c * step]);
      }
    return sum;
  }

  // Outputs that lie side by side.
  template <class T, class Sum, class Function>
  void interleave(const T* from, int count, T* to, Sum* sums, Function f) const {
    constexpr int quad = 4 / sizeof(T);
    std::fill_n(sums, count, Sum{});
    if (count < block || shape[3] % quad) std::memset(to, 0, length(sizeof(T)) * block * 4);
    for (int y = 0; y < shape[1]; ++y)
      for (int x = 0; x < shape[2]; ++x, to += int64_t(units(sizeof(T))) * block * quad)
        for (int c = whole_blocks(from + y * strides[1] + x * strides[2], count, to, sums, f); c < shape[3]; ++c) {
          const T* at = from + y * strides[1] + x * strides[2] + c * strides[3];
          T* made = to + int64_t(c / quad) * block * quad + c % quad;
          for (int o = 0; o < count; ++o) sums[o] += made[o * quad] = f(at[o]);
        }
  }

  // As many channels of 16 outputs of bytes as fill units; how many that are.
  template <class T, class Sum, class Function>
  int whole_blocks(const T* from, int count, T* to, Sum* sums, Function f) const {
    int c = 0;
    if constexpr (sizeof(T) == 1) {
      constexpr int most = 32767 / 128 / 4; // units whose sums fit in 16 bits
      while (count == block && c + 4 <= shape[3]) {
        Shorts some{};
        for (int unit = 0; unit < most && c + 4 <= shape[3]; ++unit, c += 4)
          interleave_four(from + c * strides[3], strides[3], f.moved, to + int64_t(c) * block, some);
        for (int o = 0; o < block; ++o) sums[o] += some[o];
      }
    }
    return c;
  }
};

struct Same {
  float operator()(float x) const { return x; }
};

struct Moved {
  int moved;
  int8_t operator()(int8_t x) const { return int8_t(x ^ moved); }
};

// Outputs: blocks; of 8-bit weights also the sum for each output channel.
class CpuPack : public mx::Primitive {
 public:
  CpuPack(mx::Stream stream, int groups) : mx::Primitive(stream), groups_(groups) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const auto& w = inputs[0];
    for (auto& output : outputs) output.set_data(mx::allocator::malloc(output.nbytes()));
    Weights weights{w.data<void>(), {}, {}, groups_};
    std::copy_n(w.shape().begin(), 4, weights.shape);
    std::copy_n(w.strides().begin(), 4, weights.strides);
    auto& encoder = mx::cpu::get_command_encoder(stream());
    if (w.dtype() == mx::float32) {
      encoder.dispatch([weights, to = outputs[0].data<float>()] {
        std::vector<Nothing> sums(weights.shape[0]);
        weights.pack(to, sums.data(), Same{});
      });
      return;
    }
    encoder.dispatch([weights, to = outputs[0].data<int8_t>(), sums = outputs[1].data<int32_t>(),
                      moved = w.dtype() == mx::uint8 ? 0x80 : 0] {
      weights.pack(to, sums, Moved{moved});
    });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("CpuPack runs on the CPU only");
  }

  const char* name() const override { return "CpuPack"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return groups_ == static_cast<const CpuPack&>(other).groups_;
  }

 private:
  int groups_;
};

std::vector<mx::array> packed(const mx::array& w, int groups, mx::Stream stream) {
  const bool bytes = w.dtype() == mx::int8 || w.dtype() == mx::uint8;
  if (!bytes && w.dtype() != mx::float32) bad_argument("weights are float32, int8 or uint8");
  if (w.ndim() != 4 || !w.size()) bad_argument("[out, height, width, channels] is needed");
  if (groups < 1 || w.shape(0) % groups) bad_argument("the groups do not divide the output channels");
  const Weights weights{nullptr, {w.shape(0), w.shape(1), w.shape(2), w.shape(3)}, {}, groups};
  const int64_t length = weights.length(bytes ? 1 : 4);
  if (length > 0x7fffffff) bad_argument("the weights are too large");
  std::vector<mx::Shape> shapes{{groups, weights.blocks(), int(length), (bytes ? 4 : 1) * block}};
  std::vector<mx::Dtype> dtypes{bytes ? mx::int8 : mx::float32};
  if (bytes) {
    shapes.push_back({w.shape(0)});
    dtypes.push_back(mx::int32);
  }
  return mx::array::make_arrays(std::move(shapes), dtypes, std::make_shared<CpuPack>(stream, groups), {w});
}

} // namespace

extern "C" {

int mlxc_py_cpu_pack(mlx_vector_array* res, mlx_array w, int groups, mlx_stream s)
    MLXC_TRY(put(res, packed(c_ref(w), groups, cpu_stream(s)));)

} // extern "C"
