"""Chains of operators that MLX has one kernel for: attention, and a product with its bias.

Exporters write attention as MatMul, Mul, Add, Softmax, MatMul. MLX's kernel for it never holds the scores, and saves
launches: it pays on a GPU, and on the CPU it would be the same operators again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.capability import Translation
from ort_ep.graph import Graph, Value
from ort_ep.registry import Registry

DOMAIN: Final = "mlx"
_HANDLERS: Final = Registry()


@_HANDLERS.op("Attention", domain=DOMAIN)
def attention(q: Array, turned_k: Array, v: Array, mask: Array | None = None, *, scale: float) -> Array:
    """softmax(q @ turned_k * scale + mask) @ v."""
    k = mx.swapaxes(turned_k, -1, -2)
    whole = (*q.shape[:-1], k.shape[-2])
    fits = mask is None or mx.broadcast_shapes(mask.shape, whole) == whole
    if fits and q.ndim in (3, 4) and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        split = q.ndim == 3  # heads and examples in one dimension
        if split:
            q, k, v = (mx.expand_dims(each, 1) for each in (q, k, v))
            mask = mx.expand_dims(mask, 1) if mask is not None and mask.ndim == 3 else mask
        mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
        return mixed.squeeze(1) if split else mixed
    scores = mx.matmul(q, turned_k) * scale
    return mx.matmul(mx.softmax(scores if mask is None else scores + mask, -1, precise=True), v)


@_HANDLERS.op("MatMulAdd", domain=DOMAIN)
def matmul_add(a: Array, b: Array, bias: Array) -> Array:
    return mx.addmm(bias, a, b)


class _Scores(NamedTuple):
    """What the input of a Softmax is: `product` * scale + mask, and the calls between."""

    product: Translation
    scale: float
    mask: Value | None
    inner: tuple[Translation, ...]


def fused(graph: Graph, calls: Sequence[Translation]) -> list[Translation]:
    """The calls with each such chain as one call of a handler of its own, in bodies of control flow too."""
    entered = [replace(call, bodies=_bodies(call)) if call.bodies else call for call in calls]
    return _Fuser(graph, entered).run()


def _bodies(call: Translation) -> dict[str, tuple[Translation, ...]]:
    return {name: tuple(fused(call.node.bodies[name], inside)) for name, inside in call.bodies.items()}


class _Fuser:
    def __init__(self, graph: Graph, calls: Sequence[Translation]) -> None:
        self.calls = calls
        self.makers = {id(value): call for call in calls for value in call.node.outputs if value is not None}
        self.users: dict[int, list[Translation]] = {}
        for call in calls:
            for value in call.node.reads:
                self.users.setdefault(id(value), []).append(call)
        self.kept = {id(value) for value in graph.outputs}

    def run(self) -> list[Translation]:
        dropped: set[int] = set()
        made: dict[int, Translation] = {}
        for find in (self._attention, self._biased):
            for call in self.calls:
                found = find(call)
                if found is None or dropped.intersection(map(id, found[1])) or id(found[1][-1]) in made:
                    continue
                whole, inner = found
                dropped.update(map(id, inner[:-1]))
                made[id(inner[-1])] = whole
        return [made.get(id(call), call) for call in self.calls if id(call) not in dropped]

    def _attention(self, softmax: Translation) -> tuple[Translation, list[Translation]] | None:
        """The attention around a Softmax, and the calls that it stands for, the last of them last."""
        node = softmax.node
        if not _is(softmax, "Softmax") or not _last_axis(softmax):
            return None
        scores, mixing = self._scores(node.inputs[0]), self._only_user(node.outputs[0])
        if (
            scores is None
            or mixing is None
            or not _is(mixing, "MatMul")
            or mixing.node.inputs[0] is not node.outputs[0]
        ):
            return None
        (q, turned), v = scores.product.node.inputs, mixing.node.inputs[1]
        if not all(value is not None and value.rank in (3, 4) for value in (q, turned, v)):
            return None
        inputs = [q, turned, v, *([scores.mask] if scores.mask is not None else [])]
        return _call("Attention", mixing, inputs, scale=scores.scale), [*scores.inner, softmax, mixing]

    def _scores(self, value: Value | None) -> _Scores | None:
        """What a Softmax takes, where that is a product, perhaps scaled, perhaps with a mask added."""
        scores = self._scaled(value)
        add = self._only_maker(value)
        if scores is not None or add is None or not _is(add, "Add"):
            return scores
        for product, mask in _either_way(add):
            scores = self._scaled(product)
            if scores is not None and mask.rank is not None and mask.rank <= (product.rank or 0):
                return scores._replace(mask=mask, inner=(*scores.inner, add))
        return None

    def _scaled(self, value: Value | None) -> _Scores | None:
        maker = self._only_maker(value)
        if maker is not None and _is(maker, "MatMul"):
            return _Scores(maker, 1.0, None, (maker,))
        factor = _factor(maker) if maker is not None and _is(maker, "Mul", "Div") else None
        product = self._only_maker(factor[0]) if factor else None
        if maker is None or factor is None or product is None or not _is(product, "MatMul"):
            return None
        return _Scores(product, factor[1], None, (product, maker))

    def _biased(self, add: Translation) -> tuple[Translation, list[Translation]] | None:
        """A product of rows with a matrix, and a vector added to every row."""
        if not _is(add, "Add"):
            return None
        for product, bias in _either_way(add):
            maker = self._only_maker(product)
            if maker is not None and _is(maker, "MatMul") and bias.rank == 1:
                a, b = maker.node.inputs
                if (
                    a is not None
                    and b is not None
                    and (a.rank or 0) >= 2
                    and b.rank == 2
                    and _columns(b) == _columns(bias) is not None
                ):
                    return _call("MatMulAdd", add, [a, b, bias]), [maker, add]
        return None

    def _only_user(self, value: Value | None) -> Translation | None:
        users = self.users.get(id(value), [])
        return users[0] if len(users) == 1 and id(value) not in self.kept else None

    def _only_maker(self, value: Value | None) -> Translation | None:
        """Who makes a value that one call takes and nobody else sees."""
        return self.makers.get(id(value)) if self._only_user(value) is not None else None


def _is(call: Translation, *names: str) -> bool:
    """One of our own handlers for these operators, on floats."""
    first = call.node.input(0)
    return first is not None and first.dtype in ("float32", "float16", "bfloat16") and call.is_ours(*names)


def _last_axis(softmax: Translation) -> bool:
    (x,) = softmax.node.inputs
    if x is None or not x.rank:
        return False
    axis = softmax.node.attributes.get("axis", -1 if softmax.handler.since >= 13 else 1)
    return bool(axis in (-1, x.rank - 1))


def _either_way(call: Translation) -> Iterator[tuple[Value, Value]]:
    a, b = call.node.inputs
    if a is not None and b is not None:
        yield a, b
        yield b, a


def _factor(call: Translation) -> tuple[Value, float] | None:
    """(x, s) of x * s, s * x or x / d, where s or 1 / d is one constant number."""
    divides = call.handler.name == "Div"
    for operand, other in _either_way(call):
        if other.constant is not None and other.constant.size == 1 and (other.rank or 0) <= (operand.rank or 0):
            number = float(other.constant.view().reshape(()))
            if not divides:
                return operand, number
            return (operand, 1 / number) if operand is call.node.inputs[0] and number else None
    return None


def _columns(value: Value) -> object:
    return value.shape[-1] if value.shape else None


def _call(name: str, last: Translation, inputs: Collection[Value | None], **attributes: float) -> Translation:
    """A call in the place of `last`, whose name and outputs it has."""
    node = replace(last.node, op_type=name, domain=DOMAIN, inputs=tuple(inputs), attributes=attributes)
    return Translation(node, _HANDLERS.only(DOMAIN, name))
