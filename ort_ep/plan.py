"""A claimed subgraph as a list of handler calls over numbered slots, and the values of one run of it.

A segment is what one engine can trace as a whole; between two segments the slots in `sync` come to the host.
A call with bodies (control flow) gets them as callables over plans of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

import mlxc_py as mx
from ort_ep import dtypes
from ort_ep.constants import Prepared
from ort_ep.even import Fixed
from ort_ep.graph import Value
from ort_ep.shared_initializers import SharedInitializer

Host = np.ndarray[Any, Any]
# An mx.Array, a numpy array, a list of them (a sequence), a tuple with them (prepared constants), or None (an empty
# optional, or once freed).
Slot = Any


class OperatorError(RuntimeError):
    """A handler failed: which node, which operator, on what."""


class Want(Enum):
    """The form in which a call takes one input."""

    DEVICE = 0
    HOST = 1
    EITHER = 2


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the plan."""

    slot: int
    name: str
    elem_type: int


@dataclass(slots=True)
class Step:
    """One call: `args` are (slot, form) or None for an absent input; `outs` hold -1 for an unused output.

    `host_dtypes` are what numpy results must have: numpy's own promotion may differ from ONNX's. `containers` are the
    outputs that may be a list or None. `traceable`: the call may be recorded and replayed, because it reads no data and
    does the same every time. `even`: which arguments must not change for it to be derived (even.py); None where
    it can't be. `bodies` are handed to the function as callables; what they capture are the args from `explicit` on.
    `title` names the node in messages; the node itself would keep its graph's edges in memory.
    """

    title: str
    function: Callable[..., Any]
    args: tuple[tuple[int, Want] | None, ...]
    keywords: Mapping[str, Any]
    outs: tuple[int, ...]
    host_dtypes: tuple[np.dtype[Any] | None, ...]
    containers: tuple[int, ...]
    traceable: bool
    even: Fixed | None
    bodies: Mapping[str, Body]
    explicit: int
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A nested graph as a plan whose inputs are its own and then what it captures.

    `captures` are positions among what all bodies of the node capture; `host_results` are the outputs that must be
    numpy; `outputs` are as the model declares them.
    """

    plan: Plan
    captures: tuple[int, ...]
    outputs: tuple[Value, ...]
    host_results: tuple[int, ...]


BodyRunner = Callable[[Body, Sequence[Slot]], list[Slot]]
Watch = Callable[[Step, Sequence[Slot], Sequence[Slot]], None]
"""A step, its arguments, its results."""


@dataclass(frozen=True, slots=True)
class BoundBody:
    """What a control-flow handler calls: a body with the captured values of this run."""

    body: Body
    captured: tuple[Slot, ...]
    run: BodyRunner

    def __call__(self, *inputs: Slot) -> list[Slot]:
        return self.run(self.body, (*inputs, *self.captured))

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs as the model declares them."""
        return self.body.outputs


@dataclass(slots=True)
class Segment:
    """Steps that run without a look at data; the slots in `sync` are on the host before they start."""

    sync: tuple[int, ...] = ()
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class Frame:
    """The values of one run. `twins` holds the other form of a slot: numpy of an Array, or Array of a numpy array.

    `codes` are the slots whose Arrays hold bit patterns of a type that MLX lacks. `watch` is shown each call that is
    built, also in bodies.
    """

    values: list[Slot]
    twins: dict[int, Slot]
    codes: Mapping[int, dtypes.ElemType] = field(default_factory=dict)
    watch: Watch | None = None

    def host(self, slot: int) -> Host:
        value = self.values[slot]
        twin: Host = value if isinstance(value, np.ndarray) else self.twins[slot]
        return twin

    def device(self, slot: int) -> mx.Array:
        value = self.values[slot]
        if isinstance(value, np.ndarray):
            if slot not in self.twins:
                self.twins[slot] = dtypes.on_device(value)
            return self.twins[slot]
        return value

    def free(self, slot: int) -> None:
        self.values[slot] = None
        self.twins.pop(slot, None)

    def sync(self, slots: Iterable[int]) -> None:
        """Copy evaluated arrays to the host."""
        for slot in slots:
            if not isinstance(self.values[slot], np.ndarray):
                copied = np.array(self.values[slot])
                self.twins[slot] = dtypes.of_codes(self.codes[slot], copied) if slot in self.codes else copied

    def execute(self, segment: Segment, run: BodyRunner | None = None) -> None:
        """Call the handlers of a segment in order; builds MLX graphs, evaluates nothing but through `run`.

        run: how the bodies of control flow that can't be traced are run; without it they are built into the graph.
        """
        for step in segment.steps:
            arguments = [None if arg is None else self._argument(*arg) for arg in step.args]
            built = trace if self.watch is None else partial(trace, watch=self.watch)
            results = call(step, arguments, built if step.traceable else run or built)
            if self.watch:
                self.watch(step, arguments, results)
            for index, (slot, result) in enumerate(zip(step.outs, results, strict=False)):
                if slot >= 0:
                    self.values[slot] = _checked(step, index, result)
            for slot in step.frees:
                self.free(slot)

    def _argument(self, slot: int, want: Want) -> Slot:
        if want is Want.DEVICE:
            return self.device(slot)
        return self.host(slot) if want is Want.HOST else self.values[slot]


