// Products with weights of few bits, which become floats in the cache and nowhere else.
#include <algorithm>

#include "cpu_primitives.hpp"
#include "extras.h"

using namespace mlxc;

namespace {

// Unpacked at a time: output channels, and inputs (or a whole group, if that is longer): 192 KiB, or 192 bytes for each
// input of such a group.
constexpr int panel = 3 * kernels::block, part = 1024;

void product(const float* x, const kernels::Levels& levels, float* out, int64_t positions, int length) {
  const auto& table = kernels::chosen();
  const int step = std::max(part / levels.group, 1) * levels.group;
  std::vector<float> weights(size_t(panel) * step), made(size_t(kernels::chunk) * panel);
  // a little longer than a chunk: kernels look at whole tiles of positions
  std::vector<const float*> seen(kernels::chunk + 16);
  for (int row = 0; row < levels.rows; row += panel) {
    const int rows = std::min(panel, levels.rows - row);
    for (int from = 0; from < length; from += step) {
      const int inputs = std::min(step, length - from);
      for (int j = 0; j < rows; j += kernels::block)
        table.unpack(levels, row + j, from, inputs, &weights[size_t(j) * inputs]);
      kernels::Window line{1, 1, inputs, 1, 1, rows, 1, 1, 1, 1, 1, 1, 0, 0, 1};
      for (int64_t first = 0; first < positions; first += kernels::chunk) {
        const int n = int(std::min<int64_t>(kernels::chunk, positions - first));
        for (int i = 0; i < int(seen.size()); ++i) seen[i] = x + (first + std::min(i, n - 1)) * length + from;
        table.convolve(seen.data(), weights.data(), nullptr, made.data(), n, line);
        for (int i = 0; i < n; ++i) {
          const float* sums = &made[size_t(i) * rows];
          float* to = out + (first + i) * levels.rows + row;
          if (from)
            for (int j = 0; j < rows; ++j) to[j] += sums[j];
          else
            std::copy(sums, sums + rows, to);
        }
      }
    }
  }
}

class CpuPackedProduct : public CpuPrimitive {
 public:
  CpuPackedProduct(mx::Stream stream, int bits) : CpuPrimitive(stream), bits_(bits) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (!out.size()) return;
    const auto &x = inputs[0], &words = inputs[1], &gains = inputs[2];
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const int length = x.shape(-1), group = length / gains.shape(1);
    // dense() copies elements of four bytes, whatever they are
    const kernels::Levels levels{
        reinterpret_cast<const uint32_t*>(dense(words, encoder)), dense(gains, encoder), dense(inputs[3], encoder),
        size_t(words.shape(1)), size_t(gains.shape(1)), words.shape(0), group, bits_};
    encoder.dispatch([levels, length, x = dense(x, encoder), to = out.data<float>(), n = int64_t(x.size() / length)] {
      product(x, levels, to, n, length);
    });
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    auto shape = inputs[0].shape();
    shape.back() = inputs[1].shape(0);
    return {shape};
  }
  const char* name() const override { return "CpuPackedProduct"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return bits_ == static_cast<const CpuPackedProduct&>(other).bits_;
  }

 private:
  const int bits_;
};

mx::array packed_product(
    const mx::array& x, const mx::array& words, const mx::array& gains, const mx::array& offsets, int bits,
    mx::Stream stream) {
  if (bits != 2 && bits != 4 && bits != 8) bad_argument("2, 4 or 8 bits are needed");
  if (x.dtype() != mx::float32 || gains.dtype() != mx::float32 || offsets.dtype() != mx::float32)
    bad_argument("float32 data, gains and offsets are needed");
  if (words.dtype() != mx::uint32 || words.ndim() != 2 || !x.ndim() || !x.shape(-1) ||
      int64_t(words.shape(1)) * 32 != int64_t(x.shape(-1)) * bits)
    bad_argument("the weights are not packed for this");
  if (gains.ndim() != 2 || gains.shape() != offsets.shape() || gains.shape(0) != words.shape(0) || !gains.shape(1) ||
      words.shape(1) % gains.shape(1))
    bad_argument("a gain and an offset for each group of whole words are needed");
  auto shape = x.shape();
  shape.back() = words.shape(0);
  return mx::array(
      shape, mx::float32, std::make_shared<CpuPackedProduct>(stream, bits), {x, words, gains, offsets});
}

} // namespace

extern "C" {

int mlxc_py_cpu_packed_product(
    mlx_array* res, mlx_array x, mlx_array words, mlx_array gains, mlx_array offsets, int bits, mlx_stream s)
    MLXC_TRY(put(res, packed_product(c_ref(x), c_ref(words), c_ref(gains), c_ref(offsets), bits, cpu_stream(s)));)

} // extern "C"
