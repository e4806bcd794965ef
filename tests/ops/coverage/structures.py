"""Control flow, sequences and optionals: graphs in which no value but tensors crosses the boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Given, Maker, Unfit, element, graph

DOMAIN = ""
SIGNATURE = "g ({T}[2, 3] x, {T}[2, 3] y, {I} at) => "


def rows(body: str, expect: Callable[[Any, Any], Any], at: int = 1) -> Maker:
    """A graph of two tensors and an index; `expect` makes the outputs of the tensors."""

    def make(g: Given) -> Any:
        x, y = g(element(g), 2, 3), g(element(g), 2, 3)
        place = np.array(at, g.dtype("I") if "I" in g.types else np.int64)
        return graph(SIGNATURE + body, expect=expect(x, y), x=x, y=y, at=place)

    return make


def if_(g: Given) -> Any:
    x, y = g(element(g), 2, 3), g(element(g), 2, 3)
    return graph(
        """g (bool c, {T}[2, 3] x, {T}[2, 3] y) => ({T}[2, 3] z) {
        z = If (c) <then_branch = t () => ({T}[2, 3] a) { a = Identity(x) },
                    else_branch = e () => ({T}[2, 3] b) { b = Identity(y) }> }""",
        expect=y,
        c=np.array(False),
        x=x,
        y=y,
    )


def scan(g: Given) -> Any:
    x, steps = g(element(g), 3), g(element(g), 4, 3)
    last, out = steps[3], np.concatenate([x[None], steps[:3]])
    body = "body = b ({T}[3] s, {T}[3] row) => ({T}[3] t, {T}[3] z) { t = Identity(row) z = Identity(s) }"
    if g.version < 9:  # with an axis for the batch, and the lengths of its sequences
        signature = "g ({T}[1, 3] x, {T}[1, 4, 3] rows) => ({T}[1, 3] y, {T}[1, k, 3] out)"
        call = f"{{ y, out = Scan( , x, rows) <num_scan_inputs = 1, {body}> }}"
        return graph(f"{signature} {call}", expect=[last[None], out[None]], x=x[None], rows=steps[None])
    signature = "g ({T}[3] x, {T}[4, 3] rows) => ({T}[3] y, {T}[k, 3] out)"
    call = f"{{ y, out = Scan(x, rows) <num_scan_inputs = 1, {body}> }}"
    return graph(f"{signature} {call}", expect=[last, out], x=x, rows=steps)


def empty(g: Given) -> Any:
    x = g(element(g), 2, 3)
    return graph(
        f"g ({{T}}[2, 3] x) => ({{T}}[N, M] z) {{ s = SequenceEmpty <dtype = {g.code('S')}> () "
        "r = SequenceInsert(s, x) z = ConcatFromSequence <axis = 0> (r) }",
        expect=x,
        x=x,
    )


def split(g: Given) -> Any:
    if element(g) == "bfloat16":
        raise Unfit("no operator makes a tensor of a sequence of bfloat16")
    x = g(element(g), 2, 3)
    return graph(
        "g ({T}[2, 3] x, {I}[2] parts) => ({T}[N, M] z) { s = SplitToSequence <axis = 1> (x, parts) "
        "zero = Constant <value = int64 {1}> () z = SequenceAt(s, zero) }",
        expect=x[:, 1:],
        x=x,
        parts=np.array([1, 2], g.dtype("I")),
    )


TWO = "s = SequenceConstruct(x, y, x)"
ALL = "z = ConcatFromSequence <axis = 0> (r)"
CASES: dict[str, Maker] = {
    "ConcatFromSequence": rows(
        f"({{T}}[N, M] z) {{ r = SequenceConstruct(x, y) {ALL} }}", lambda x, y: np.concatenate([x, y])
    ),
    "If": if_,
    "Loop": rows(
        """({T}[2, 3] z, {T}[k, 2, 3] rows) {
        z, rows = Loop(at, , x) <body = b (int64 i, bool c, {T}[2, 3] s) => (bool d, {T}[2, 3] t, {T}[2, 3] row) {
            d = Identity(c) t = Identity(y) row = Identity(s) }> }""",
        lambda x, y: [y, np.stack([x, y, y])],
        at=3,
    ),
    "Optional": rows("({T}[2, 3] z) { o = Optional(x) z = OptionalGetElement(o) }", lambda x, y: x),
    "OptionalGetElement": rows("({T}[2, 3] z) { o = Optional(x) z = OptionalGetElement(o) }", lambda x, y: x),
    "OptionalHasElement": rows("(bool z) { o = Optional(x) z = OptionalHasElement(o) }", lambda x, y: np.array(True)),
    "Scan": scan,
    "SequenceAt": rows(f"({{T}}[N, M] z) {{ {TWO} z = SequenceAt(s, at) }}", lambda x, y: y),
    "SequenceConstruct": rows(f"({{T}}[N, M] z) {{ {TWO} z = SequenceAt(s, at) }}", lambda x, y: y),
    "SequenceEmpty": empty,
    "SequenceErase": rows(
        f"({{T}}[N, M] z) {{ {TWO} r = SequenceErase(s, at) {ALL} }}", lambda x, y: np.concatenate([x, x])
    ),
    "SequenceInsert": rows(
        f"({{T}}[N, M] z) {{ {TWO} r = SequenceInsert(s, y, at) {ALL} }}", lambda x, y: np.concatenate([x, y, y, x])
    ),
    "SequenceLength": rows(f"(int64 z) {{ {TWO} z = SequenceLength(s) }}", lambda x, y: np.array(3)),
    "SequenceMap": rows(
        f"""({{T}}[N, M] z) {{ {TWO}
        r = SequenceMap(s, y) <body = b ({{T}}[2, 3] a, {{T}}[2, 3] c) => ({{T}}[N, M] e) {{
            e = Concat <axis = 0> (a, c) }}> {ALL} }}""",
        lambda x, y: np.concatenate([x, y, y, y, x, y]),
    ),
    "SplitToSequence": split,
}
