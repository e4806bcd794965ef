"""What a run through ONNX Runtime and this provider costs, against the same graph in mlx.core under mx.compile.

Numpy in, numpy out on every side, in turns in one process; ONNX Runtime's CPU provider with one thread beside them.
`eval` is the part of the run in which MLX computes, by the provider's own counter. Of a small graph nearly all of it
is the way to MLX's worker thread and back. Polling for the result instead of sleeping made that longer (28 us for 16,
two cores): the poll takes the lock that the worker needs. Sixteen graphs in one evaluation took 5 us each instead of
25, but ONNX Runtime asks for one run at a time. Without `--fused` MLX's compile is
off for mlx.core on the CPU: there it starts a C++ compiler for each kernel, and the kernels are no faster.
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


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--engine", default="auto", help="the provider's option of that name")
    parser.add_argument("--fused", action="store_true", help="let mx.compile fuse on mlx.core's side")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10, help="a model, after which no further round starts")
    args = parser.parse_args()
    mlxc_py.library_path()
    rows = [measure(model, args.engine, args.fused, args.rounds, args.seconds) for model in models()]
    output.show(args, rows, bars=("ep, ms", "mlx.core, ms", "cpu, ms"))


if __name__ == "__main__":
    main()
