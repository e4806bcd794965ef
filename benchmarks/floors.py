"""What a model has to do at least, and how fast this machine can do it: multiplications, bytes, calls.

Work is counted over one profiled run of ONNX Runtime's CPU provider, so bodies of loops count as often as they run:
two FLOPs for each multiplication of convolutions, products and recurrent layers; the bytes that each of its kernels
reads and writes (after its own fusions, views left out). The rates are this machine's on one thread: ONNX Runtime's
product of two 1024 x 1024 matrices, a copy of 32 MiB, and one addition of eight numbers in a chain of them on MLX.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
import timing
from onnx import helper

VIEWS = {"Reshape", "Flatten", "Identity", "Squeeze", "Unsqueeze", "If", "Loop", "Scan"}
RECURRENT = {"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"}


class Work(NamedTuple):
    """Of one run."""

    flops: float
    moved: float


class Rates(NamedTuple):
    """Of this machine: GFLOP/s, GB/s, microseconds for each operation."""

    gflops: float
    gigabytes: float
    call: float

    def floors(self, work: Work, operations: int) -> dict[str, float]:
        """Milliseconds that each kind of work takes alone."""
        return {
            "FLOPs": work.flops / self.gflops / 1e6,
            "bytes": work.moved / self.gigabytes / 1e6,
            "calls": operations * self.call / 1e3,
        }


def work(model: str, feed: timing.Feeds) -> Work:
    kernels = list(profiled(model, feed))
    moved = sum(
        float(kernel[f"{kind}_size"])
        for kernel in kernels
        if kernel["op_name"] not in VIEWS
        for kind in ("activation", "parameter", "output")
    )
    return Work(float(sum(map(flops, kernels))), moved)


def profiled(model: str, feed: timing.Feeds) -> Iterator[dict[str, Any]]:
    """What ONNX Runtime notes of each kernel of one run."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED  # beyond it layouts are its own
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    for event in events:
        if event.get("name", "").endswith("_kernel_time"):
            yield event["args"]


def flops(kernel: Mapping[str, Any]) -> int:
    op = kernel["op_name"]
    given, made = (sizes(kernel[f"{kind}_type_shape"]) for kind in ("input", "output"))
    if "Conv" in op:
        image, weight = given[0], next(shape for shape in given[1:] if len(shape) == len(given[0]))
        return 2 * math.prod(image if "Transpose" in op else made[0]) * math.prod(weight[1:])
    if op in RECURRENT:
        (steps, batch, _), *weights = given
        return 2 * steps * batch * sum(math.prod(shape) for shape in weights[:2])
    if "MatMul" in op:
        return 2 * math.prod(made[0]) * given[0][-1]
    if "Gemm" in op:
        return 2 * math.prod(made[0]) * math.prod(given[0]) // made[0][0]
    return 0


def sizes(described: Sequence[Mapping[str, list[int]]]) -> list[list[int]]:
    return [shape for one in described for shape in one.values()]


# ---------------------------------------------------------------- the machine
def rates() -> Rates:
    side = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    block, adds = np.zeros(1 << 25, np.uint8), 500
    product = timing.on_cpu(chain("MatMul", 1, side.shape), 1)
    sums, one = (timing.on_mlx(chain("Add", n, (8,))) for n in (adds, 1))
    row = {"x": side[0, :8]}
    sides = {
        "product": lambda: product.run(None, {"x": side}),
        "copy": block.copy,
        "sums": lambda: sums.run(None, row),
        "one": lambda: one.run(None, row),
    }
    least = {name: timing.summary(samples)["min"] for name, samples in timing.in_turns(sides, 30, 3).items()}
    return Rates(
        2 * 1024**3 / least["product"] / 1e6,
        2 * block.nbytes / least["copy"] / 1e6,
        (least["sums"] - least["one"]) / (adds - 1) * 1e3,
    )


def chain(op: str, length: int, shape: Sequence[int]) -> bytes:
    """A model that applies an operator to x and its own last result."""
    names = ["x", *(f"y{i}" for i in range(length))]
    nodes = [helper.make_node(op, [names[i], "x"], [names[i + 1]]) for i in range(length)]
    ends = [helper.make_tensor_value_info(name, 1, shape) for name in ("x", names[-1])]
    graph = helper.make_graph(nodes, op, ends[:1], ends[1:])
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    return data
