"""The stages of a plan: what can be traced at once, and its steps on placeholders.

A plan is cut into maximal runs of steps that can be traced, and between them steps that cannot (host steps, random
operators), which run eagerly every time. The key of a trace is everything it depends on beside the constants: stream
(where it matters), shapes, dtypes, and the values of what handlers read on the host.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

import mlxc_py as mx
from mlxc_py import tape
from ort_ep.direct import DirectInputs, Read, passes
from ort_ep.engine import exact
from ort_ep.even import Watched
from ort_ep.lines import Recorded
from ort_ep.plan import Frame, Plan, Port, Segment, Slot, Step, Want, Watch
from ort_ep.results import Outline, Results, outlined
from ort_ep.traces import MAX_KEY_BYTES, Key


class EmptyArrayError(Exception):
    """Of a graph that its recorder does not take."""


@dataclass(slots=True)
class Stage:
    """Steps that run one after the other, traced or each by itself; slots that they read from, write to and free."""

    segment: Segment
    traced: bool
    reads: list[Read] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    outputs: list[tuple[int, Port]] = field(default_factory=list)
    frees: list[int] = field(default_factory=list)
    even: bool = False
    """Whether traces can be derived for shapes between others."""

    def key(self, frame: Frame, place: int) -> Key | None:
        """What a trace depends on; None where that is too much to compare, or a sequence."""
        parts: list[Hashable] = [place]
        values: list[bytes] = []
        nbytes = 0
        for read in self.reads:
            value = frame.values[read.slot]
            if value is None:
                parts.append(None)
            elif not isinstance(value, mx.Array | np.ndarray):
                return None
            elif read.host:
                host = frame.host(read.slot)
                nbytes += host.nbytes
                if nbytes > MAX_KEY_BYTES:
                    return None
                parts.append((host.dtype.char, host.shape))
                values.append(host.tobytes())
            else:
                parts.append((value.dtype, value.shape))
        return tuple(parts), tuple(values)

    def inputs(self, frame: Frame) -> list[mx.Array]:
        """What a trace of a stage is replayed with."""
        given = (read.slot for read in self.reads if read.device)
        return [frame.device(slot) for slot in given if frame.values[slot] is not None]

    def known(self, frame: Frame) -> dict[int, tuple[Slot, Slot]]:
        """The host forms (value, twin) of what a stage reads, for as long as its trace may be made anew."""
        known: dict[int, tuple[Slot, Slot]] = {}
        for read in self.reads:
            value = frame.values[read.slot]
            if value is None:
                continue
            if not read.device and not read.host:  # only its shape is asked for
                dtype = value.dtype if isinstance(value, np.ndarray) else value.dtype.numpy
                known[read.slot] = (np.broadcast_to(np.zeros((), dtype), value.shape), None)
                continue
            on_host = value if isinstance(value, np.ndarray) else None
            # a run's inputs are views of ORT's memory, which is gone when another thread traces
            copied = None if on_host is None else on_host.copy()
            twin = frame.host(read.slot).copy() if read.host and on_host is None else None
            known[read.slot] = (copied, twin)
        return known


def recording(plan: Plan, stage: Stage, frame: Frame, key: Key) -> Recorded[Outline]:
    """A stage on placeholders for a key of the line that the frame's is on."""
    known, results = _known_at(stage, stage.known(frame), key), Results()
    shapes = [part[1] for read, part in zip(stage.reads, key[0][1:], strict=True) if part and read.device]
    opened = [tape.placeholder(shape, a.dtype) for shape, a in zip(shapes, stage.inputs(frame), strict=True)]
    watched = Watched()

    def watch(step: Step, arguments: Sequence[Slot], made: Sequence[Slot]) -> None:
        assert step.even is not None
        watched.note(step.even, arguments, made)

    outputs = build(plan, stage, known, opened, results, empty_arrays=True, watch=watch)
    return Recorded(opened, outputs, *outlined(results), watched.same, tuple(watched.numbers))


def _known_at(stage: Stage, known: dict[int, tuple[Slot, Slot]], key: Key) -> dict[int, tuple[Slot, Slot]]:
    """The same for another key of the line that theirs is on."""
    parts, contents = key[0], iter(key[1])
    made: dict[int, tuple[Slot, Slot]] = {}
    for read, part in zip(stage.reads, parts[1:], strict=True):
        if part is None:
            continue
        value, twin = known[read.slot]
        if read.host:
            host = value if twin is None else twin
            host = np.frombuffer(next(contents), host.dtype).reshape(part[1])
            made[read.slot] = (host, None) if twin is None else (None, host)
        else:
            made[read.slot] = (None if value is None else np.broadcast_to(np.zeros((), value.dtype), part[1]), None)
    return made


