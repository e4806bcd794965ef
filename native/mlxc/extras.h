/* What libmlxc exports beyond mlx-c. Nothing in mlxc_py needs them: with an official libmlxc they are absent. */
#pragma once
#include "generated/mlxc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Release of MLX whose headers this library was built with ("0.32.4"). A static string. */
MLXC_API const char* mlxc_py_build_mlx_version(void);

/* Whether the array stands for an argument or an intermediate of a function being traced, so has no data. */
MLXC_API int mlxc_py_array_is_tracer(bool* res, mlx_array arr);

/* Like mlx_array_new_data_managed_payload, but also on the CPU without a copy: the array reads `data` (row-major)
 * where it is, and MLX never writes there. `dtor` is called with `payload` once, on whichever thread drops the last
 * reference; on failure it is not called. `data` is copied, and `dtor` called at once, where MLX can't read it in place:
 * elements that don't lie at multiples of their size, and on the CPU less than 8 bytes after the start of a page. */
MLXC_API mlx_array mlxc_py_array_new_borrowed(
    void* data, const int* shape, int dim, mlx_dtype dtype, void* payload, void (*dtor)(void*));

/* An evaluated row-contiguous array whose elements are whatever the memory held: its maker fills them through
 * mlx_array_data_uint8 before anyone else sees it. Host-writable on every back end (malloc'ed, unified or managed). */
MLXC_API mlx_array mlxc_py_array_new_uninitialized(const int* shape, int dim, mlx_dtype dtype);

/* Copies to and from the own memory of a CUDA device, where MLX keeps host arrays in managed memory whose pages follow by
 * faults. Whether MLX computes on such a device; an evaluated array there with a copy of `data`; the bytes of an
 * evaluated row-contiguous array, wherever it lies, without moving it. */
MLXC_API bool mlxc_py_has_device_memory(void);
MLXC_API mlx_array mlxc_py_array_new_on_device(const void* data, const int* shape, int dim, mlx_dtype dtype, int device);
MLXC_API int mlxc_py_array_copy_to(void* to, mlx_array a);

/* A graph of MLX operations that is kept as one launch on CUDA, with the memory it works in (cuda_graph.cpp). */
typedef struct mlxc_py_cuda_graph_ {
  void* ctx;
} mlxc_py_cuda_graph;

/* Whether MLX is a release on CUDA whose graphs can be kept. */
MLXC_API bool mlxc_py_has_cuda_graphs(void);

/* Keep what `outputs`, not evaluated yet, are computed from. `inputs`: evaluated arrays in the device's own memory, which
 * every run writes. All operations must be on one stream, on which nobody schedules meanwhile, and have run once, since
 * what they compile or choose at their first run is not kept. An error where the results between would take more than
 * most_bytes. `outputs` are not to be read afterwards: nothing has been computed. */
MLXC_API int mlxc_py_cuda_graph_new(
    mlxc_py_cuda_graph* res,
    const mlx_array* inputs,
    size_t n_inputs,
    const mlx_array* outputs,
    size_t n_outputs,
    size_t most_bytes);

/* The outputs, evaluated, as new handles in the device's own memory, for inputs at host addresses. One run at a time,
 * others wait. Adds the nanoseconds from the launch to its end to `spent`. */
MLXC_API int mlxc_py_cuda_graph_run(
    mlx_array* res, size_t n_res, int64_t* spent, mlxc_py_cuda_graph graph, const void* const* data, size_t n_inputs);

/* Bytes that the graph holds beside its inputs and constants. */
MLXC_API int mlxc_py_cuda_graph_bytes(size_t* res, mlxc_py_cuda_graph graph);

MLXC_API int mlxc_py_cuda_graph_free(mlxc_py_cuda_graph graph);

/* An array with a shape and a type but no data, to build a graph on that a tape records. */
MLXC_API mlx_array mlxc_py_array_new_placeholder(const int* shape, int dim, mlx_dtype dtype);

/* A recorded graph (tape.hpp). It holds the streams its operations were built for, so a tape serves one stream; any
 * thread may apply it, several at once. */
