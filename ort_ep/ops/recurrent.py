"""Recurrent layers: the input's product with W for all steps at once, then one cell after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypedDict, Unpack

import mlxc_py as mx
from mlxc_py import Array, cpu_primitives
from mlxc_py.cpu_primitives import Packed, PackedBytes
from ort_ep.ops import precision
from ort_ep.ops.axes import reversed_along
from ort_ep.ops.indexing import reverse_sequence
from ort_ep.ops.matmul import ExactFactor
from ort_ep.ops.precision import widen, widened
from ort_ep.ops.quant import dynamic_quantize_linear, factor_of_bytes, integer_product
from ort_ep.registry import BYTES, FLOATS, INT32, MICROSOFT, op

Unary = Callable[[Array], Array]
States = tuple[Array, ...]
Cell = Callable[[Array, States], States]


@dataclass(frozen=True)
class Plain:
    """A cell with the usual activations, as one primitive runs it over all steps (cpu_primitives.recurrent)."""

    weights: Packed
    bias: Array | None = None

    def run(self, steps: Array, state: Array) -> Array:
        return cpu_primitives.recurrent(steps, self.weights, state, self.bias)


@dataclass(frozen=True)
class Quantized:
    """As Plain, of an LSTM with 8-bit weights."""

    weights: PackedBytes
    scale: Array

    def run(self, steps: Array, state: Array) -> Array:
        return cpu_primitives.quantized_lstm(steps, self.weights, state, self.scale)


# the product with W, and what runs the steps
Direction = tuple[Unary, Cell | Plain | Quantized]

REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
RNN, GRU, LSTM = ("Tanh",), ("Sigmoid", "Tanh"), ("Sigmoid", "Tanh", "Tanh")
TYPES = {"x": FLOATS, "sequence_lens": INT32}

# name: function of (x, alpha, beta), and the defaults of as many of the two as it takes
ACTIVATIONS: dict[str, tuple[Callable[..., Array], tuple[float, ...]]] = {
    "relu": (lambda x: mx.maximum(x, 0), ()),
    "tanh": (precision.tanh, ()),
    "sigmoid": (precision.sigmoid, ()),
    "softsign": (lambda x: x / (1 + mx.abs(x)), ()),
    "softplus": (precision.softplus, ()),
    "leakyrelu": (lambda x, alpha: mx.where(x < 0, alpha * x, x), (0.01,)),
    "thresholdedrelu": (lambda x, alpha: mx.where(x > alpha, x, mx.zeros_like(x)), (1.0,)),
    "elu": (lambda x, alpha: mx.where(x < 0, alpha * mx.expm1(x), x), (1.0,)),
    "affine": (lambda x, alpha, beta: alpha * x + beta, (1.0, 0.0)),
    "scaledtanh": (lambda x, alpha, beta: alpha * precision.tanh(beta * x), (1.0, 1.0)),
    "hardsigmoid": (lambda x, alpha, beta: mx.clip(alpha * x + beta, 0, 1), (0.2, 0.5)),
}


def unrolled(steps: Array, cell: Cell, states: States, lengths: Array | None) -> tuple[Array, States]:
    """[T, B, gates] -> the hidden states [T, B, H] and the last states; a sequence that has ended gives zeros."""
    outputs = []
    for step in range(steps.shape[0]):
        new = cell(steps[step], states)
        hidden = new[0]
        if lengths is not None:
            live = (step < lengths)[:, None]
            new = tuple(mx.where(live, value, old) for value, old in zip(new, states, strict=True))
            hidden = mx.where(live, hidden, mx.zeros_like(hidden))
        outputs.append(hidden)
        states = new
    return mx.stack(outputs) if outputs else mx.zeros([0, *states[0].shape], states[0].dtype), states


def at_once(steps: Array, plain: Plain | Quantized, states: States) -> tuple[Array, States]:
    """As `unrolled`, of sequences that are all as long."""
    width = states[0].shape[-1]
    state = mx.concatenate(list(states), 1)
    every = plain.run(steps, state)
    last = every[-1] if steps.shape[0] else state
    return every[..., :width], tuple(mx.split(last, len(states), 1))


class Attributes(TypedDict, total=False):
    """What all kinds of layers may be given."""

    activation_alpha: Sequence[float] | None
    activation_beta: Sequence[float] | None
    activations: Sequence[str] | None
    clip: float | None
    direction: str
    layout: int


@dataclass(frozen=True)
class Layer:
    """What the three kinds of layers share: activations, directions, layout, lengths of the sequences."""

    default: tuple[str, ...]
    hidden: int
    lengths: Array | None
    activation_alpha: Sequence[float] | None = None
    activation_beta: Sequence[float] | None = None
    activations: Sequence[str] | None = None
    clip: float | None = None
    direction: str = "forward"
    layout: int = 0

    @property
    def directions(self) -> int:
        return len(REVERSED[self.direction])

    def functions(self) -> list[list[Unary]]:
        """The activations of every direction; alpha and beta values go, in order, to those that take one."""
        left = [list(self.activation_alpha or ()), list(self.activation_beta or ())]
        functions: list[Unary] = []
        # RNN's schema has a default for two directions, which ORT writes into nodes of one
        for name in (self.activations or self.default * self.directions)[: len(self.default) * self.directions]:
            function, defaults = ACTIVATIONS[name.lower()]
            scales = [given.pop(0) if given else value for given, value in zip(left, defaults, strict=False)]
            functions.append(partial(scaled, function, scales))
        each = len(self.default)
        return [functions[start : start + each] for start in range(0, len(functions), each)]

    def clipped(self, x: Array) -> Array:
        return x if self.clip is None else mx.clip(x, -self.clip, self.clip)

    def initial(self, x: Array, *given: Array | None) -> list[Array]:
        """The states [D, B, H] to start from; zeros where none is given."""
        zeros = mx.zeros([self.directions, x.shape[1 - self.layout], self.hidden], x.dtype)
        return [zeros if state is None else self.swapped(state) for state in given]

    def swapped(self, x: Array) -> Array:
        return x.swapaxes(0, 1) if self.layout else x

    def backwards(self, x: Array) -> Array:
        return reversed_along(x, 0) if self.lengths is None else reverse_sequence(x, self.lengths)

    def run(self, x: Array, build: Callable[[int], Direction], initial: Sequence[Array]) -> States:
        """Y and the last states of the directions."""
        outputs, finals = [], []
        for index, backwards in enumerate(REVERSED[self.direction]):
            project, cell = build(index)
            steps = project(self.backwards(self.swapped(x)) if backwards else self.swapped(x))
            states = tuple(state[index] for state in initial)
            if isinstance(cell, Plain | Quantized):
                hidden, last = at_once(steps, cell, states)
            else:
                hidden, last = unrolled(steps, cell, states, self.lengths)
            outputs.append(self.backwards(hidden) if backwards else hidden)
            finals.append(last)
        y = mx.stack(outputs, 1)
        return (
            y.transpose([2, 0, 1, 3]) if self.layout else y,
            *(self.swapped(mx.stack(list(states))) for states in zip(*finals, strict=True)),
        )


class Recurrence(NamedTuple):
    """The prepared weights R: [D, gates, hidden], or packed by direction where one primitive runs all steps."""

    weights: Array | tuple[Packed, ...]
    hidden: int

    @classmethod
    def of(cls, r: Array, at_once: bool) -> Recurrence:
        wide = widen(r)
        if at_once and cpu_primitives.recurs(wide):
            return cls(tuple(map(cpu_primitives.pack_rows, wide)), r.shape[-1])
        return cls(wide, r.shape[-1])


def usual(default: tuple[str, ...], activations: Sequence[str] | None, clip: float | None) -> bool:
    """Whether every direction has the default activations, unclipped."""
    names = [name.lower() for name in activations or default]
    return clip is None and names == [name.lower() for name in default] * (len(names) // len(default))


def scaled(function: Callable[..., Array], scales: Sequence[float], x: Array) -> Array:
    return function(x, *scales)


def products(weights: Array) -> Callable[[int], Unary]:
    """By direction: the product with the rows of [D, gates, K]."""
    return lambda index: lambda x: mx.matmul(x, weights[index].T)


def with_bias(product: Unary, bias: Array | None) -> Unary:
    return product if bias is None else lambda x: product(x) + bias


@op("RNN", since=7, dtypes=TYPES, prepare={"w": widen, "r": widen})
@widened
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    hidden_size: int | None = None,
    n_outputs: int,
    **attributes: Unpack[Attributes],
) -> States:
    layer = Layer(RNN, r.shape[-1], sequence_lens, **attributes)
    functions = layer.functions()

    def build(index: int) -> Direction:
        (f,), recur = functions[index], products(r)(index)

        def cell(step: Array, states: States) -> States:
            return (f(layer.clipped(step + recur(states[0]))),)

        return with_bias(products(w)(index), summed(b, index)), cell

    return layer.run(x, build, layer.initial(x, initial_h))[:n_outputs]


def gru_recurrence(
    r: Array,
    sequence_lens: Array | None = None,
    *,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
) -> Recurrence:
    """The prepared weights R of a GRU."""
    return Recurrence.of(r, bool(linear_before_reset) and sequence_lens is None and usual(GRU, activations, clip))


@op("GRU", since=7, dtypes=TYPES, prepare={"w": widen, "r": gru_recurrence})
@widened
def gru(
    x: Array,
    w: Array,
    r: Recurrence,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    hidden_size: int | None = None,
    linear_before_reset: int = 0,
    n_outputs: int,
    **attributes: Unpack[Attributes],
) -> States:
    hidden, weights = r.hidden, r.weights
    layer = Layer(GRU, hidden, sequence_lens, **attributes)
    functions = layer.functions()

    def build(index: int) -> Direction:
        f, g = functions[index]
        bias = mx.zeros([6 * hidden], x.dtype) if b is None else b[index]
        # the hidden bias of update and reset joins the input's; that of the candidate stays with its product
        steps_bias = mx.concatenate([bias[: 2 * hidden] + bias[3 * hidden : 5 * hidden], bias[2 * hidden : 3 * hidden]])
        project = with_bias(products(w)(index), steps_bias)
        if isinstance(weights, tuple):
            return project, Plain(weights[index], bias[5 * hidden :])
        recur_gates = products(weights[:, : 2 * hidden])(index)
        recur = with_bias(products(weights[:, 2 * hidden :])(index), bias[5 * hidden :])

        def cell(step: Array, states: States) -> States:
            update, reset = mx.split(f(layer.clipped(step[:, : 2 * hidden] + recur_gates(states[0]))), 2, -1)
            past = reset * recur(states[0]) if linear_before_reset else recur(reset * states[0])
            new = g(layer.clipped(step[:, 2 * hidden :] + past))
            return (new + update * (states[0] - new),)

        return project, cell

    return layer.run(x, build, layer.initial(x, initial_h))[:n_outputs]


def lstm_recurrence(
    r: Array,
    sequence_lens: Array | None = None,
    p: Array | None = None,
    *,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    input_forget: int = 0,
) -> Recurrence:
    """The prepared weights R of an LSTM."""
    plain = p is None and not input_forget and usual(LSTM, activations, clip)
    return Recurrence.of(r, plain and sequence_lens is None)


@op("LSTM", since=7, dtypes=TYPES, prepare={"w": widen, "r": lstm_recurrence})
@widened
def lstm(
    x: Array,
    w: Array,
    r: Recurrence,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    hidden_size: int | None = None,
    input_forget: int = 0,
    n_outputs: int,
    **attributes: Unpack[Attributes],
) -> States:
    layer = Layer(LSTM, r.hidden, sequence_lens, **attributes)

    def build(index: int) -> Direction:
        project, weights = with_bias(products(w)(index), summed(b, index)), r.weights
        if isinstance(weights, tuple):
            return project, Plain(weights[index])
        return project, lstm_cell(layer, index, products(weights)(index), p, input_forget)

    return layer.run(x, build, layer.initial(x, initial_h, initial_c))[:n_outputs]


def summed(b: Array | None, index: int) -> Array | None:
    """The biases of W and R, [D, 2 * gates], in one direction."""
    return None if b is None else mx.sum(b[index].reshape([2, -1]), 0)


def lstm_cell(layer: Layer, index: int, recur: Unary, p: Array | None, input_forget: int) -> Cell:
    """The cell in one direction, over any product with R; gates are ordered input, output, forget, cell."""
    f, g, h = layer.functions()[index]
    peep_in, peep_out, peep_forget = mx.split(p[index], 3) if p is not None else (None, None, None)

    def gate(value: Array, peephole: Array | None, memory: Array) -> Array:
        return f(layer.clipped(value if peephole is None else value + peephole * memory))

    def cell(step: Array, states: States) -> States:
        hidden, memory = states
        i, o, forget, c = mx.split(step + recur(hidden), 4, -1)
        i = gate(i, peep_in, memory)
        forget = 1 - i if input_forget else gate(forget, peep_forget, memory)
        memory = forget * memory + i * g(layer.clipped(c))
        return gate(o, peep_out, memory) * h(memory), memory

    return cell


class Factors(NamedTuple):
    """Prepared 8-bit weights [D, K, gates] by direction."""

    each: tuple[PackedBytes | ExactFactor, ...]
    rows: int


def factors(weights: Array, zero_points: Array) -> Factors:
    """Of weights and zero points [D] or [D, gates], one or one for each column."""
    each = (factor_of_bytes(*linear, weights=True) for linear in zip(weights, zero_points, strict=True))
    return Factors(tuple(each), weights.shape[1])


def quantized_product(weights: PackedBytes | ExactFactor, scale: Array) -> Unary:
    """The product of x, quantised as it comes, with weights."""

    def product(x: Array) -> Array:
        levels, level_scale, zero = dynamic_quantize_linear(x)
        return integer_product(levels, weights, zero).astype(mx.float32) * (level_scale * scale)

    return product


@op(
    "DynamicQuantizeLSTM",
    domain=MICROSOFT,
    dtypes={"x": frozenset({"float32"}), "w": BYTES, "r": BYTES},
    prepare={("w", "w_zero_point"): factors, ("r", "r_zero_point"): factors},
)
def dynamic_quantize_lstm(
    x: Array,
    w: Factors,
    r: Factors,
    b: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    w_scale: Array,
    w_zero_point: None,
    r_scale: Array,
    r_zero_point: None,
    *,
    hidden_size: int | None = None,
    input_forget: int = 0,
    n_outputs: int,
    **attributes: Unpack[Attributes],
) -> States:
    layer = Layer(LSTM, r.rows, sequence_lens, **attributes)
    plain = p is None and not input_forget and usual(LSTM, layer.activations, layer.clip)

    def build(index: int) -> Direction:
        project = with_bias(quantized_product(w.each[index], w_scale[index]), summed(b, index))
        weights = r.each[index]
        if isinstance(weights, PackedBytes) and plain and sequence_lens is None:
            return project, Quantized(weights, r_scale[index])
        recur = quantized_product(weights, r_scale[index])
        return project, lstm_cell(layer, index, recur, p, input_forget)

    return layer.run(x, build, layer.initial(x, initial_h, initial_c))[:n_outputs]