def build(
    plan: Plan,
    stage: Stage,
    known: dict[int, tuple[Slot, Slot]],
    opened: list[mx.Array],
    results: Results,
    *,
    empty_arrays: bool,
    watch: Watch | None = None,
) -> list[mx.Array]:
    """Call the handlers of a stage on placeholders; notes in `results` where they go.

    Without `empty_arrays` one of them, given or made, is an EmptyArrayError.
    """
    if not empty_arrays and _any_empty(opened):
        raise EmptyArrayError
    frame = Frame(list(plan.values), dict(plan.twins), watch=watch)
    placeholders = iter(opened)
    for read in (read for read in stage.reads if read.slot in known):
        value, twin = known[read.slot]
        array = next(placeholders) if read.device else None
        if value is None:
            frame.values[read.slot] = array
            if twin is not None:
                frame.twins[read.slot] = twin
        else:
            frame.values[read.slot] = value
            if array is not None:
                frame.twins[read.slot] = array
    for step in stage.segment.steps:
        frame.execute(Segment(steps=[step]))
        if not empty_arrays and _any_empty(frame.values[slot] for slot in step.outs if slot >= 0):
            raise EmptyArrayError
    done = Results()
    made = []
    for slot in stage.writes:
        value = frame.values[slot]
        if isinstance(value, mx.Array):
            done.arrays.append(slot)
            made.append(value)
        else:
            done.values[slot] = value
    for position, port in stage.outputs:
        value = frame.values[port.slot]
        if isinstance(value, mx.Array):
            made.append(exact(value, port))
            done.finals.append(position)
            done.forms.append((made[-1].shape, made[-1].nbytes))
        else:
            done.values[port.slot] = value
    # equal ones take their place: MLX's compile builds again on each new thread, while others replay and read these
    results.arrays, results.finals, results.values, results.forms = done.arrays, done.finals, done.values, done.forms
    return made


def _any_empty(values: Iterable[Slot]) -> bool:
    return any(isinstance(value, mx.Array) and value.size == 0 for value in values)


# ------------------------------------------------------------ cutting a plan
def cut(plan: Plan) -> list[Stage]:
    """The stages of a plan, in order."""
    stages = []
    for segment in plan.segments:
        runs = [(traced, list(steps)) for traced, steps in groupby(segment.steps, lambda step: step.traceable)]
        for i, (traced, steps) in enumerate(runs or [(False, [])]):
            even = traced and tape.supported() and all(step.even is not None for step in steps)
            stages.append(Stage(Segment(segment.sync if i == 0 else (), steps), traced, even=even))
    constants = {slot for slot, value in enumerate(plan.values) if value is not None}
    later: set[int] = set()
    for stage in reversed(stages):
        made = {slot for step in stage.segment.steps for slot in step.outs if slot >= 0}
        stage.reads = _reads(stage.segment.steps, made | constants)
        stage.writes = sorted(made & later)
        stage.outputs = [(i, port) for i, port in enumerate(plan.outputs) if port.slot in made]
        freed = {slot for step in stage.segment.steps for slot in step.frees}
        stage.frees = sorted(freed.intersection(read.slot for read in stage.reads))
        later = (later - made) | {read.slot for read in stage.reads} | set(stage.segment.sync)
    return stages


def direct_inputs(plan: Plan, stages: Sequence[Stage]) -> DirectInputs | None:
    """For a plan that is one trace of arrays; None for others."""
    if len(stages) != 1 or not stages[0].traced or stages[0].segment.sync:
        return None
    positions = {port.slot: position for position, port in enumerate(plan.inputs)}
    reads = stages[0].reads
    reads.sort(key=lambda read: positions[read.slot])  # replay.c gives them to the tape in the order of the inputs
    on_host = {plan.inputs[position].slot for position in plan.host_inputs}
    whole = all(read.host or read.slot not in on_host for read in reads)
    return DirectInputs(plan, reads) if whole and all(map(passes, (*plan.inputs, *plan.outputs))) else None


def _reads(steps: Iterable[Step], inside: set[int]) -> list[Read]:
    reads: dict[int, Read] = {}
    for step in steps:
        for arg in step.args:
            if arg is None or arg[0] in inside:
                continue
            read = reads.setdefault(arg[0], Read(arg[0]))
            read.device |= arg[1] is Want.DEVICE
            read.host |= arg[1] is Want.HOST
    return list(reads.values())