typedef struct mlxc_py_tape_ {
  void* ctx;
} mlxc_py_tape;

/* Whether tapes of the CPU's operations are computed by the thread that runs them, so that it does not matter which stream
 * they were built for. */
MLXC_API bool mlxc_py_tapes_on_calling_thread(void);

/* Evaluate arrays: on the calling thread where mlxc_py_tapes_on_calling_thread, else as mlx_eval does. */
MLXC_API int mlxc_py_eval_on_calling_thread(const mlx_array* arrays, size_t n);

/* Record what `outputs` are computed from, where `inputs` are placeholders. Evaluates what does not depend on them. */
MLXC_API int mlxc_py_tape_new(
    mlxc_py_tape* res, const mlx_array* inputs, size_t n_inputs, const mlx_array* outputs, size_t n_outputs);

/* Write the n_res outputs for `inputs` to `res` as new handles. On the CPU, where all inputs are evaluated, the calling
 * thread computes them, and the nanoseconds that this took are added to `spent`; else they are not evaluated yet. */
MLXC_API int mlxc_py_tape_apply(
    mlx_array* res, size_t n_res, int64_t* spent, mlxc_py_tape tape, const mlx_array* inputs, size_t n_inputs);

/* The outputs for inputs that lie, of the recorded shapes and row-contiguous, at host addresses: evaluated, as new handles
 * and as addresses of their data (NULL without elements). Inputs are copied, or on the CPU read in place; then an output
 * may lie in an input's memory. Adds the nanoseconds that the evaluation took to `spent`. An error where an output is not
 * row-contiguous. */
MLXC_API int mlxc_py_tape_run(
    mlx_array* res,
    void** addresses,
    size_t n_res,
    int64_t* spent,
    mlxc_py_tape tape,
    const void* const* data,
    size_t n_inputs);

/* The same with the outputs' bytes written to the addresses in `results` (NULL: not wanted). Not 0 where that failed,
 * which no error handler is told: another run by mlxc_py_tape_run tells why. */
MLXC_API int mlxc_py_tape_fill(
    void* const* results,
    size_t n_res,
    int64_t* spent,
    mlxc_py_tape tape,
    const void* const* data,
    size_t n_inputs);

/* How many operations a tape has: those of one primitive ("Transpose"), or all where it is NULL. */
MLXC_API int mlxc_py_tape_count(size_t* res, mlxc_py_tape tape, const char* primitive);

MLXC_API int mlxc_py_tape_free(mlxc_py_tape tape);

/* Tapes for the sizes along a line, on which shapes grow by the same amount with each step (tape_line.hpp). */
typedef struct mlxc_py_tape_line_ {
  void* ctx;
} mlxc_py_tape_line;

/* From two recordings of a graph, at the first step and the next. An error, which says what does not grow evenly, where
 * that is so. */
MLXC_API int mlxc_py_tape_line_new(
    mlxc_py_tape_line* res,
    const mlx_array* inputs,
    const mlx_array* next_inputs,
    size_t n_inputs,
    const mlx_array* outputs,
    const mlx_array* next_outputs,
    size_t n_outputs);

/* An error where a recording so many steps from the first is not what the line says. */
MLXC_API int mlxc_py_tape_line_check(
    mlxc_py_tape_line line,
    int64_t steps,
    const mlx_array* inputs,
    size_t n_inputs,
    const mlx_array* outputs,
    size_t n_outputs);

/* The tape at a step between those that were checked. */
MLXC_API int mlxc_py_tape_line_at(mlxc_py_tape* res, mlxc_py_tape_line line, int64_t steps);

MLXC_API int mlxc_py_tape_line_free(mlxc_py_tape_line line);

/* Vectorised functions of one array on a stream of the CPU, where MLX's own are 10 to 40 times slower than numpy's:
 * float32, float16, bfloat16 (computed in float32). No gradients, no vmap, no export. */
