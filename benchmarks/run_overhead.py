"""What a run through ONNX Runtime and this provider costs, against the same graph in mlx.core under mx.compile.

Numpy in, numpy out on every side, in turns in one process; ONNX Runtime's CPU provider with one thread beside them.
`eval` is the part of the run in which MLX computes, by the provider's own counter. On the CPU the calling thread does
that; the way to MLX's worker thread and back, which `mlx.core` takes, is measured below the table. Polling for the
result instead of sleeping made that way longer (28 us for 16, two cores): the poll takes the lock that the worker
needs. Without `--fused` MLX's compile is off for mlx.core on the CPU: there it starts a C++ compiler for each kernel,
and the kernels are no faster.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import output
import timing
from gpu_models import Benchmarked, mlp, resnet50
from onnx import helper

import mlxc_py  # its BLAS routing serves mlx.core, too
import ort_ep


def elementwise(op: str, width: int, repeats: int = 1) -> Benchmarked:
    """One operator, or a row of them, on [N, width]."""
    names = ["x", *(f"y{i}" for i in range(repeats))]
    second = ["x"] if op == "Add" else []
    nodes = [helper.make_node(op, [names[i], *second], [names[i + 1]]) for i in range(repeats)]
    given, result = (helper.make_tensor_value_info(name, 1, ["N", width]) for name in ("x", names[-1]))
    graph = helper.make_graph(nodes, op, [given], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    def in_mlx(mx: Any) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            y = x
            for _ in range(repeats):
                y = y + x if op == "Add" else mx.maximum(y, 0) if op == "Relu" else y
            return y

        return run

    return Benchmarked(f"{op} x {repeats}, {width}", model, (width,), "float32", in_mlx)


def models() -> Iterator[Benchmarked]:
    yield elementwise("Identity", 8)
    yield elementwise("Relu", 8)
    yield elementwise("Add", 8, 100)
    yield elementwise("Add", 1 << 20)
    yield mlp(256)
    yield mlp(1024)
    yield resnet50()


def measure(model: Benchmarked, engine: str, fused: bool, rounds: int, seconds: float) -> dict[str, Any]:
    core = importlib.import_module("mlx.core")
    data, x = model.onnx.SerializeToString(), model.example(1)
    session, cpu = timing.on_mlx(data, engine=engine), timing.on_cpu(data, 1)
    name = session.get_inputs()[0].name
    function = model.mlx(core)
    compiled = core.compile(function) if fused else function
    counter = ort_ep.claim_report(session).runs
    inside: list[float] = []

    def on_mlx() -> Any:
        before = counter.evaluating_ns
        result = session.run(None, {name: x})[0]
        inside.append((counter.evaluating_ns - before) / 1e6)
        return result

    sides: dict[str, Callable[[], Any]] = {
        "ep": on_mlx,
        "mlx.core": lambda: np.array(compiled(core.array(x))),
        "cpu": lambda: cpu.run(None, {name: x})[0],
    }
    reference = sides["cpu"]()
    for side in ("ep", "mlx.core"):
        np.testing.assert_allclose(sides[side](), reference, rtol=1e-3, atol=1e-3 * float(np.abs(reference).max()))
    medians = {side: timing.summary(s)["median"] for side, s in timing.in_turns(sides, rounds, seconds).items()}
    within = timing.summary(inside)["median"]
    return {
        "model": model.name,
        "ep, ms": medians["ep"],
        "eval, ms": within,
        "around it, us": (medians["ep"] - within) * 1e3,
        "mlx.core, ms": medians["mlx.core"],
        "cpu, ms": medians["cpu"],
        "ep / cpu": medians["ep"] / medians["cpu"],
        "ep / mlx.core": medians["ep"] / medians["mlx.core"],
    }


def trips(rounds: int) -> list[str]:
    """What an evaluation of next to nothing takes on MLX's worker thread and on the calling one."""
    mx, tape = mlxc_py, importlib.import_module("mlxc_py.tape")
    x = np.ones(8, np.float32)
    with mx.stream(mx.cpu):
        given, opened = mx.array(x), tape.placeholder(x.shape, mx.float32)
        made = tape.Tape([opened], [mx.negative(opened)])

        def queued(count: int) -> Callable[[], Any]:
            return lambda: mx.eval(*(mx.negative(given) for _ in range(count)))

        sides = {"queued": queued(1), "sixteen": queued(16), "here": lambda: made.run([x.ctypes.data])}
        notes = []
        for pause, when in ((0, "at once"), (0.003, "after 3 ms")):
            found = {
                side: timing.summary([1e3 * sample for sample in samples])
                for side, samples in timing.in_turns(sides, rounds, 60, pause).items()
            }
            told = {side: f"{one['median']:.1f} us (least {one['min']:.1f})" for side, one in found.items()}
            notes.append(
                f"{when}: one operation through MLX's queue {told['queued']}, sixteen in one evaluation"
                f" {told['sixteen']}, one on the calling thread {told['here']}"
            )
    return notes


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--engine", default="auto", help="the provider's option of that name")
    parser.add_argument("--fused", action="store_true", help="let mx.compile fuse on mlx.core's side")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10, help="a model, after which no further round starts")
    args = parser.parse_args()
    mlxc_py.library_path()
    rows = [measure(model, args.engine, args.fused, args.rounds, args.seconds) for model in models()]
    output.show(args, rows, notes=trips(5 * args.rounds), bars=("ep, ms", "mlx.core, ms", "cpu, ms"))


if __name__ == "__main__":
    main()
