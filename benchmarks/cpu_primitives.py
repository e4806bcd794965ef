"""What the vectorised CPU primitives gain over MLX's own operations, and over numpy on one thread.

All sides run in turns in one process. The floor is a copy of as many bytes as the operation must move; for convolutions
and products the primitive's own rate in GFLOP/s stands there instead. Set OPENBLAS_NUM_THREADS=1, so that numpy has one
thread too. `--isa` chooses a lesser instruction set.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import output

import mlxc_py as mx
from mlxc_py import cpu_indexing, cpu_packed
from mlxc_py import cpu_primitives as cpu
from mlxc_py.tape import Tape, placeholder

Side = Callable[[], Any]
Factor = TypeVar("Factor")


class Row(NamedTuple):
    """One question: the same thing done by each side, and its size in bytes moved or in multiplications."""

    name: str
    ours: Callable[[], mx.Array]
    composed: Callable[[], mx.Array]
    numpy: Side | None
    bytes_moved: int = 0
    products: int = 0


def gelu(x: mx.Array) -> mx.Array:
    return x * 0.5 * (1 + mx.erf(x * 0.70710678))


def elementwise(size: int, dtype: mx.Dtype) -> Iterator[Row]:
    """Functions of `size` numbers."""
    host = np.random.default_rng(0).normal(0, 3, size).astype(dtype.numpy)
    x, scale, zero = mx.array(host), mx.array([0.05]), mx.array([3], mx.int8)
    moved = 2 * host.nbytes

    def sigmoid() -> Any:
        return 1 / (1 + np.exp(-host))

    rows: list[tuple[str, Callable[[mx.Array], mx.Array], Callable[[mx.Array], mx.Array], Side | None]] = [
        ("exp", cpu.exp, mx.exp, lambda: np.exp(host)),
        ("log(1 + exp)", cpu.softplus, lambda a: mx.logaddexp(a, 0), lambda: np.logaddexp(host, 0)),
        ("tanh", cpu.tanh, mx.tanh, lambda: np.tanh(host)),
        ("erf", cpu.erf, mx.erf, None),
        ("sin", cpu.sin, mx.sin, lambda: np.sin(host)),
        ("sigmoid", cpu.sigmoid, mx.sigmoid, sigmoid),
        ("silu", cpu.silu, lambda a: a * mx.sigmoid(a), None),
        ("gelu", cpu.gelu, gelu, None),
        ("a + a", lambda a: cpu.add(a, a), lambda a: a + a, lambda: host + host),
    ]
    for name, ours, composed, numpy in rows:
        yield Row(f"{name}, {dtype.name}", partial(ours, x), partial(composed, x), numpy, moved)
    rows_of = x.reshape(-1, 1024)
    by_row = host.reshape(-1, 1024)

    def softmax() -> Any:
        shrunk = np.exp(by_row - by_row.max(-1, keepdims=True))
        return shrunk / shrunk.sum(-1, keepdims=True)

    precise = lambda: mx.softmax(rows_of, -1, precise=True)  # noqa: E731
    yield Row(f"softmax of 1024, {dtype.name}", lambda: cpu.softmax(rows_of), precise, softmax, moved)
    if dtype is mx.float32:
        half = x.astype(mx.float16)
        yield Row(
            "float16 to float32", lambda: cpu.convert(half, mx.float32), lambda: half.astype(mx.float32), None, 6 * size
        )
        level = lambda: mx.clip(mx.round(x / scale) + 3, -128, 127).astype(mx.int8)  # noqa: E731
        yield Row("quantise to int8", lambda: cpu.quantize(x, scale, zero), level, None, 5 * size)


def recorded(function: Callable[[mx.Array], mx.Array], x: mx.Array) -> Callable[[], mx.Array]:
    """The function on x, with what depends on constants only (the packing of weights) computed beforehand."""
    stand_in = placeholder(x.shape, x.dtype)
    tape = Tape([stand_in], [function(stand_in)])
    return lambda: tape([x])[0]


def convolved(w: mx.Array, b: mx.Array, given: dict[str, Any], x: mx.Array) -> mx.Array:
    return cpu.convolution(x, w, b, dilation=(1, 1), **given)


def composed_convolution(w: mx.Array, b: mx.Array, given: dict[str, Any], x: mx.Array) -> mx.Array:
    return mx.conv_general(x, w, **given) + b


def times_packed(words: mx.Array, gains: mx.Array, offsets: mx.Array, a: mx.Array) -> mx.Array:
    return cpu_packed.product(a, words, gains, offsets, 4)


def composed_times_packed(words: mx.Array, gains: mx.Array, offsets: mx.Array, a: mx.Array) -> mx.Array:
    return mx.quantized_matmul(a, words, gains, offsets, True, 32, 4)


def times(multiply: Callable[[mx.Array, Factor], mx.Array], b: Factor, a: mx.Array) -> mx.Array:
    return multiply(a, b)


def windows() -> Iterator[Row]:
    """Convolutions of one image, pooling, products by weights."""
    random = np.random.default_rng(0)

    def numbers(*shape: int) -> mx.Array:
        return mx.array(random.normal(size=shape).astype(np.float32))

    for side, channels, made, kernel, groups, stride in (
        (56, 64, 64, 3, 1, 1),
        (14, 256, 256, 3, 1, 1),
        (56, 64, 256, 1, 1, 1),
        (224, 3, 64, 7, 1, 2),
        (14, 272, 272, 1, 4, 1),
        (14, 192, 192, 5, 192, 1),
        (112, 32, 32, 3, 32, 2),
    ):
        x, w, b = numbers(1, side, side, channels), numbers(made, kernel, kernel, channels // groups), numbers(made)
        pad = kernel // 2
        given: dict[str, Any] = {"stride": (stride, stride), "padding": ((pad, pad), (pad, pad)), "groups": groups}
        what = (
            f"{kernel}x{kernel}" + (f" / {stride}" if stride > 1 else "") + (f", {groups} groups" if groups > 1 else "")
        )
        yield Row(
            f"conv {side}x{side}, {channels} to {made}, {what}",
            recorded(partial(convolved, w, b, given), x),
            recorded(partial(composed_convolution, w, b, given), x),
            None,
            products=(side // stride) ** 2 * made * kernel**2 * channels // groups,
        )
    x = numbers(1, 112, 112, 64)
    taps = [x[:, i : i + 109 : 2, j : j + 109 : 2] for i in range(3) for j in range(3)]
    mx.eval(*taps)

    def composed() -> mx.Array:
        best = taps[0]
        for tap in taps[1:]:
            best = mx.maximum(best, tap)
        return best

    moved = 4 * (x.size + 55 * 55 * 64)
    pool = lambda: cpu.pool(x, (3, 3), (55, 55), maximum=True, stride=(2, 2))  # noqa: E731
    yield Row("max pool 3x3 / 2, 112x112, 64", pool, composed, None, moved)
    for rows, length, made in ((1, 768, 768), (128, 768, 3072), (1024, 1024, 1024)):
        a, b = numbers(rows, length), numbers(length, made)
        yield Row(
            f"product {rows} x {length} x {made}",
            recorded(partial(times, cpu.matmul, b), a),
            recorded(partial(times, mx.matmul, b), a),
            partial(np.matmul, np.array(a), np.array(b)),
            products=rows * length * made,
        )
        bytes_a, bytes_b = (mx.clip(v * 40, -127, 127).astype(mx.int8) for v in (a, b))
        yield Row(
            f"product of bytes {rows} x {length} x {made}",
            recorded(partial(times, cpu.integer_matmul, cpu.pack_byte_matrix(bytes_b)), bytes_a),
            recorded(partial(times, mx.matmul, b), a),
            None,
            products=rows * length * made,
        )
        words, gains, offsets = mx.quantize(b.T, 32, 4)
        yield Row(
            f"product of 4 bits {rows} x {length} x {made}",
            recorded(partial(times_packed, words, gains, offsets), a),
            recorded(partial(composed_times_packed, words, gains, offsets), a),
            None,
            products=rows * length * made,
        )
    x, places = numbers(1, 64, 64, 64), mx.array(np.arange(128)[:, None] // 2 + [0, 1], mx.int32)
    weights = mx.full((128, 2), 0.5)
    ends = [places[:, tap] for tap in (0, 1)]
    mx.eval(places, weights, *ends)

    def doubled(image: mx.Array) -> mx.Array:
        for axis in (1, 2):
            image = cpu_indexing.take_sums(image, places, weights, axis)
        return image

    def composed_doubled(image: mx.Array) -> mx.Array:
        for axis in (1, 2):
            first, last = (mx.take(image, mx.minimum(end, 63), axis) for end in ends)
            image = (first + last) * 0.5
        return image

    moved = 4 * 5 * x.size
    yield Row("resize 64x64 to 128x128, 64", recorded(doubled, x), recorded(composed_doubled, x), None, moved)


def measure(row: Row, rounds: int) -> dict[str, Any]:
    """Median milliseconds of each side, in turns after one untimed round, and of the floor."""
    block = np.zeros(max(row.bytes_moved // 2, 1), np.uint8)
    sides: dict[str, Side] = {"ours": lambda: row.ours().eval(), "mlx": lambda: row.composed().eval()}
    sides |= {"numpy": row.numpy} if row.numpy else {}
    sides |= {"floor": block.copy} if row.bytes_moved else {}
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, call in sides.items():
            start = time.perf_counter()
            call()
            if turn:
                samples[name].append((time.perf_counter() - start) * 1e3)
    found = {name: statistics.median(values) for name, values in samples.items()}
    rate = 2 * row.products / found["ours"] / 1e6 if row.products else None
    return {"ms": row.name, **found, "GFLOP/s": rate, "mlx / ours": found["mlx"] / found["ours"]}


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--size", type=int, default=1 << 20, help="elements of the elementwise rows")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each side, in turns, after one untimed")
    parser.add_argument("--isa", choices=("avx512vnni", "avx512", "avx2", "baseline"), help="instead of the best")
    args = parser.parse_args()
    if cpu.isa() is None:
        raise SystemExit("an official libmlxc has no CPU primitives: unset MLXC_PY_LIBRARY")
    if args.isa:
        cpu.use_isa(args.isa)
    size = -(-args.size // 1024) * 1024
    with mx.stream(mx.cpu):
        made = (*elementwise(size, mx.float32), *elementwise(size, mx.float16), *windows())
        results = [measure(row, args.rounds) for row in made]
    notes = [f"{cpu.isa()}, {size} elements in elementwise rows, milliseconds"]
    columns = ("ms", "ours", "mlx", "numpy", "floor", "GFLOP/s", "mlx / ours")
    output.show(args, results, columns, notes=notes, bars=("ours", "mlx", "numpy", "floor"))


if __name__ == "__main__":
    main()