typedef enum mlxc_py_unary_ {
  MLXC_PY_EXP,
  MLXC_PY_LOG,
  MLXC_PY_SIN,
  MLXC_PY_COS,
  MLXC_PY_TANH,
  MLXC_PY_ERF,
  MLXC_PY_SIGMOID,
  MLXC_PY_SILU, /* x * sigmoid(p * x) */
  MLXC_PY_GELU, /* x * (1 + erf(x / sqrt(2))) / 2 */
  MLXC_PY_SOFTPLUS, /* log(1 + exp(x)) */
  MLXC_PY_HARD_SIGMOID, /* clip(p * x + q, 0, 1) */
  MLXC_PY_HARD_SWISH, /* x * clip(p * x + q, 0, 1) */
  MLXC_PY_LEAKY_RELU, /* x < 0 ? p * x : x */
  MLXC_PY_CLIP, /* min(max(x, p), q) */
  MLXC_PY_LEVELS, /* min(max(round(x / p), q), q + 255) * p */
} mlxc_py_unary;
MLXC_API int mlxc_py_cpu_unary(mlx_array* res, mlx_array a, int kind, float p, float q, mlx_stream s);

/* Softmax over the last axis, summed in float32 or better; the same types and limits. */
MLXC_API int mlxc_py_cpu_softmax(mlx_array* res, mlx_array a, mlx_stream s);

/* Weights [out, height, width, channels / groups], wherever they lie, as the functions below take them: float32 ones;
 * int8 ones, or uint8 ones less 128, and then also the sum for each output channel in int32. */
MLXC_API int mlxc_py_cpu_pack(mlx_vector_array* res, mlx_array w, int groups, mlx_stream s);

/* Convolution of float32 [batch, height, width, channels] with a bias (may be empty) for each output channel, in one pass
 * and without a copy of the windows.
 * `window` is 12 numbers: output height, width and channels; kernel height, width; strides; dilations; padding before
 * (top, left); groups. Positions outside the image are zeros.
 * Weights are [groups, blocks, kernel height * width * channels / groups, 16]: output channels of a group in blocks of
 * 16, the last filled up with zeros; where each channel is a group of its own also [kernel height * width, channels]. */
MLXC_API int mlxc_py_cpu_convolution(
    mlx_array* res,
    mlx_array x,
    mlx_array weights,
    mlx_array bias,
    const int* window,
    size_t window_num,
    mlx_stream s);

/* The maximum, or `scale` times the sum, of each window; positions outside the image do not count. */
MLXC_API int mlxc_py_cpu_pool(
    mlx_array* res, mlx_array x, const int* window, size_t window_num, bool maximum, float scale, mlx_stream s);

/* float32 x [..., length] times rows of weights that are packed as MLX packs them, 2, 4 or 8 bits in uint32 `words` [rows,
 * length * bits / 32], each worth level * gain + offset: float32 [rows, length / group], to [..., rows]. `group` is whole
 * words. Weights are unpacked a few rows at a time. */
MLXC_API int mlxc_py_cpu_packed_product(
    mlx_array* res, mlx_array x, mlx_array words, mlx_array gains, mlx_array offsets, int bits, mlx_stream s);

/* An LSTM (gates: input, output, forget, cell) or a GRU (update, reset, candidate) with sigmoid and tanh, run over
 * steps [steps, batch, gates * hidden] that hold the input's product and every bias but the GRU's `bias` [hidden], which
 * the reset gate scales with the candidate's product (empty for an LSTM). From `initial` [batch, state] to
 * [steps, batch, state], where the state is hidden and, of an LSTM, cell side by side. Weights are [blocks, hidden, 16]:
 * the gates in blocks of 16, the last filled up with zeros. All float32. */
MLXC_API int mlxc_py_cpu_recurrent(
    mlx_array* res,
    mlx_array steps,
    mlx_array weights,
    mlx_array bias,
    mlx_array initial,
    mlx_stream s);

/* An LSTM likewise, whose state is quantised to bytes between its extremes over the batch, or 0, before each product with
 * 8-bit weights: these as for mlxc_py_cpu_integer_convolution, of one element, and sums, zeros and the scale for each
 * gate. */
