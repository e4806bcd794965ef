"""RNN, GRU and LSTM against ONNX Runtime's CPU provider and a plain numpy model of the specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]
Host = np.ndarray[Any, Any]

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
DIRECTIONS = ["forward", "reverse", "bidirectional"]
TIME, BATCH, INPUT, HIDDEN = 5, 3, 4, 2


def sigmoid(x: Host) -> Host:
    return 1 / (1 + np.exp(-x))


def model(op: str, x: Host, w: Host, r: Host, b: Host, h: Host, c: Host) -> tuple[Host, ...]:
    """Y, Y_h, Y_c of a bidirectional layer with the default activations, in double precision."""
    x, w, r, b, h, c = (value.astype(np.float64) for value in (x, w, r, b, h, c))
    y = np.zeros((len(x), 2, x.shape[1], h.shape[-1]))
    for d in (0, 1):
        wb, rb = np.split(b[d], 2)
        for t in range(len(x))[:: -1 if d else 1]:
            a, u = x[t] @ w[d].T + wb, h[d] @ r[d].T + rb
            if op == "RNN":
                h[d] = np.tanh(a + u)
            elif op == "GRU":
                (az, ar, ah), (uz, ur, uh) = np.split(a, 3, 1), np.split(u, 3, 1)
                z = sigmoid(az + uz)
                h[d] = (1 - z) * np.tanh(ah + sigmoid(ar + ur) * uh) + z * h[d]
            else:
                i, o, f, g = np.split(a + u, 4, 1)
                c[d] = sigmoid(f) * c[d] + sigmoid(i) * np.tanh(g)
                h[d] = sigmoid(o) * np.tanh(c[d])
            y[t, d] = h[d]
    return (y, h, c) if op == "LSTM" else (y, h)


def tensors(op: str, draw: Draw, dtype: Any, directions: int) -> list[Any]:
    """X, W, R, B, sequence_lens (absent), initial_h[, initial_c]."""
    gates = GATES[op] * HIDDEN
    states = [draw(dtype, directions, BATCH, HIDDEN) for _ in range(2 if op == "LSTM" else 1)]
    weights = draw(dtype, directions, gates, INPUT), draw(dtype, directions, gates, HIDDEN)
    return [draw(dtype, TIME, BATCH, INPUT), *weights, draw(dtype, directions, 2 * gates), None, *states]


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lengths", [None, [5, 1, 3]])
def test_directions_and_lengths(check: Check, draw: Draw, op: str, direction: str, lengths: list[int] | None) -> None:
    given = tensors(op, draw, np.float32, 2 if direction == "bidirectional" else 1)
    given[4] = None if lengths is None else np.array(lengths, np.int32)
    check(op, *given, outputs=3 if op == "LSTM" else 2, hidden_size=HIDDEN, direction=direction)
    check(op, *given[:3], outputs=2, hidden_size=HIDDEN, direction=direction)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("layout", [0, 1])
def test_types_and_layouts(check: Check, draw: Draw, op: str, dtype: Any, layout: int) -> None:
    given = tensors(op, draw, dtype, 2)
    expected = [y.astype(dtype) for y in model(op, given[0], given[1], given[2], given[3], given[5], given[-1])]
    if layout:
        expected[0] = expected[0].transpose(2, 0, 1, 3)
        expected[1:] = [state.swapaxes(0, 1) for state in expected[1:]]
        given[0], given[5:] = given[0].swapaxes(0, 1), [state.swapaxes(0, 1) for state in given[5:]]
    how = {"linear_before_reset": 1} if op == "GRU" else {}
    opset = 22 if dtype is ml_dtypes.bfloat16 else 14
    check(op, *given, expect=expected, opset=opset, direction="bidirectional", layout=layout, hidden_size=HIDDEN, **how)


ACTIVATIONS: list[tuple[str, list[float], list[float]]] = [
    ("Relu", [], []),
    ("Tanh", [], []),
    ("Sigmoid", [], []),
    ("Softsign", [], []),
    ("Softplus", [], []),
    ("Affine", [0.7], [0.2]),
    ("LeakyRelu", [0.3], []),
    ("ThresholdedRelu", [0.4], []),
    ("ScaledTanh", [0.8], [0.6]),
    ("HardSigmoid", [0.3], [0.4]),
    ("Elu", [0.9], []),
]


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("name, alpha, beta", ACTIVATIONS)
def test_activations(check: Check, draw: Draw, op: str, name: str, alpha: list[float], beta: list[float]) -> None:
    given = tensors(op, draw, np.float32, 2)
    names = [*FUNCTIONS[op][:-1], name]
    how = {"activation_alpha": 2 * alpha} if alpha else {}
    how |= {"activation_beta": 2 * beta} if beta else {}
    check(op, *given, outputs=2, hidden_size=HIDDEN, direction="bidirectional", activations=2 * names, **how)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("name", ["LeakyRelu", "HardSigmoid", "Elu"])
def test_default_scales(check: Check, draw: Draw, op: str, name: str) -> None:
    names = [*FUNCTIONS[op][:-1], name]
    check(op, *tensors(op, draw, np.float32, 1), outputs=2, hidden_size=HIDDEN, activations=names)


@pytest.mark.parametrize("op", GATES)
def test_clip(check: Check, draw: Draw, op: str) -> None:
    check(op, *tensors(op, draw, np.float32, 2), outputs=2, hidden_size=HIDDEN, direction="bidirectional", clip=0.3)


def test_gru_resets_before_or_after_the_product(check: Check, draw: Draw) -> None:
    given = tensors("GRU", draw, np.float32, 1)
    for linear in (0, 1):
        check("GRU", *given, outputs=2, hidden_size=HIDDEN, linear_before_reset=linear)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("input_forget", [0, 1])
def test_peepholes(check: Check, draw: Draw, direction: str, input_forget: int) -> None:
    directions = 2 if direction == "bidirectional" else 1
    given = tensors("LSTM", draw, np.float32, directions)
    peepholes = draw(np.float32, directions, 3 * HIDDEN)
    how = {"direction": direction, "hidden_size": HIDDEN, "input_forget": input_forget}
    check("LSTM", *given, peepholes, outputs=3, **how)
    check("LSTM", *given, None, outputs=3, **how)


def test_no_steps(check: Check, draw: Draw) -> None:
    x, w, r, *_ = tensors("LSTM", draw, np.float32, 1)
    y, state = np.zeros((0, 1, BATCH, HIDDEN), np.float32), np.zeros((1, BATCH, HIDDEN), np.float32)
    check("LSTM", x[:0], w, r, expect=[y, state, state], hidden_size=HIDDEN)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("per_column", [True, False])
def test_dynamic_quantize_lstm(check: Check, draw: Draw, direction: str, dtype: Any, per_column: bool) -> None:
    directions, gates = (2 if direction == "bidirectional" else 1), 4 * HIDDEN
    x, _, _, b, *states = tensors("LSTM", draw, np.float32, directions)
    w, r = draw(dtype, directions, INPUT, gates, high=120), draw(dtype, directions, HIDDEN, gates, high=120)
    quantization = []
    for _ in range(2):
        shape = (directions, gates) if per_column else (directions,)
        scale = (0.02 * np.abs(draw(np.float32, *shape)) + 0.001).astype(np.float32)
        quantization += [scale, np.full(shape, 7 if dtype is np.uint8 else 0, dtype)]
    check(
        "DynamicQuantizeLSTM",
        x,
        w,
        r,
        b,
        *states,
        None,
        *quantization,
        domain="com.microsoft",
        constants=[1, 2, 8, 9, 10, 11],
        outputs=3,
        atol=1e-2,
        direction=direction,
        hidden_size=HIDDEN,
    )
