// A recurrent layer's steps, one after the other: the product with the state, and the cell.
#pragma once

#include "functions.hpp"
#include "windows.hpp"

namespace mlxc::kernels {
namespace {

// `rows` states by `blocks` blocks of the gates.
template <int rows, int blocks>
void state_product(const float* states, size_t stride, const float* weights, float* gates, size_t padded, int hidden) {
  constexpr int width = blocks * vectors;
  F sums[rows][width] = {};
  for (int k = 0; k < hidden; ++k, weights += block) {
    F row[width];
    MLXC_UNROLL
    for (int v = 0; v < width; ++v)
      row[v] = *(const F_at*)(weights + size_t(v / vectors) * hidden * block + (v % vectors) * lanes);
    MLXC_UNROLL
    for (int i = 0; i < rows; ++i) {
      F x = all(states[i * stride + k]);
      MLXC_UNROLL
      for (int v = 0; v < width; ++v) sums[i][v] += x * row[v];
    }
  }
  MLXC_UNROLL
  for (int i = 0; i < rows; ++i) {
    MLXC_UNROLL
    for (int v = 0; v < width; ++v) *(F_at*)(gates + i * padded + v * lanes) = sums[i][v];
  }
}

template <int rows>
void all_gates(const float* states, size_t stride, const float* weights, float* gates, size_t padded, int hidden) {
  constexpr int together = rows > 1 ? 1 : 4;
  size_t done = 0;
  for (; done + together * block <= padded; done += together * block)
    state_product<rows, together>(states, stride, weights + done * hidden, gates + done, padded, hidden);
  for (; done < padded; done += block)
    state_product<rows, 1>(states, stride, weights + done * hidden, gates + done, padded, hidden);
}

// Gates in the order input, output, forget, cell; the state is [hidden, cell].
void lstm_cell(const float* x, const float* gates, const float* state, float* out, int hidden) {
  for (int j = 0; j < hidden; j += lanes) {
    const size_t n = hidden - j < lanes ? hidden - j : lanes;
    auto gate = [&](int i) { return load_part<Float32>(x + i * hidden + j, n) + load_part<Float32>(gates + i * hidden + j, n); };
    F memory = sigmoid_of(gate(2)) * load_part<Float32>(state + hidden + j, n) + sigmoid_of(gate(0)) * tanh_of(gate(3));
    store_part<Float32>(out + hidden + j, memory, n);
    store_part<Float32>(out + j, sigmoid_of(gate(1)) * tanh_of(memory), n);
  }
}

// Gates in the order update, reset, candidate, whose product and bias the reset gate scales.
MLXC_INLINE void gru_cell(
    const float* x, const float* gates, const float* bias, const float* state, float* out, int hidden) {
  for (int j = 0; j < hidden; j += lanes) {
    const size_t n = hidden - j < lanes ? hidden - j : lanes;
    auto of = [&](const float* from, int i) { return load_part<Float32>(from + i * hidden + j, n); };
    F update = sigmoid_of(of(x, 0) + of(gates, 0));
    F reset = sigmoid_of(of(x, 1) + of(gates, 1));
    F candidate = tanh_of(of(x, 2) + reset * (of(gates, 2) + load_part<Float32>(bias + j, n)));
    store_part<Float32>(out + j, candidate + update * (load_part<Float32>(state + j, n) - candidate), n);
  }
}

void recur(
    const float* steps, const float* weights, const float* bias, const float* initial, float* out, float* scratch,
    const Recurrence& r) {
  const int gates = r.lstm ? 4 : 3;
  const size_t wide = r.lstm ? 2 * r.hidden : r.hidden;
  const size_t padded = (size_t(gates) * r.hidden + block - 1) / block * block;
  const float* state = initial;
  for (int step = 0; step < r.steps; ++step) {
    int row = 0;
    for (; row + 4 <= r.batch; row += 4)
      all_gates<4>(state + row * wide, wide, weights, scratch + row * padded, padded, r.hidden);
    for (; row < r.batch; ++row)
      all_gates<1>(state + row * wide, wide, weights, scratch + row * padded, padded, r.hidden);
    for (row = 0; row < r.batch; ++row) {
      const float* x = steps + (size_t(step) * r.batch + row) * gates * r.hidden;
      float* to = out + (size_t(step) * r.batch + row) * wide;
      if (r.lstm)
        lstm_cell(x, scratch + row * padded, state + size_t(row) * wide, to, r.hidden);
      else
        gru_cell(x, scratch + row * padded, bias, state + size_t(row) * wide, to, r.hidden);
    }
    state = out + size_t(step) * r.batch * wide;
  }
}

} // namespace
} // namespace mlxc::kernels
