"""The engine that traces each stage of a plan once per key and replays it: on our tape, or through MLX's compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import mlxc_py as mx
from mlxc_py import cuda_graph, tape
from ort_ep import stages
from ort_ep.bodies import Bodies
from ort_ep.captured import DirectGraph
from ort_ep.direct import Delivered, DirectTape, Input, Output
from ort_ep.engine import PLAN_CLOSED, EagerEngine, exact
from ort_ep.lines import Derived, Lines, Recorded
from ort_ep.options import OptionError, Options
from ort_ep.plan import Frame, Plan, Segment, Slot, arrays
from ort_ep.report import CompileReport
from ort_ep.results import Outline, Results
from ort_ep.stages import EmptyArrayError, Stage
from ort_ep.streams import PooledStream, spent
from ort_ep.traces import Instead, Key, Traces

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


@dataclass(frozen=True, slots=True)
class _Traced:
    """A stage, and the traces of it."""

    stage: Stage
    traces: Traces[_Trace]
    lines: Lines[Outline, _Trace]


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
        self._stages = [
            _Traced(stage, Traces(limit, patient=patient), Lines(report.line_ended)) for stage in stages.cut(plan)
        ]
        self._direct_inputs = stages.direct_inputs(plan, [each.stage for each in self._stages])
        self._bodies = Bodies(lambda body: CompiledEngine(body, recorder, limit, report, warn, patient=True))

    def run(self, inputs: Sequence[Slot], stream: PooledStream, *, lazily: bool = False) -> list[Slot]:
        plan = self._plan
        if plan is None:
            raise RuntimeError(PLAN_CLOSED)
        frame = plan.frame(inputs)
        finals: dict[int, mx.Array] = {}
        for each in self._stages:
            stage = each.stage
            if stage.segment.sync:
                stream.evaluate(a for a in map(frame.values.__getitem__, stage.segment.sync) if isinstance(a, mx.Array))
                frame.sync(stage.segment.sync)
            if not stage.traced or not self._replayed(plan, each, frame, stream, finals):
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
        whole = self._stages[0]
        trace = whole.traces.find(key)
        if trace is None and not self._recorder.fuses:
            trace = whole.lines.find(key, partial(self._derived, plan, stream))
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
        self, plan: Plan, traced: _Traced, frame: Frame, stream: PooledStream, finals: dict[int, mx.Array]
    ) -> bool:
        """Run a stage from its trace, making it where it is new; False: run it eagerly."""
        stage, traces = traced.stage, traced.traces
        key = stage.key(frame, self._recorder.place(stream))
        if key is None:
            return False
        trace = traces.find(key)
        if trace is None and stage.even and not self._recorder.fuses:
            trace = self._from_line(plan, traced, key, frame, stream)
        if trace is None and not traces.worthwhile(key):
            if stage.even and self._recorder.fuses:  # shapes that return get a trace of their own
                trace = self._from_line(plan, traced, key, frame, stream)
            if trace is None:
                return False
        inputs = stage.inputs(frame)
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

    def _from_line(self, plan: Plan, traced: _Traced, key: Key, frame: Frame, stream: PooledStream) -> _Trace | None:
        """The trace of a key that lies between others."""
        lines = traced.lines

        def record(other: Key) -> Recorded[Outline]:
            self._report.traced()
            return stages.recording(plan, traced.stage, frame, other)

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
        self, plan: Plan, stage: Stage, frame: Frame, inputs: Sequence[mx.Array], stream: PooledStream
    ) -> _Trace | Instead:
        """A new trace; not one where tracing fails and the same steps run eagerly."""
        results, known = Results(), stage.known(frame)
        takes_empty = self._recorder.takes_empty(stream)

        def build(opened: list[mx.Array]) -> list[mx.Array]:
            return stages.build(plan, stage, known, opened, results, empty_arrays=takes_empty)

        try:
            replay = self._recorder.record(build, inputs, stream)
        except EmptyArrayError:
            return Instead.EAGER
        except Exception as error:
            # a handler that fails on these inputs does so eagerly too, and then nothing is known about tracing
            Frame(list(frame.values), dict(frame.twins)).execute(Segment(steps=stage.segment.steps))
            self._fell_back(plan, f"uncompiled: {str(error) or type(error).__name__}")
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

    def _fell_back(self, plan: Plan, how: str) -> None:
        message = f"{plan.name} runs {how}"
        if self._report.fell_back(message):
            self._warn(message)


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
