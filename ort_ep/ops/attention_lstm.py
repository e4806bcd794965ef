"""An LSTM whose every step attends to a memory."""

from __future__ import annotations

from typing import Unpack

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops import precision
from ort_ep.ops.attention import first_keys
from ort_ep.ops.recurrent import LSTM, Attributes, Direction, Layer, States, lstm_cell, products, summed, with_bias
from ort_ep.registry import INT32, MICROSOFT, op


@op("AttnLSTM", domain=MICROSOFT, dtypes={"x": frozenset({"float32", "float64"}), "sequence_lens": INT32})
def attention_lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *attention: Array | None,
    hidden_size: int | None = None,
    input_forget: int = 0,
    n_outputs: int,
    **attributes: Unpack[Attributes],
) -> States:
    query_weight, memory_weight, score, memory, memory_lengths, layer_weight = (*attention, None)[:6]
    if query_weight is None or memory_weight is None or score is None or memory is None:
        raise ValueError("AttnLSTM needs a memory, and the weights of its attention")
    layer, size = Layer(LSTM, r.shape[-1], sequence_lens, **attributes), x.shape[-1]
    own, attended, recur = products(w[..., :size]), products(w[..., size:]), products(r)
    steps = memory.shape[1]
    present = None if memory_lengths is None else first_keys(memory_lengths, steps).reshape([-1, steps])
    values = memory if present is None else memory * present[..., None].astype(memory.dtype)

    def build(index: int) -> Direction:
        cell = lstm_cell(layer, index, recur(index), p, input_forget)
        keys = mx.matmul(values, memory_weight[index])

        def with_attention(step: Array, states: States) -> States:
            *inner, seen = states
            hidden, cell_state = cell(step + attended(index)(seen), tuple(inner))
            query = mx.matmul(hidden, query_weight[index])[:, None]
            scores = mx.sum(score[index] * precision.tanh(keys + query), -1)
            scores = scores if present is None else mx.where(present, scores, mx.array(-mx.inf, scores.dtype))
            context = mx.matmul(precision.softmax(scores, -1)[:, None], values).squeeze(1)
            if layer_weight is not None:
                context = mx.matmul(mx.concatenate([hidden, context], -1), layer_weight[index])
            return hidden, cell_state, context

        return with_bias(own(index), summed(b, index)), with_attention

    nothing = mx.zeros([layer.directions, x.shape[1], w.shape[-1] - size], x.dtype)
    return layer.run(x, build, [*layer.initial(x, initial_h, initial_c), nothing])[:3][:n_outputs]