@dataclass(slots=True)
class Plan:
    """A translated subgraph. `host_inputs` are positions of inputs that the handlers need as numpy; `host_outputs` are
    positions of outputs that follow from these without evaluating anything.

    `weights` keeps the interned initializers in `values`, and what was prepared from such, known to other sessions
    while this plan lives.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    segments: tuple[Segment, ...]
    values: list[Slot]
    twins: dict[int, Slot]
    host_inputs: frozenset[int]
    nodes: int
    host_outputs: frozenset[int] = frozenset()
    codes: Mapping[int, dtypes.ElemType] = field(default_factory=dict)
    weights: tuple[SharedInitializer | Prepared, ...] = ()

    @property
    def host_steps(self) -> int:
        """How often one run stops to read data, a loop counted once: 0 for a plan that is a single trace."""
        drivers = (step for segment in self.segments for step in segment.steps if step.bodies and not step.traceable)
        return sum(bool(segment.sync) for segment in self.segments) + sum(1 for _ in drivers)

    def used(self) -> set[int]:
        """The slots that a run reads."""
        args = (arg for segment in self.segments for step in segment.steps for arg in step.args)
        return {arg[0] for arg in args if arg} | {port.slot for port in self.outputs}

    @property
    def is_trace(self) -> bool:
        """Whether it does the same every time, without evaluating anything."""
        return len(self.segments) == 1 and all(step.traceable for step in self.segments[0].steps)

    @property
    def even(self) -> bool:
        """Whether all its steps are."""
        return all(step.even is not None for segment in self.segments for step in segment.steps)

    def frame(self, inputs: Sequence[Slot]) -> Frame:
        """A fresh frame with constants and inputs in place."""
        frame = Frame(list(self.values), dict(self.twins), self.codes)
        for port, value in zip(self.inputs, inputs, strict=True):
            frame.values[port.slot] = value
        return frame


def trace(body: Body, inputs: Sequence[Slot], watch: Watch | None = None) -> list[Slot]:
    """Run a body as part of what is being built: nothing is evaluated."""
    frame = body.plan.frame(inputs)
    frame.watch = watch
    for segment in body.plan.segments:
        frame.execute(segment)
    return [frame.values[port.slot] for port in body.plan.outputs]


def call(step: Step, arguments: Sequence[Slot], run: BodyRunner = trace) -> Sequence[Slot]:
    """Call one handler; OperatorError names node, operator and inputs, and keeps the cause."""
    keywords = step.keywords
    if step.bodies:
        captured, arguments = arguments[step.explicit :], arguments[: step.explicit]
        keywords = dict(keywords)
        for name, body in step.bodies.items():
            keywords[name] = BoundBody(body, tuple(captured[i] for i in body.captures), run)
    try:
        result = step.function(*arguments, **keywords)
    except OperatorError:
        raise  # of a node in a body: it says more than this one could
    except Exception as error:
        raise OperatorError(
            f"{step.title} failed on ({', '.join(map(_describe, arguments))}): {type(error).__name__}: {error}"
        ) from error
    results: Sequence[Slot] = result if isinstance(result, tuple) else (result,)  # a list is one output, a sequence
    if len(results) != len(step.outs):
        raise OperatorError(
            f"{step.title}: the handler returned {len(results)} results and the node has {len(step.outs)} outputs "
            "(a keyword-only parameter `n_outputs` tells how many)"
        )
    return results


def _checked(step: Step, index: int, result: Slot) -> Slot:
    if isinstance(result, mx.Array):
        return result
    if isinstance(result, np.ndarray | np.generic):
        return np.asarray(result, step.host_dtypes[index])
    if index in step.containers and (result is None or isinstance(result, list)):
        return result
    raise OperatorError(f"{step.title}: the handler returned {type(result).__name__} for an output that is used")


def arrays(values: Iterable[Slot]) -> Iterator[mx.Array]:
    """The arrays among values and inside sequences."""
    for value in values:
        if isinstance(value, mx.Array):
            yield value
        elif isinstance(value, list):
            yield from arrays(value)


def _describe(value: Slot) -> str:
    if value is None:
        return "absent"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    if isinstance(value, tuple):
        return f"prepared {type(value).__name__}"
    return f"{value.dtype.name}[{','.join(map(str, value.shape))}]"
