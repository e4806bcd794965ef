"""Control flow: the handlers drive bodies, which come as callables over plans of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import on_device, to_mlx
from ort_ep.graph import Node, Value
from ort_ep.ops.axes import axis_of
from ort_ep.plan import BoundBody, Slot
from ort_ep.registry import ANY, BOOL, op

INT64 = frozenset({"int64"})


@op("If", since=1, host=("cond",), dtypes={"cond": BOOL}, containers=True, trips=lambda node: 1)
def if_(cond: np.ndarray, *, then_branch: BoundBody, else_branch: BoundBody) -> tuple[Slot, ...]:
    return tuple(then_branch() if cond.item() else else_branch())


def loop_trips(node: Node) -> int | None:
    count = node.constant(0)
    depends = node.input(1) is not None and node.constant(1) is None
    return None if count is None or depends else max(int(count.item()), 0)


@op(
    "Loop",
    since=1,
    host=("trip_count", "cond"),
    dtypes={"trip_count": INT64, "cond": BOOL},
    containers=True,
    host_arguments={"body": (0, 1)},
    host_results={"body": (0,)},
    trips=loop_trips,
)
def loop(
    trip_count: np.ndarray | None = None, cond: np.ndarray | None = None, *initial: Slot, body: BoundBody
) -> tuple[Slot, ...]:
    carried = list(initial)
    rows: list[list[Slot]] = []
    going = cond is None or bool(cond.item())
    iteration = 0
    while going and (trip_count is None or iteration < trip_count.item()):
        test, *results = body(np.array(iteration, np.int64), np.array(True), *carried)
        carried = results[: len(initial)]
        rows.append(results[len(initial) :])
        going = bool(test.item())
        iteration += 1
    return (*carried, *stacked(rows, body.outputs[1 + len(initial) :]))


def scan_trips(node: Node) -> int | None:
    scanned, axes = node.inputs[-1], node.attributes.get("scan_input_axes") or [0]
    length = scanned.shape[axes[-1]] if scanned is not None and scanned.shape else None
    return length if isinstance(length, int) else None


@op("Scan", since=9, dtypes=ANY, trips=scan_trips)
def scan(
    *inputs: Array,
    body: BoundBody,
    num_scan_inputs: int,
    scan_input_directions: Sequence[int] | None = None,
    scan_input_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
) -> tuple[Array, ...]:
    states = len(inputs) - num_scan_inputs
    scanned = [
        in_order(mx.moveaxis(x, axis_of(axis, x.ndim), 0), backward)
        for x, axis, backward in zip(
            inputs[states:],
            scan_input_axes or [0] * num_scan_inputs,
            scan_input_directions or [0] * num_scan_inputs,
            strict=True,
        )
    ]
    carried, results = scanned_through(body, list(inputs[:states]), scanned)
    placed = [
        mx.moveaxis(in_order(x, backward), 0, axis_of(axis, x.ndim))
        for x, axis, backward in zip(
            results,
            scan_output_axes or [0] * len(results),
            scan_output_directions or [0] * len(results),
            strict=True,
        )
    ]
    return (*carried, *placed)


@op("Scan", since=8, host=("sequence_lens",), dtypes=ANY)
def scan_8(
    sequence_lens: np.ndarray | None = None,
    *inputs: Array,
    body: BoundBody,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
) -> tuple[Array, ...]:
    states = len(inputs) - num_scan_inputs
    batch, longest = inputs[-1].shape[:2]
    lengths = [longest] * batch if sequence_lens is None else sequence_lens.tolist()
    rows = []
    for row, length in enumerate(lengths):
        scanned = [
            in_order(x[row, :length], backward)
            for x, backward in zip(inputs[states:], directions or [0] * num_scan_inputs, strict=True)
        ]
        carried, results = scanned_through(body, [x[row] for x in inputs[:states]], scanned)
        padded = [mx.pad(x, [(0, longest - length), *[(0, 0)] * (x.ndim - 1)]) for x in results]
        rows.append([*carried, *padded])
    return tuple(mx.stack(list(column)) for column in zip(*rows, strict=True))


@op("SequenceMap", since=17, dtypes=ANY, containers=True)
def sequence_map(sequence: list[Slot], *others: Slot, body: BoundBody) -> tuple[list[Slot], ...]:
    rows = [
        body(item, *(other[position] if isinstance(other, list) else other for other in others))
        for position, item in enumerate(sequence)
    ]
    return tuple([row[index] for row in rows] for index in range(len(body.outputs)))


def scanned_through(body: BoundBody, carried: list[Slot], scanned: Sequence[Array]) -> tuple[list[Slot], list[Array]]:
    """The final states, and the body's other outputs of all steps stacked."""
    states = len(carried)
    rows = []
    for step in range(scanned[0].shape[0]):
        results = body(*carried, *(x[step] for x in scanned))
        carried = results[:states]
        rows.append(results[states:])
    return carried, stacked(rows, body.outputs[states:])


def stacked(rows: Sequence[Sequence[Slot]], declared: Sequence[Value]) -> list[Array]:
    """Scan outputs: one row per iteration; of no iteration what the body declares, unknown lengths being 0."""
    if not rows:
        return [empty_rows(value) for value in declared]
    return [mx.stack([on_device(value) for value in column]) for column in zip(*rows, strict=True)]


def empty_rows(declared: Value) -> Array:
    lengths = [length if isinstance(length, int) else 0 for length in declared.shape or ()]
    return mx.zeros([0, *lengths], to_mlx(declared.elem_type or 0))


def in_order(x: Array, backward: int) -> Array:
    return x[::-1] if backward else x
