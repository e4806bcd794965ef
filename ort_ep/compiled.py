"""The engine that traces a plan once per key and replays it: on our own tape, or through MLX's compile.

A plan is cut into stages: maximal runs of steps that can be traced, and between them steps that cannot (host steps,
random operators), which run eagerly every time. The key of a trace is everything it depends on beside the constants:
stream (where it matters), shapes, dtypes, and the values of what handlers read on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Final, Protocol

import numpy as np

import mlxc_py as mx
from mlxc_py import cuda_graph, tape
from ort_ep.bodies import Bodies
from ort_ep.captured import DirectGraph
from ort_ep.direct import Delivered, DirectInputs, DirectTape, Input, Output, Read, passes
from ort_ep.engine import PLAN_CLOSED, EagerEngine, exact
from ort_ep.even import Watched
from ort_ep.lines import Derived, Lines, Recorded
from ort_ep.options import OptionError, Options
from ort_ep.plan import Frame, Plan, Port, Segment, Slot, Step, Want, Watch, arrays
from ort_ep.report import CompileReport
from ort_ep.results import Outline, Results, outlined
from ort_ep.streams import PooledStream, spent
from ort_ep.traces import MAX_KEY_BYTES, Instead, Key, Traces

ANYWHERE: Final = -1

Build = Callable[[list[mx.Array]], list[mx.Array]]


class Replay(Protocol):
    """A recorded graph: outputs, evaluated or not, for inputs of the recorded shapes."""

    def __call__(self, inputs: Sequence[mx.Array]) -> list[mx.Array]: ...


class Recorder(Protocol):
    """Makes replays of what a function builds."""

    fuses: bool
    """Whether its replays are faster than tapes, so than what is derived."""

    def record(self, build: Build, inputs: Sequence[mx.Array], stream: PooledStream) -> Replay:
        """A replay on `stream`; what fails in building or tracing fails here."""

    def takes_empty(self, stream: PooledStream) -> bool:
        """Whether a graph may have arrays without elements."""

    def place(self, stream: PooledStream) -> int:
        """Equal for streams that share their replays."""


class Direct(Protocol):
    """A run of a whole plan from host addresses to host memory; None: it has to go through Arrays."""

    def __call__(self, addresses: Sequence[int]) -> list[Output] | None: ...


@dataclass(frozen=True, slots=True)
class TapeReplay:
    tape: tape.Tape

    def __call__(self, inputs: Sequence[mx.Array]) -> list[mx.Array]:
        made, nanoseconds = self.tape.apply(inputs)
        spent.evaluating += nanoseconds
        return made


class TapeRecorder:
    """Our own tape: built once on placeholders, replayed by any thread."""

    fuses = False

    def record(self, build: Build, inputs: Sequence[mx.Array], stream: PooledStream) -> Replay:
        opened = [tape.placeholder(array.shape, array.dtype) for array in inputs]
        outputs = build(opened)
        with stream.lock:  # what does not depend on the inputs is evaluated now
            return TapeReplay(tape.Tape(opened, outputs))

    def takes_empty(self, _stream: PooledStream) -> bool:
        return True

    def place(self, stream: PooledStream) -> int:
        return ANYWHERE if tape.on_calling_thread() and not stream.on_gpu else stream.stream.index


class CompileRecorder:
    """MLX's compile: every thread that replays traces once, at its first replay.

    Over a tape where there is one: it has evaluated what depends on weights alone, and laid images out as MLX has them.
    """

    fuses = True

    def record(self, build: Build, inputs: Sequence[mx.Array], stream: PooledStream) -> Replay:
        base = TapeRecorder().record(build, inputs, stream) if tape.supported() else lambda arrays: build(list(arrays))
        function = mx.compile(lambda *arrays: base(arrays))
        function(*inputs)
        return lambda arrays: list(function(*arrays))

    def takes_empty(self, stream: PooledStream) -> bool:
        return not stream.on_gpu  # what MLX 0.32.4 fuses for CUDA divides by an array's size, which ends the process

    def place(self, stream: PooledStream) -> int:
        return stream.stream.index


# MLX holds what a closure refers to until its trace is erased, so what is traced must not refer to its replay.
@dataclass(frozen=True, slots=True)
class _Trace:
    replay: Replay
    results: Results
    direct: Direct | None = None


class _EmptyArrayError(Exception):
    """Of a graph that its recorder does not take."""


@dataclass(slots=True)
class _Stage:
    segment: Segment
    traced: bool
    reads: list[Read] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    outputs: list[tuple[int, Port]] = field(default_factory=list)
    frees: list[int] = field(default_factory=list)
    even: bool = False


class CompiledEngine:
    """Traces each stage once per key, keeps the latest `limit` traces of it, and runs eagerly what cannot be traced."""

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        limit: int,
        report: CompileReport,
        warn: Callable[[str], None] = lambda message: None,
        *,
        cuda_graphs: bool = False,
        patient: bool = False,
    ) -> None:
        """`warn` gets the reason why a key of a stage runs eagerly, once for each reason.

        cuda_graphs: keep whole plans as one launch, where MLX computes on CUDA.

        patient: no key is traced before it comes for the second time, as in a loop whose state grows.
        """
        self._plan: Plan | None = plan
        self._recorder = recorder
        self._report = report
        self._warn = warn
        self._cuda_graphs = cuda_graphs
        self._stages: list[tuple[_Stage, Traces[_Trace], Lines[Outline, _Trace]]] = [
            (stage, Traces(limit, patient=patient), Lines(report.line_ended)) for stage in _stages(plan)
        ]
        self._direct_inputs = _direct_inputs(plan, [stage for stage, _, _ in self._stages])
        self._bodies = Bodies(lambda body: CompiledEngine(body, recorder, limit, report, warn, patient=True))

    def run(self, inputs: Sequence[Slot], stream: PooledStream, *, lazily: bool = False) -> list[Slot]:
        plan = self._plan
        if plan is None:
            raise RuntimeError(PLAN_CLOSED)
        frame = plan.frame(inputs)
        finals: dict[int, mx.Array] = {}
        for stage, traces, lines in self._stages:
            if stage.segment.sync:
                stream.evaluate(a for a in map(frame.values.__getitem__, stage.segment.sync) if isinstance(a, mx.Array))
                frame.sync(stage.segment.sync)
            if not stage.traced or not self._replayed(plan, stage, traces, lines, frame, stream, finals):
                frame.execute(stage.segment, self._bodies.runner(stream))
        outputs = [
            finals[i] if i in finals else exact(frame.values[port.slot], port) for i, port in enumerate(plan.outputs)
        ]
        if not lazily:
            stream.evaluate(arrays(outputs))
        return outputs

    def direct(self, inputs: Sequence[Input], stream: PooledStream) -> list[Output] | None:
        reader = self._direct_inputs
        given = reader.read(inputs, self._recorder.place(stream)) if reader else None
        plan = self._plan
        if plan is None or reader is None or given is None:
            return None
        key, addresses = given
        _, traces, lines = self._stages[0]
        trace = traces.find(key)
        if trace is None and not self._recorder.fuses:
            trace = lines.find(key, partial(self._derived, plan, stream))
        if not isinstance(trace, _Trace) or trace.direct is None:
            return None
        delivered = trace.direct(addresses)
        if isinstance(trace.direct, DirectTape) and isinstance(delivered, Delivered):
            delivered.replay = trace.direct.replay(reader, inputs)
        return delivered

    def close(self) -> None:
        self._plan = self._direct_inputs = None
        self._stages = []
        self._bodies.close()

    # ------------------------------------------------------------ one stage
    def _replayed(
        self,
        plan: Plan,
        stage: _Stage,
        traces: Traces[_Trace],
        lines: Lines[Outline, _Trace],
        frame: Frame,
        stream: PooledStream,
        finals: dict[int, mx.Array],
    ) -> bool:
        """Run a stage from its trace, making it where it is new; False: run it eagerly."""
        key = _key(stage, frame, self._recorder.place(stream))
        if key is None:
            return False
        trace = traces.find(key)
        if trace is None and stage.even and not self._recorder.fuses:
            trace = self._from_line(plan, stage, lines, key, frame, stream)
        if trace is None and not traces.worthwhile(key):
            if stage.even and self._recorder.fuses:  # shapes that return get a trace of their own
                trace = self._from_line(plan, stage, lines, key, frame, stream)
            if trace is None:
                return False
        inputs = _inputs(stage, frame)
        if trace is None:
            trace = self._traced(plan, stage, frame, inputs, stream)
            self._report.evicted(traces.keep(key, trace))
        if isinstance(trace, Instead):
            return False
        made, results = trace.replay(inputs), trace.results
        for slot in stage.frees:
            frame.free(slot)
        for slot, value in results.values.items():
            frame.values[slot] = value
        for slot, array in zip(results.arrays, made, strict=False):
            frame.values[slot] = array
        finals.update(zip(results.finals, made[len(results.arrays) :], strict=True))
        return True

    def _from_line(
        self, plan: Plan, stage: _Stage, lines: Lines[Outline, _Trace], key: Key, frame: Frame, stream: PooledStream
    ) -> _Trace | None:
        """The trace of a key that lies between others."""

        def record(other: Key) -> Recorded[Outline]:
            self._report.traced()
            return _recording(plan, stage, frame, other)

        derived = partial(self._derived, plan, stream)
        found = lines.find(key, derived)
        if found is None and lines.missed(key, record, stream.lock):
            return lines.find(key, derived)
        return found

    def _derived(self, plan: Plan, stream: PooledStream, derived: Derived[Outline]) -> _Trace:
        self._report.derived()
        replay, results = TapeReplay(derived.tape), derived.fixed.filled(derived.numbers)
        return _Trace(replay, results, None if stream.on_gpu else self._direct(plan, replay, (), results, stream))

    def _traced(
        self, plan: Plan, stage: _Stage, frame: Frame, inputs: Sequence[mx.Array], stream: PooledStream
    ) -> _Trace | Instead:
        """A new trace; not one where tracing fails and the same steps run eagerly."""
        results, known = Results(), _known(stage, frame)
        takes_empty = self._recorder.takes_empty(stream)

        def build(opened: list[mx.Array]) -> list[mx.Array]:
            return _build(plan, stage, known, opened, results, empty_arrays=takes_empty)

        try:
            replay = self._recorder.record(build, inputs, stream)
        except _EmptyArrayError:
            return Instead.EAGER
        except Exception as error:
            # a handler that fails on these inputs does so eagerly too, and then nothing is known about tracing
            Frame(list(frame.values), dict(frame.twins)).execute(Segment(steps=stage.segment.steps))
            self._untraced(plan, str(error) or type(error).__name__)
            return Instead.EAGER
        self._report.traced()
        return _Trace(replay, results, self._direct(plan, replay, inputs, results, stream))

    def _direct(
        self, plan: Plan, replay: Replay, inputs: Sequence[mx.Array], results: Results, stream: PooledStream
    ) -> Direct | None:
        """How a trace that is a whole plan runs from host memory to host memory."""
        if not self._direct_inputs or len(results.forms) != len(plan.outputs):
            return None
        if stream.on_gpu:
            if not (self._cuda_graphs and cuda_graph.supported()):
                return None
            return DirectGraph(replay, inputs, results.forms, stream, partial(self._fell_back, plan))
        return DirectTape(replay.tape, tuple(results.forms)) if isinstance(replay, TapeReplay) else None

    def _untraced(self, plan: Plan, reason: str) -> None:
        self._fell_back(plan, f"uncompiled: {reason}")

    def _fell_back(self, plan: Plan, how: str) -> None:
        message = f"{plan.name} runs {how}"
        if self._report.fell_back(message):
            self._warn(message)


def _key(stage: _Stage, frame: Frame, place: int) -> Key | None:
    """What a trace depends on; None where that is too much to compare, or a sequence."""
    parts: list[Hashable] = [place]
    values: list[bytes] = []
    nbytes = 0
    for read in stage.reads:
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


def _inputs(stage: _Stage, frame: Frame) -> list[mx.Array]:
    """What a trace of a stage is replayed with."""
    given = (read.slot for read in stage.reads if read.device)
    return [frame.device(slot) for slot in given if frame.values[slot] is not None]


def _known(stage: _Stage, frame: Frame) -> dict[int, tuple[Slot, Slot]]:
    """The host forms (value, twin) of what a stage reads, for as long as its trace may be made anew."""
    known: dict[int, tuple[Slot, Slot]] = {}
    for read in stage.reads:
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


def _recording(plan: Plan, stage: _Stage, frame: Frame, key: Key) -> Recorded[Outline]:
    """A stage on placeholders for a key of the line that the frame's is on."""
    known, results = _known_at(stage, _known(stage, frame), key), Results()
    shapes = [part[1] for read, part in zip(stage.reads, key[0][1:], strict=True) if part and read.device]
    opened = [tape.placeholder(shape, a.dtype) for shape, a in zip(shapes, _inputs(stage, frame), strict=True)]
    watched = Watched()

    def watch(step: Step, arguments: Sequence[Slot], made: Sequence[Slot]) -> None:
        assert step.even is not None
        watched.note(step.even, arguments, made)

    outputs = _build(plan, stage, known, opened, results, empty_arrays=True, watch=watch)
    return Recorded(opened, outputs, *outlined(results), watched.same, tuple(watched.numbers))


