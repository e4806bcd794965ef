"""Decoders as they are exported, with random weights: key and value caches go in and come out a row longer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
MICROSOFT: Final = "com.microsoft"
MOST_POSITIONS: Final = 4096


@dataclass(frozen=True)
class Sizes:
    """`wide`: features between the two products of a layer that follow attention."""

    layers: int
    heads: int
    kv_heads: int
    depth: int
    wide: int
    words: int

    @property
    def state(self) -> int:
        return self.heads * self.depth


SMALL: Final = Sizes(layers=4, heads=4, kv_heads=4, depth=32, wide=512, words=256)
MIDDLE: Final = Sizes(layers=8, heads=8, kv_heads=4, depth=64, wide=1408, words=4096)


class Decoder:
    """Builds one model: `ids` (and `mask`), `key0`, `value0`, ... to `scores`, `new_key0`, `new_value0`, ..."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._random = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    # ---- parts
    def weight(self, *shape: int) -> str:
        return self.constant(self._random.normal(0, 0.05, shape).astype(np.float32))

    def scale(self, size: int) -> str:
        return self.constant(self._random.normal(1, 0.05, size).astype(np.float32))

    def constant(self, value: Any) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        return self.nodes(op, *inputs, outs=[out], **attributes)[0]

    def nodes(self, op: str, *inputs: str, outs: list[str | None], **attributes: Any) -> list[str]:
        """Each output named in `outs`, by itself where that is empty, absent where it is None."""
        made = f"t{len(self._nodes)}"
        results = ["" if name is None else name or f"{made}_{i}" for i, name in enumerate(outs)]
        self._nodes.append(helper.make_node(op, inputs, results, **attributes))
        return results

    def product(self, x: str, columns: int, rows: int = 0) -> str:
        return self.node("MatMul", x, self.weight(rows or self.sizes.state, columns))

    def in_heads(self, x: str, heads: int) -> str:
        shape = self.constant([0, 0, heads, self.sizes.depth])
        return self.node("Transpose", self.node("Reshape", x, shape), perm=[0, 2, 1, 3])

    def flat(self, x: str) -> str:
        shape = self.constant([0, 0, self.sizes.state])
        return self.node("Reshape", self.node("Transpose", x, perm=[0, 2, 1, 3]), shape)

    def longer(self, number: int, key: str, value: str) -> tuple[str, str]:
        key = self.node("Concat", f"key{number}", key, out=f"new_key{number}", axis=2)
        return key, self.node("Concat", f"value{number}", value, out=f"new_value{number}", axis=2)

    def mixed(self, query: str, key: str, value: str, bias: str) -> str:
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.node("Mul", scores, self.constant(np.float32(self.sizes.depth**-0.5)))
        scores = self.node("Add", scores, bias) if bias else scores
        return self.flat(self.node("MatMul", self.node("Softmax", scores, axis=-1), value))

    def finished(self, given: list[Any], state: str) -> bytes:
        self.node("MatMul", state, self.weight(self.sizes.state, self.sizes.words), out="scores")
        caches = [f"{kind}{number}" for number in range(self.sizes.layers) for kind in ("key", "value")]
        batch, heads, depth = "batch", self.sizes.kv_heads, self.sizes.depth
        given += [helper.make_tensor_value_info(name, FLOAT, [batch, heads, "past", depth]) for name in caches]
        made = [helper.make_tensor_value_info("scores", FLOAT, [batch, "step", self.sizes.words])]
        made += [helper.make_tensor_value_info(f"new_{name}", FLOAT, [batch, heads, "all", depth]) for name in caches]
        graph = helper.make_graph(self._nodes, "decoder", given, made, self._weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        data: bytes = model.SerializeToString()
        return data

    # ---- models
    def plain(self) -> bytes:
        """LayerNormalization, attention written out, no positions and no mask."""
        sizes = self.sizes = replace(self.sizes, kv_heads=self.sizes.heads)
        state = self.node("Gather", self.weight(sizes.words, sizes.state), "ids")
        for number in range(sizes.layers):
            normal = self.node("LayerNormalization", state, self.scale(sizes.state), self.weight(sizes.state))
            query, key, value = (self.in_heads(self.product(normal, sizes.state), sizes.heads) for _ in range(3))
            key, value = self.longer(number, key, value)
            mixed = self.product(self.mixed(query, key, value, ""), sizes.state)
            state = self.node("Add", state, mixed)
            inner = self.node("Relu", self.product(state, sizes.wide))
            state = self.node("Add", state, self.product(inner, sizes.state, sizes.wide))
        return self.finished([helper.make_tensor_value_info("ids", INT64, ["batch", "step"])], state)

    def gated(self, state: str) -> str:
        normal = self.normal(state)
        gate, up = (self.product(normal, self.sizes.wide) for _ in range(2))
        inner = self.node("Mul", self.node("Mul", gate, self.node("Sigmoid", gate)), up)
        return self.node("Add", state, self.product(inner, self.sizes.state, self.sizes.wide))

    def normal(self, x: str) -> str:
        """RMS normalisation, written out as exporters do."""
        power = self.node("ReduceMean", self.node("Pow", x, self.constant(np.float32(2))), axes=[-1], keepdims=1)
        root = self.node("Sqrt", self.node("Add", power, self.constant(np.float32(1e-6))))
        return self.node("Mul", self.node("Div", x, root), self.scale(self.sizes.state))

    def angles(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        half = self.sizes.depth // 2
        angles = np.arange(MOST_POSITIONS)[:, None] * 10000.0 ** (-np.arange(half) / half)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def turned(self, x: str, cos: str, sin: str) -> str:
        half = self.sizes.depth // 2
        first, second = (
            self.node("Slice", x, self.constant([start]), self.constant([end]), self.constant([3]))
            for start, end in ((0, half), (half, 2**62))
        )
        rotated = self.node("Concat", self.node("Neg", second), first, axis=3)
        return self.node("Add", self.node("Mul", x, cos), self.node("Mul", rotated, sin))

    def repeated(self, x: str, length: str) -> str:
        """Each head for several heads of the query."""
        heads, kv_heads, depth = self.sizes.heads, self.sizes.kv_heads, self.sizes.depth
        if heads == kv_heads:
            return x
        parts = [self.constant([value]) for value in (kv_heads, heads // kv_heads, depth, heads)]
        batch = self.node("Slice", self.node("Shape", x), self.constant([0]), self.constant([1]))
        apart = self.node("Concat", batch, parts[0], parts[1], length, parts[2], axis=0)
        together = self.node("Concat", batch, parts[3], length, parts[2], axis=0)
        wide = self.node("Expand", self.node("Unsqueeze", x, self.constant([2])), apart)
        return self.node("Reshape", wide, together)

    def exported(self) -> bytes:
        """As torch exports a Llama: positions and mask computed from shapes, rotation and normalisation written out."""
        sizes = self.sizes
        state = self.node("Gather", self.weight(sizes.words, sizes.state), "ids")
        step = self.node("Slice", self.node("Shape", "ids"), self.constant([1]), self.constant([2]))
        past = self.node("Slice", self.node("Shape", "key0"), self.constant([2]), self.constant([3]))
        everything = self.node("Add", past, step)
        zero, one, scalar = self.constant(0), self.constant(1), self.constant(np.zeros(0, np.int64))
        begin, end = (self.node("Reshape", value, scalar) for value in (past, everything))
        positions = self.node("Range", begin, end, one)
        cos, sin = (
            self.node("Gather", self.constant(np.concatenate([table, table], 1)), positions) for table in self.angles()
        )
        columns = self.node("Unsqueeze", self.node("Range", zero, end, one), self.constant([0]))
        behind = self.node("Greater", columns, self.node("Unsqueeze", positions, self.constant([1])))
        shown = self.node("Unsqueeze", self.node("Cast", "mask", to=TensorProto.BOOL), self.constant([1, 2]))
        hidden = self.node("Or", behind, self.node("Not", shown))
        bias = self.node("Where", hidden, self.constant(np.float32(-1e30)), self.constant(np.float32(0)))
        for number in range(sizes.layers):
            normal = self.normal(state)
            query = self.turned(self.in_heads(self.product(normal, sizes.state), sizes.heads), cos, sin)
            key, value = (
                self.in_heads(self.product(normal, sizes.kv_heads * sizes.depth), sizes.kv_heads) for _ in range(2)
            )
            key, value = self.longer(number, self.turned(key, cos, sin), value)
            key, value = (self.repeated(x, everything) for x in (key, value))
            mixed = self.product(self.mixed(query, key, value, bias), sizes.state)
            state = self.gated(self.node("Add", state, mixed))
        return self.finished(self.ids_and_mask(), self.normal(state))

    def grouped(self) -> bytes:
        """As ONNX Runtime's tools build a Llama: GroupQueryAttention that rotates, sums that normalise."""
        sizes = self.sizes
        state = self.node("Gather", self.weight(sizes.words, sizes.state), "ids")
        counted = self.node("ReduceSum", "mask", self.constant([1]), keepdims=1)
        lengths = self.node("Cast", self.node("Sub", counted, self.constant(1)), to=INT32)
        total = self.node("Gather", self.node("Shape", "mask"), self.constant(1))
        total = self.node("Cast", total, to=INT32)
        cos, sin = map(self.constant, self.angles())
        normal = self.node("SimplifiedLayerNormalization", state, self.scale(sizes.state), epsilon=1e-6)
        for number in range(sizes.layers):
            query = self.product(normal, sizes.state)
            key, value = (self.product(normal, sizes.kv_heads * sizes.depth) for _ in range(2))
            mixed = self.nodes(
                "GroupQueryAttention",
                *(query, key, value, f"key{number}", f"value{number}", lengths, total, cos, sin),
                outs=["", f"new_key{number}", f"new_value{number}"],
                domain=MICROSOFT,
                do_rotary=1,
                num_heads=sizes.heads,
                kv_num_heads=sizes.kv_heads,
            )[0]
            normal, state = self.summed(state, self.product(mixed, sizes.state))
            gate, up = (self.product(normal, sizes.wide) for _ in range(2))
            inner = self.node("Mul", self.node("Mul", gate, self.node("Sigmoid", gate)), up)
            normal, state = self.summed(state, self.product(inner, sizes.state, sizes.wide))
        return self.finished(self.ids_and_mask(), normal)

    def summed(self, state: str, further: str) -> list[str]:
        """The sum, normalised and as it is."""
        made = self.nodes(
            "SkipSimplifiedLayerNormalization",
            *(state, further, self.scale(self.sizes.state)),
            outs=["", None, None, ""],
            domain=MICROSOFT,
            epsilon=1e-6,
        )
        return [made[0], made[3]]

    def ids_and_mask(self) -> list[Any]:
        return [
            helper.make_tensor_value_info("ids", INT64, ["batch", "step"]),
            helper.make_tensor_value_info("mask", INT64, ["batch", "all"]),
        ]


MODELS: Final = ("plain", "exported", "grouped")


def decoder(kind: str, sizes: Sizes) -> bytes:
    """One of MODELS, serialised."""
    build = getattr(Decoder(sizes), kind)
    data: bytes = build()
    return data
