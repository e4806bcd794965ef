"""What a decoder costs whose key and value caches grow by a row in each run, so that no shape comes back.

A trace for each run would cost more than the eager run that it stands for, so the provider makes a few ahead of replays
and then runs eagerly (`ort_ep/traces.py`); `--engine` also takes eager, which never traces. Several texts, one after
the other; ONNX Runtime's CPU provider with one thread beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import output
import timing
from onnx import TensorProto, helper, numpy_helper

import ort_ep

LAYERS, HEADS, WIDTH, WORDS = 4, 4, 32, 256
STATE = HEADS * WIDTH


class Decoder:
    """Builds the model: `ids`, and `key0`, `value0`, ... before and after the run."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def weight(self, *shape: int) -> str:
        return self.constant(self._random.normal(0, 0.05, shape).astype(np.float32))

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        result = to or f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [result], **attributes))
        return result

    def layer(self, number: int, state: str) -> str:
        heads, flat = (self.constant(np.array(shape)) for shape in ([1, 1, HEADS, WIDTH], [1, 1, STATE]))
        normal = self.node("LayerNormalization", state, self.weight(STATE), self.weight(STATE))
        query, key, value = (
            self.node("Transpose", self.node("Reshape", product, heads), perm=[0, 2, 1, 3])
            for product in [self.node("MatMul", normal, self.weight(STATE, STATE)) for _ in range(3)]
        )
        key = self.node("Concat", f"key{number}", key, to=f"new_key{number}", axis=2)
        value = self.node("Concat", f"value{number}", value, to=f"new_value{number}", axis=2)
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        scaled = self.node("Mul", scores, self.constant(np.array(WIDTH**-0.5, np.float32)))
        mixed = self.node("MatMul", self.node("Softmax", scaled, axis=-1), value)
        joined = self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        state = self.node("Add", state, self.node("MatMul", joined, self.weight(STATE, STATE)))
        inner = self.node("Relu", self.node("MatMul", state, self.weight(STATE, 4 * STATE)))
        return self.node("Add", state, self.node("MatMul", inner, self.weight(4 * STATE, STATE)))

    def model(self) -> bytes:
        state = self.node("Gather", self.weight(WORDS, STATE), "ids")
        for number in range(LAYERS):
            state = self.layer(number, state)
        self.node("MatMul", state, self.weight(STATE, WORDS), to="scores")
        caches = [f"{kind}{number}" for number in range(LAYERS) for kind in ("key", "value")]
        given = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 1])]
        given += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, HEADS, "past", WIDTH]) for name in caches]
        made = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1, WORDS])]
        made += [
            helper.make_tensor_value_info(f"new_{name}", TensorProto.FLOAT, [1, HEADS, "all", WIDTH]) for name in caches
        ]
        graph = helper.make_graph(self._nodes, "decoder", given, made, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        data: bytes = model.SerializeToString()
        return data


def decode(session: Any, steps: int) -> tuple[list[float], list[int]]:
    """Milliseconds of each step, and the words."""
    names = [given.name for given in session.get_inputs()][1:]
    caches = {name: np.zeros((1, HEADS, 1, WIDTH), np.float32) for name in names}
    words, took = [1], []
    for _ in range(steps):
        feed = {"ids": np.array([[words[-1]]]), **caches}
        milliseconds, results = timing.once(lambda: session.run(None, feed))  # noqa: B023  (called at once)
        took.append(milliseconds)
        words.append(int(results[0].argmax()))
        caches = dict(zip(names, results[1:], strict=True))
    return took, words


def measure(engines: Sequence[str], steps: int, texts: int) -> list[dict[str, Any]]:
    data = Decoder().model()
    sessions = {engine: timing.on_mlx(data, engine=engine) for engine in engines} | {"cpu": timing.on_cpu(data, 1)}
    took: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(texts):
        written = set()
        for name, session in sessions.items():
            milliseconds, words = decode(session, steps)
            took[name] += milliseconds
            written.add(tuple(words))
        assert len(written) == 1, "the engines do not write the same text"
    rows = []
    for name, session in sessions.items():
        summary = timing.summary(took[name])
        traces = ort_ep.claim_report(session).compile.traces if name != "cpu" else 0
        rows.append(
            {
                "engine": name,
                "runs": len(took[name]),
                "traces": traces,
                "step, ms": summary["median"],
                "fastest, ms": summary["min"],
                "cpu, ms": statistics.median(took["cpu"]),
                "ratio": summary["median"] / statistics.median(took["cpu"]),
            }
        )
    return rows


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--engine", nargs="+", default=["auto", "eager"], help="values of the provider's option")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--texts", type=int, default=3)
    args = parser.parse_args()
    rows = measure(args.engine, args.steps, args.texts)
    output.show(args, rows, bars=("step, ms", "fastest, ms"), label=("engine",))


if __name__ == "__main__":
    main()