MLXC_API int mlxc_py_cpu_quantized_lstm(
    mlx_array* res,
    mlx_array steps,
    mlx_array weights,
    mlx_array initial,
    mlx_array scales,
    mlx_array sums,
    mlx_array zeros,
    mlx_stream s);

/* Arithmetic of two arrays of one type (as above), with broadcasting. The result has the layout of an operand that has
 * its shape: transposed images stay as they lie. */
typedef enum mlxc_py_binary_ {
  MLXC_PY_ADD,
  MLXC_PY_SUBTRACT,
  MLXC_PY_MULTIPLY,
  MLXC_PY_DIVIDE,
  MLXC_PY_MAXIMUM, /* a NaN stays, here and in the next */
  MLXC_PY_MINIMUM,
} mlxc_py_binary;
MLXC_API int mlxc_py_cpu_binary(mlx_array* res, mlx_array a, mlx_array b, int kind, mlx_stream s);

/* Conversion between float32, float16 and bfloat16, to the nearest, ties to even. */
MLXC_API int mlxc_py_cpu_convert(mlx_array* res, mlx_array a, mlx_dtype dtype, mlx_stream s);

/* round(x / scale) + zero, ties to even, brought into the range of zero's type (int8 or uint8), for float32 x. */
MLXC_API int mlxc_py_cpu_quantize(mlx_array* res, mlx_array x, mlx_array scale, mlx_array zero, mlx_stream s);

/* (x - zero) * scale in float32. */
MLXC_API int mlxc_py_cpu_dequantize(mlx_array* res, mlx_array x, mlx_array scale, mlx_array zero, mlx_stream s);

/* Convolution of 8-bit integers in int32, exact but for overflow: of x - zero with w - z, where `window` is as above, and
 * positions outside the image are `zero` (one of x's type). Weights w are int8 [groups, blocks, kernel height * width *
 * quads, 64]: as above, but channels in `quads` of four, the last filled up with zeros, for 16 output channels side by
 * side. `sums` [output channels] in int32 are those of w; `zeros` likewise are z (empty: all 0). */
MLXC_API int mlxc_py_cpu_integer_convolution(
    mlx_array* res,
    mlx_array x,
    mlx_array weights,
    mlx_array zero,
    mlx_array sums,
    mlx_array zeros,
    const int* window,
    size_t window_num,
    mlx_stream s);

/* Three arrays: float32 x as uint8 levels between its extremes, or 0; their scale; their zero point. */
MLXC_API int mlxc_py_cpu_dynamic_quantize(mlx_vector_array* res, mlx_array x, mlx_stream s);

/* Slices of a along an axis, one for each of `indices` (int32 or int64), which take the axis's place; they count from
 * either end, and are clamped into the axis. */
MLXC_API int mlxc_py_cpu_take(mlx_array* res, mlx_array a, mlx_array indices, int axis, mlx_stream s);

/* Sums of slices of float32 a along an axis, a sum for each row of `indices` (int32, clamped into the axis) and of float32
 * `weights`, both [sums, slices]. */
MLXC_API int mlxc_py_cpu_take_sums(
    mlx_array* res, mlx_array a, mlx_array indices, mlx_array weights, int axis, mlx_stream s);

/* As ONNX's GatherElements, with such indices: the element at the index's place, but along `axis` where it says. */
MLXC_API int mlxc_py_cpu_take_elements(mlx_array* res, mlx_array a, mlx_array indices, int axis, mlx_stream s);

/* As ONNX's ScatterElements: a copy with values there, the last where several meet; or with all of them added, for
 * float32, float64, int32 and int64. */
MLXC_API int mlxc_py_cpu_put_elements(
    mlx_array* res, mlx_array a, mlx_array indices, mlx_array values, int axis, bool add, mlx_stream s);

/* The instruction set that these use here: "avx512vnni", "avx512", "avx2", or "baseline" (SSE2, NEON). A static string. */
MLXC_API const char* mlxc_py_cpu_isa(void);

/* Use another one that the processor has, to test or to measure it. */
MLXC_API int mlxc_py_cpu_use_isa(const char* name);

#ifdef __cplusplus
}
#endif