def _known_at(stage: _Stage, known: dict[int, tuple[Slot, Slot]], key: Key) -> dict[int, tuple[Slot, Slot]]:
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


def _build(
    plan: Plan,
    stage: _Stage,
    known: dict[int, tuple[Slot, Slot]],
    opened: list[mx.Array],
    results: Results,
    *,
    empty_arrays: bool,
    watch: Watch | None = None,
) -> list[mx.Array]:
    """Call the handlers of a stage on placeholders; notes in `results` where they go.

    Without `empty_arrays` one of them, given or made, is an _EmptyArrayError.
    """
    if not empty_arrays and _any_empty(opened):
        raise _EmptyArrayError
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
            raise _EmptyArrayError
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
def _stages(plan: Plan) -> list[_Stage]:
    stages = []
    for segment in plan.segments:
        runs = [(traced, list(steps)) for traced, steps in groupby(segment.steps, lambda step: step.traceable)]
        for i, (traced, steps) in enumerate(runs or [(False, [])]):
            even = traced and tape.supported() and all(step.even is not None for step in steps)
            stages.append(_Stage(Segment(segment.sync if i == 0 else (), steps), traced, even=even))
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


def _direct_inputs(plan: Plan, stages: Sequence[_Stage]) -> DirectInputs | None:
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


def engine(
    plan: Plan, options: Options, device: str, report: CompileReport, warn: Callable[[str], None]
) -> EagerEngine | CompiledEngine:
    """The engine that the options ask for; OptionError for a tape where libmlxc records none.

    MLX's compile fuses on a GPU only: on the CPU it would run a C++ compiler in a directory that all processes share,
    and load what a killed one left there. A tape's own loops fuse arithmetic there without any of that.
    """
    name = options.engine
    if name == "auto":
        name = "tape" if device == "cpu" and tape.supported() else "compile"
    if name == "eager":
        return EagerEngine(plan)
    if name == "tape":
        if not tape.supported():
            raise OptionError(f"engine is 'tape', but {mx.library_path()} records no tapes: use compile or eager")
        return CompiledEngine(plan, TapeRecorder(), options.compile_cache, report, warn)
    fused = device == "gpu" and options.fuse != "off"
    mx.set_compile_mode(mx.CompileMode.enabled if fused else mx.CompileMode.no_fuse)
    kept = options.cuda_graph != "off"
    return CompiledEngine(plan, CompileRecorder(), options.compile_cache, report, warn, cuda_graphs=kept)
