// Vectorised loops for the CPU, compiled once per instruction set; the processor's best is chosen when first used.
// Nothing here knows MLX, and no standard header is included: an inline function of the standard library compiled for
// AVX-512 could be the one the linker keeps for everyone.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace mlxc::kernels {

enum Type { float32, float16, bfloat16, n_types };

// Element by element: out may be in. p and q are the parameters of the last ones.
enum Unary {
  exp,
  log,
  sin,
  cos,
  tanh,
  erf,
  sigmoid,
  silu,         // x * sigmoid(p * x)
  gelu,         // x * (1 + erf(x / sqrt(2))) / 2
  softplus,     // log(1 + exp(x))
  hard_sigmoid, // clip(p * x + q, 0, 1)
  hard_swish,   // x * clip(p * x + q, 0, 1)
  leaky_relu,   // x < 0 ? p * x : x
  clip,         // min(max(x, p), q)
  levels,       // min(max(round(x / p), q), q + 255) * p
  n_unary
};

using Map = void (*)(const void* in, void* out, size_t n, float p, float q);

enum Binary { add, subtract, multiply, divide, maximum, minimum, n_binary };
enum Operands { both, scalar_first, scalar_second, n_operands };

// out may be either operand that is not a scalar.
using Combine = void (*)(const void* a, const void* b, void* out, size_t n);

// From one type to another.
using Convert = void (*)(const void* in, void* out, size_t n);

// min(max(round(x / scale) + zero, low), high) of float32, as the low 8 bits of an integer.
using Quantize = void (*)(const void* in, void* out, size_t n, float scale, int zero, int low, int high);
// The least and the greatest of n floats and of those that are there.
using Extremes = void (*)(const float* in, size_t n, float* low, float* high);
// Integers as floats: out may be in.
using Floats = void (*)(const int32_t* in, float* out, size_t n);
// (x - zero) * scale of 8-bit integers, as float32.
using Dequantize = void (*)(const void* in, void* out, size_t n, float scale, int zero);

// Rows of `length` elements, dense; out may be in.
using Rows = void (*)(const void* in, void* out, size_t rows, size_t length);

// Windows that slide over an image, channels last, in float32.
struct Window {
  int height, width, channels;           // of the input
  int out_height, out_width, out_channels;
  int kernel_height, kernel_width;
  int stride_y, stride_x;
  int dilation_y, dilation_x;
  int top, left;                         // padding before
  int groups;
};

// Output positions that are done together, and the width of a block of packed weights.
constexpr int chunk = 64;
constexpr int block = 16;

// The address of what each of the kernel's elements sees, for a chunk of output positions: [kernel][chunk]. Outside the
// image that is `padding`, as many elements as a pixel has.
using Seen = const float* const*;
using SeenBytes = const uint8_t* const*;

// One chunk of `n` positions of the output, which lie side by side in `out`; bias may be null.
// Weights are packed as [groups][blocks][kernel][channels / groups][block], the last block filled up with zeros.
using Convolve = void (*)(Seen seen, const float* weights, const float* bias, float* out, int n, const Window& window);
// Weights are [kernel][channels]; x is the first position's column.
using Depthwise =
    void (*)(Seen seen, const float* weights, const float* bias, float* out, int n, int x, const Window& window);
// What the sums of a convolution of bytes start from: `start` of the output channel, less its zero point (where there are
// any) times the sum of the bytes that the position sees. Of each group, output channels are filled up to whole blocks;
// sums are [groups][seen_sums].
constexpr int seen_sums = chunk + 16;
struct Starts {
  const int32_t *start, *zeros, *sums;
};
// As Convolve, of unsigned bytes with signed ones, exact in int32. A group's channels come in fours, and so do its
// weights: [groups][blocks][kernel][channels / groups / 4][block][4].
using ConvolveBytes =
    void (*)(SeenBytes seen, const int8_t* weights, const Starts& starts, int32_t* out, int n, const Window& window);
// The sums of n times `length` bytes.
using SumBytes = void (*)(const uint8_t* in, size_t n, int length, int32_t* out);
// The sum times `scale`, or the maximum.
using Pool = void (*)(Seen seen, float* out, int n, const Window& window, float scale);

// Rows of packed levels of 2, 4 or 8 bits, a level of which is worth level * gain + offset: a gain and an offset for each
// `group` of a row.
struct Levels {
  const uint32_t* words;
  const float *gains, *offsets;
  size_t row_words, row_groups;
  int rows, group, bits;
};

// `length` columns from `from` on, whole groups, of a block of rows as out[column][block]; rows beyond the last repeat it.
using Unpack = void (*)(const Levels& levels, int first_row, int from, int length, float* out);

// A layer of LSTM or GRU cells that is run over steps.
struct Recurrence {
  int steps, batch, hidden;
  bool lstm;
};

// Steps [steps][batch][gates], states [batch][state] and out [steps][batch][state], where a state is hidden and, of an
// LSTM, cell. Weights are [blocks][hidden][block]; scratch holds `batch` times the padded gates.
using Recur = void (*)(
    const float* steps, const float* weights, const float* bias, const float* initial, float* out, float* scratch,
    const Recurrence& recurrence);

// One LSTM cell: from the gates' two parts and the state to the next state.
using Cell = void (*)(const float* x, const float* gates, const float* state, float* out, int hidden);

struct Table {
  const char* name;
  Map unary[n_unary][n_types];
  Rows softmax[n_types];
  Combine binary[n_binary][n_types][n_operands];
  Convert convert[n_types][n_types];
  Quantize quantize;
  Extremes extremes;
  Floats floats;
  Dequantize dequantize_signed, dequantize_unsigned;
  Convolve convolve;
  Depthwise depthwise;
  ConvolveBytes convolve_bytes;
  SumBytes sum_bytes;
  Pool pool_sum, pool_max;
  Unpack unpack;
  Recur recur;
  Cell lstm_cell;
};

// Where images lie: the first element, and how far it is from an image, a line and a pixel to the next. The channels of
// a pixel lie side by side.
template <class T>
struct Images {
  const T* first;
  int64_t image, line, pixel;
};

// Fills `seen` for the n positions from `first` on, in the first of some images.
void look(const float** seen, const Images<float>& images, const float* padding, int first, int n, const Window& window);
void look(
    const uint8_t** seen, const Images<uint8_t>& images, const uint8_t* padding, int first, int n, const Window& window);

extern const Table baseline;
extern const Table avx2;
extern const Table avx512;
void convolve_bytes_vnni(
    SeenBytes seen, const int8_t* weights, const Starts& starts, int32_t* out, int n, const Window& window);

// The tables that this processor runs, the best first; ends with a null pointer.
const Table* const* usable();

// The one in use: the best, unless `use` chose another.
const Table& chosen();
void use(const Table& table);

} // namespace mlxc::kernels
