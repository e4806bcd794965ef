"""From a claimed subgraph to its plan.

Each call runs in one of four ways, decided once, here:
  constant  every input is constant: called while compiling, the result is stored
  fold      the inputs are known on the host (shapes, constants, run inputs): numpy in, numpy out
  device    MLX arrays in and out; the parameters listed as `host` are numpy
  host step numpy in; it ends a segment, because its inputs must be computed first
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

import mlxc_py as mx
from ort_ep import dtypes
from ort_ep.capability import Translation
from ort_ep.constants import Prepared, Recipe, constant, derived, host_constant, kept, prepared, shared
from ort_ep.graph import Flags, Graph, Value
from ort_ep.plan import Body, Frame, Plan, Port, Segment, Slot, Step, Want
from ort_ep.registry import BOOL, INTS, Preparation
from ort_ep.shared_initializers import SharedInitializer
from ort_ep.streams import evaluate

# Loops of more iterations, or of more nodes altogether, are driven one iteration after the other.
MAX_TRIPS = 16
MAX_UNROLLED = 1024

# Constants up to this many elements are shape arithmetic; larger ones are weights and are computed by MLX.
_FOLD_LIMIT = 1024


class Known(IntEnum):
    """From when on a value is known on the host."""

    CONSTANT = 0
    SHAPE = 1
    INPUT = 2


_NO_BODIES: Final[Mapping[str, Body]] = {}

_T = TypeVar("_T")
_Args = tuple[tuple[int, Want] | None, ...]
# What a call prepares: how, and the positions of the inputs that are read and replaced.
_Late = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]


class _Mode(Enum):
    CONSTANT = 0
    FOLD = 1
    DEVICE = 2


def build(
    graph: Graph,
    calls: Sequence[Translation],
    captured: Sequence[Value] = (),
    host_results: Sequence[int] = (),
    scope: Mapping[str, Value] | None = None,
) -> Plan:
    """Translate `graph`, given the handler calls of its nodes in order. Evaluates every constant.

    Of a body: `captured` are the values of outer graphs that become inputs too, `host_results` the outputs that are
    computed on the host where that is possible, `scope` the constants of the graphs around it, as these own them.
    """
    return _Builder(graph, calls, captured, host_results, scope or {}).plan()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What takes the place of constants in calls: `slot` is its own, `slots` those of the constants."""

    slot: int
    make: Callable[..., Any]
    key: Hashable
    slots: tuple[int | None, ...]


class _Builder:
    def __init__(
        self,
        graph: Graph,
        calls: Sequence[Translation],
        captured: Sequence[Value],
        host_results: Sequence[int],
        scope: Mapping[str, Value],
    ) -> None:
        self.graph = graph
        self.scope = scope
        self.inputs = [*(value for value in graph.inputs if not value.constant), *captured]
        self.host_results = host_results
        self.bodies: dict[int, dict[str, Body]] = {}
        self.calls = _live(graph, calls)
        self.slots: dict[int, int] = {}
        self.values: list[Value] = []
        self.known: dict[int, Known] = {}
        self.demanded: set[int] = set()  # slots that some call needs on the host
        self.modes: list[_Mode] = []
        self.args: list[_Args] = []
        self.weights: dict[int, SharedInitializer] = {}
        self.prepared: dict[Hashable, _Prepared] = {}
        self.kept: list[Prepared] = []
        self.alike: dict[Hashable, Any] = {}

    def plan(self) -> Plan:
        for value in (*self.inputs, *self.graph.outer()):
            self.known[self.slot(value)] = Known.CONSTANT if value.constant else Known.INPUT
        ports = [Port(self.slot(value), value.name, value.elem_type or 0) for value in self.inputs]
        outputs = [Port(self.slot(value), value.name, value.elem_type or 0) for value in self.graph.outputs]
        self.demanded.update(outputs[index].slot for index in self.host_results)
        self._levels()
        self._modes()
        codes = {
            slot: dtypes.ELEM_TYPES[value.elem_type]
            for slot, value in enumerate(self.values)
            if value.dtype in dtypes.NARROW and value.elem_type is not None
        }
        frame = Frame([], {}, codes)
        self._prepare(frame)
        self.weights = self._shared()
        self._constants(frame)
        self._prepare_computed(frame, {port.slot for port in outputs})
        segments = self._segments(frame)
        self._add_constants(frame, [(port.slot, Want.EITHER) for port in outputs])
        _drop_unused(frame, segments, keep={port.slot for port in outputs})
        self._share_computed(frame)
        _free_after_last_use(segments, keep={port.slot for port in outputs} | _filled(frame))
        evaluate(value for value in (*frame.values, *frame.twins.values()) if isinstance(value, mx.Array))
        return Plan(
            name=self.graph.name,
            inputs=tuple(ports),
            outputs=tuple(outputs),
            segments=tuple(segments),
            values=frame.values,
            twins=frame.twins,
            host_inputs=frozenset(i for i, port in enumerate(ports) if port.slot in self.demanded),
            nodes=len(self.calls),
            host_outputs=frozenset(i for i, port in enumerate(outputs) if self.known.get(port.slot) is not None),
            codes=codes,
            weights=(*(leaf for slot, leaf in self.weights.items() if frame.values[slot] is not None), *self.kept),
        )

    def slot(self, value: Value) -> int:
        slot = self.slots.get(id(value))
        if slot is None:
            slot = self.slots[id(value)] = len(self.values)
            self.values.append(value)
            if value.constant:
                self.known[slot] = Known.CONSTANT
        return slot

    def _levels(self) -> None:
        """From when on each value can be known on the host, in one pass forward."""
        for entry in self.calls:
            handler = entry.handler
            slots = [self.slot(value) for value in entry.node.inputs if value is not None]
            levels = [self.known.get(slot) for slot in slots]
            level: Known | None = None
            if entry.bodies:
                self._nested(entry)
            elif slots and handler.pure and levels.count(Known.CONSTANT) == len(levels):
                level = Known.CONSTANT
            elif handler.host_result:
                level = Known.SHAPE
            elif slots and None not in levels and (handler.fold or handler.host_step):
                level = max(found for found in levels if found is not None)
                if level is Known.INPUT and (handler.host_step or not all(map(_like_a_shape, entry.node.inputs))):
                    level = None
            for value in entry.node.outputs:
                if value is not None and level is not None:
                    self.known[self.slot(value)] = level

    def _nested(self, entry: Translation) -> None:
        """Plans of the bodies of one call."""
        places = {name: position for position, name in enumerate(entry.node.captured)}
        bodies = self.bodies[id(entry)] = {}
        constants = ((name, value) for name, value in entry.node.captured.items() if value.constant)
        scope = {name: self._owner(value) for name, value in constants}
        for name, calls in entry.bodies.items():
            graph = entry.node.bodies[name]
            inputs = {id(value) for value in graph.inputs}
            captured = [value for value in graph.outer() if not value.constant and id(value) not in inputs]
            host_results = entry.handler.host_results.get(name, ())
            bodies[name] = Body(
                plan=build(graph, calls, captured, host_results, scope),
                captures=tuple(places[value.name] for value in captured),
                outputs=tuple(graph.outputs),
                host_results=host_results,
            )

    def _modes(self) -> None:
        """How each call runs, in one pass backward: what is needed on the host is computed there where it can be."""
        modes: list[_Mode] = []
        args: list[_Args] = []
        for entry in reversed(self.calls):
            handler, node = entry.handler, entry.node
            outs = [self.slot(value) for value in node.outputs if value is not None]
            mode = _Mode.DEVICE
            if self.known.get(outs[0]) is Known.CONSTANT:
                mode = _Mode.CONSTANT
            elif handler.host_result:
                mode = _Mode.DEVICE
            elif self.known.get(outs[0]) is not None:
                small = all((value.rank or 0) <= 1 and value.shape is not None for value in node.outputs if value)
                from_shapes = self.known[outs[0]] is Known.SHAPE
                if self.demanded.intersection(outs) or (from_shapes and (small or handler.host_step)):
                    mode = _Mode.FOLD
            modes.append(mode)
            args.append(self._wants(entry, mode))
            if mode is not _Mode.CONSTANT:
                self.demanded.update(arg[0] for arg in args[-1] if arg and arg[1] is Want.HOST)
        self.modes, self.args = modes[::-1], args[::-1]

    def _wants(self, entry: Translation, mode: _Mode) -> _Args:
        return tuple(
            None if value is None else self._want(entry, mode, index, value)
            for index, value in enumerate(entry.node.inputs)
        ) + self._captures(entry)

    def _want(self, entry: Translation, mode: _Mode, index: int, value: Value) -> tuple[int, Want] | None:
        handler = entry.handler
        if mode is _Mode.FOLD or handler.wants_host(index):
            return self.slot(value), Want.HOST
        if mode is _Mode.DEVICE and handler.prepare and (ready := self._ready(entry, index)) is not None:
            return (ready, Want.EITHER) if _is_first(entry, index) else None
        return self.slot(value), Want.EITHER if handler.host_result else _free_want(value)

    def _captures(self, entry: Translation) -> _Args:
        """What the bodies capture, None for what none of them uses."""
        if not entry.node.captured:
            return ()
        on_host: set[int] = set()
        used: set[int] = set()
        for body in self.bodies.get(id(entry), {}).values():
            first = len(body.plan.inputs) - len(body.captures)
            slots = body.plan.used()
            for position, place in enumerate(body.captures, first):
                if body.plan.inputs[position].slot in slots:
                    used.add(place)
                if position in body.plan.host_inputs:
                    on_host.add(place)
        return tuple(
            (self.slot(value), Want.HOST if place in on_host else _free_want(value)) if place in used else None
            for place, value in enumerate(entry.node.implicit)
        )

    def _step(self, entry: Translation, mode: _Mode, args: _Args) -> Step:
        node, handler = entry.node, entry.handler
        function = handler.fold if mode is _Mode.FOLD and handler.fold else handler.function
        keywords = {k: v for k, v in node.attributes.items() if k in handler.attributes or handler.any_attribute}
        if handler.injected:
            offered = {"n_outputs": node.n_outputs, "node": node, "opset": node.opset}
            keywords |= {name: value for name, value in offered.items() if name in handler.injected}
        results = node.outputs[: node.n_outputs]
        outs = tuple(-1 if value is None else self.slot(value) for value in results)
        if mode is not _Mode.FOLD and handler.prepare and (late := list(self._late(entry, mode))):
            function = partial(_prepare_and_call, late, function)
        if not handler.is_builtin:
            function = partial(_call_on_its_own, function)
        bodies = self.bodies.get(id(entry), _NO_BODIES)
        host_dtypes = tuple(map(_host_dtype, results))
        return Step(
            node.title,
            function,
            args,
            self._alike(repr(keywords), keywords) if _is_plain(keywords) else keywords,
            outs,
            self._alike(host_dtypes, host_dtypes),
            containers=tuple(i for i, value in enumerate(results) if value is not None and value.is_container),
            traceable=mode is _Mode.FOLD or _traceable(entry, bodies),
            even=handler.is_builtin and all(body.plan.even for body in bodies.values()),
            bodies=bodies,
            explicit=len(node.inputs),
        )

    def _alike(self, key: Hashable, value: _T) -> _T:
        """The value, or that of an earlier step with the same key: what plans keep stays small."""
        found: _T = self.alike.setdefault(key, value)
        return found

    # ------------------------------------------------------------ prepared inputs
    def _ready(self, entry: Translation, index: int) -> int | None:
        """The slot for what is prepared from constants in the place of an input; None where each call does it."""
        recipe = _preparation(entry, index)
        if recipe is None:
            return None
        values = _recipe_inputs(entry, recipe)
        keywords = _recipe_keywords(entry, recipe)
        if not all(value is None or self._may_prepare(value) for value in values):
            return None
        slots = tuple(None if value is None else self.slot(value) for value in values)
        key = (recipe.function, tuple(sorted(keywords.items())))
        item = self.prepared.get((key, slots))
        if item is None:
            place = self.slot(Value(-1, f"prepared {recipe.inputs[0]}"))
            item = _Prepared(place, partial(recipe.function, **keywords), key, slots)
            self.prepared[(key, slots)] = item
        return item.slot

    def _may_prepare(self, value: Value) -> bool:
        """Whether it is a constant on the device; initializers of outer graphs that we do not know are not ours."""
        if self.known.get(self.slot(value)) is not Known.CONSTANT or _free_want(value) is not Want.DEVICE:
            return False
        return value.constant is None or not self._owner(value).flags & Flags.OUTER

    def _late(self, entry: Translation, mode: _Mode) -> Iterator[_Late]:
        """What is prepared at each call."""
        parameters = entry.handler.parameters
        for index in range(len(entry.node.inputs)):
            recipe = _preparation(entry, index)
            if recipe is None or not _is_first(entry, index):
                continue
            if mode is _Mode.DEVICE and self._ready(entry, index) is not None:
                continue
            make = partial(recipe.function, **_recipe_keywords(entry, recipe))
            yield make, tuple(map(parameters.index, recipe.inputs)), tuple(map(parameters.index, recipe.replaced))

    def _prepare(self, frame: Frame) -> None:
        """What is prepared from initializers alone, before other weights take memory."""
        items, recipes = [], []
        for item in self.prepared.values():
            owners = [None if slot is None else self._owner(self.values[slot]).constant for slot in item.slots]
            if all(owner is not None or slot is None for owner, slot in zip(owners, item.slots, strict=True)):
                items.append(item)
                recipes.append(Recipe(item.make, tuple(owners), item.key))
        frame.values = [None] * len(self.values)
        for item, done in zip(items, prepared(recipes, self.graph.model_path), strict=True):
            frame.values[item.slot] = done.result
            self.kept.append(done)

    def _prepare_computed(self, frame: Frame, outputs: set[int]) -> None:
        """What is prepared from computed constants; these are let go of as soon as nothing else uses them."""
        left = [item for item in self.prepared.values() if frame.values[item.slot] is None]
        if not left:
            return
        at_run_time = (args for mode, args in zip(self.modes, self.args, strict=True) if mode is not _Mode.CONSTANT)
        used = outputs | {arg[0] for args in at_run_time for arg in args if arg}
        while left:
            item = left.pop()
            self._add_constants(frame, [None if slot is None else (slot, Want.DEVICE) for slot in item.slots])
            arrays = [None if slot is None else frame.device(slot) for slot in item.slots]
            evaluate(array for array in arrays if array is not None)
            (done,) = kept([item.make(*arrays)])
            frame.values[item.slot] = done.result
            self.kept.append(done)
            used_later = used.union(*(other.slots for other in left))
            for slot in item.slots:
                if slot is not None and slot not in used_later:
                    frame.free(slot)

    def _shared(self) -> dict[int, SharedInitializer]:
        """Interned leaves of the weights that some call takes on the device, by slot; outer ones as their owner's."""
        wanted = {}
        for slot in {arg[0] for args in self.args for arg in args if arg and arg[1] is Want.DEVICE}:
            owner = self._owner(self.values[slot])
            if owner.constant and not owner.flags & Flags.OUTER:
                wanted[slot] = owner.constant
        return shared(wanted, self.graph.model_path)

    def _share_computed(self, frame: Frame) -> None:
        """What was computed from weights is shared like them."""
        for slot, value in enumerate(frame.values):
            if isinstance(value, mx.Array) and slot not in self.weights and self.values[slot].elem_type:
                twin = derived(value)
                if twin is not None:
                    self.weights[slot], frame.values[slot] = twin, twin.array

    def _owner(self, value: Value) -> Value:
        """The value itself, or what it is in the graph around that it comes from, where that is known."""
        return self.scope.get(value.name, value) if value.flags & Flags.OUTER else value

    def _constants(self, frame: Frame) -> None:
        """The constants that run-time calls use; constant calls are made here, once."""
        for entry, mode in zip(self.calls, self.modes, strict=True):
            if mode is _Mode.CONSTANT:
                self._constant_call(frame, entry)

    def _constant_call(self, frame: Frame, entry: Translation) -> None:
        slots = [self.slot(value) for value in entry.node.inputs if value is not None]
        small = all(self._size(frame, slot) <= _FOLD_LIMIT for slot in slots)
        mode = _Mode.FOLD if entry.handler.fold and small else _Mode.CONSTANT
        step = self._step(entry, mode, self._wants(entry, mode))
        self._add_constants(frame, step.args)
        for slot in (arg[0] for arg in step.args if arg and arg[1] is Want.HOST):
            self._to_host(frame, slot)
        frame.execute(Segment(steps=[step]))

    def _size(self, frame: Frame, slot: int) -> int:
        initializer = self.values[slot].constant
        return initializer.size if initializer else _elements(frame.values[slot])

    def _add_constants(self, frame: Frame, args: Iterable[tuple[int, Want] | None]) -> None:
        """Make sure that initializers among `args` are in the frame, in the form that is asked for."""
        for arg in args:
            if arg is None:
                continue
            slot, want = arg
            value = self.values[slot]
            if value.constant is None:
                continue
            row = dtypes.ELEM_TYPES[value.constant.elem_type]
            if want is Want.HOST or row.mlx is None:
                if frame.values[slot] is None:
                    frame.values[slot] = host_constant(value.constant)
                elif slot not in frame.twins and not isinstance(frame.values[slot], np.ndarray):
                    frame.twins[slot] = host_constant(value.constant)
            elif frame.values[slot] is None:
                leaf = self.weights.get(slot)
                frame.values[slot] = leaf.array if leaf else constant(value.constant)

    def _segments(self, frame: Frame) -> list[Segment]:
        segments = [Segment()]
        on_host = _filled(frame) | {slot for slot in self.demanded if self.known.get(slot) is not None}
        for entry, mode, args in zip(self.calls, self.modes, self.args, strict=True):
            if mode is _Mode.CONSTANT:
                continue
            step = self._step(entry, mode, args)
            self._add_constants(frame, step.args)
            needed = {arg[0] for arg in step.args if arg and arg[1] is Want.HOST}
            missing = {slot for slot in needed - on_host if frame.values[slot] is None}
            if missing:
                segments.append(Segment(sync=tuple(sorted(missing))))
                on_host |= missing
            for slot in needed:
                if frame.values[slot] is not None:
                    self._to_host(frame, slot)
            segments[-1].steps.append(step)
        for arg in (arg for segment in segments for step in segment.steps for arg in step.args):
            if arg and arg[1] is Want.DEVICE and isinstance(frame.values[arg[0]], np.ndarray):
                frame.device(arg[0])  # made once, not in every run
        return segments

    def _to_host(self, frame: Frame, slot: int) -> None:
        if not isinstance(frame.values[slot], np.ndarray) and slot not in frame.twins:
            evaluate([frame.values[slot]])
            frame.sync([slot])


def _preparation(entry: Translation, index: int) -> Preparation | None:
    """What input `index` of a call goes into; None where that is the handler alone."""
    recipe = entry.handler.prepare.get(entry.handler.parameter(index) or "")
    given = recipe and entry.node.input(entry.handler.parameters.index(recipe.inputs[0]))
    return None if given is None else recipe


def _is_first(entry: Translation, index: int) -> bool:
    """Whether the handler gets what is prepared from an input, and others, in the place of this one."""
    parameter = entry.handler.parameter(index) or ""
    return entry.handler.prepare[parameter].inputs[0] == parameter


def _is_plain(keywords: Mapping[str, Any]) -> bool:
    """Whether its text tells everything about it."""
    return all(isinstance(value, int | float | str | tuple) for value in keywords.values())


def _recipe_inputs(entry: Translation, recipe: Preparation) -> list[Value | None]:
    return [entry.node.input(entry.handler.parameters.index(name)) for name in recipe.inputs]


def _recipe_keywords(entry: Translation, recipe: Preparation) -> dict[str, Any]:
    return {name: value for name, value in entry.node.attributes.items() if name in recipe.attributes}


def _prepare_and_call(late: Sequence[_Late], function: Callable[..., Any], *given: Slot, **keywords: Any) -> Any:
    """Call a handler with some inputs prepared first."""
    arguments = list(given)
    for make, sources, (first, *others) in late:
        arguments[first] = make(*(given[source] if source < len(given) else None for source in sources))
        for other in others:
            if other < len(arguments):
                arguments[other] = None
    return function(*arguments, **keywords)


def _call_on_its_own(function: Callable[..., Any], *given: Slot, **keywords: Any) -> Any:
    """Call a user's handler, whose `x += 1` must not reach the other readers of x."""
    return function(*map(_own, given), **keywords)


def _own(value: Slot) -> Slot:
    if isinstance(value, list):
        return [_own(item) for item in value]
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
        return value
    return copy.copy(value)


def _traceable(entry: Translation, bodies: Mapping[str, Body]) -> bool:
    handler, node = entry.handler, entry.node
    if not handler.pure or handler.host_step:
        return False
    if (handler.containers or bodies) and any(v is not None and v.is_container for v in (*node.reads, *node.outputs)):
        return False
    return not bodies or _unrollable(entry, bodies)


def _unrollable(entry: Translation, bodies: Mapping[str, Body]) -> bool:
    """Whether control flow runs its bodies few times and without looking at data, so that it can be traced."""
    handler = entry.handler
    trips = handler.trips(entry.node) if handler.trips else None
    if trips is None or trips > MAX_TRIPS:
        return False
    for name, body in bodies.items():
        own = range(len(body.plan.inputs) - len(body.captures))
        on_host = body.plan.host_inputs.intersection(own)
        if not (
            body.plan.is_trace
            and on_host <= set(handler.host_arguments.get(name, ()))
            and body.plan.host_outputs.issuperset(body.host_results)
            and trips * body.plan.nodes <= MAX_UNROLLED
        ):
            return False
    return True


def _like_a_shape(value: Value | None) -> bool:
    """Whether what a run is given may be a shape, or part of one, and not the data to work on."""
    if value is None:
        return True
    sizes = value.shape
    if sizes is None or len(sizes) > 1:
        return False
    return value.dtype in INTS | BOOL or all(isinstance(size, int) and size <= _FOLD_LIMIT for size in sizes)


def _host_dtype(value: Value | None) -> np.dtype[Any] | None:
    row = dtypes.ELEM_TYPES.get(value.elem_type or 0) if value else None
    return row.numpy if row else None


def _elements(value: Slot) -> int:
    if isinstance(value, list):
        return sum(map(_elements, value))
    return 0 if value is None else int(value.size)


def _filled(frame: Frame) -> set[int]:
    return {slot for slot, value in enumerate(frame.values) if value is not None}


def _live(graph: Graph, calls: Sequence[Translation]) -> list[Translation]:
    """The calls whose results reach an output: function bodies compute outputs that their caller leaves out."""
    needed = {id(value) for value in graph.outputs}
    live = []
    for entry in reversed(calls):
        if any(value is not None and id(value) in needed for value in entry.node.outputs):
            live.append(entry)
            needed |= {id(value) for value in (*entry.node.inputs, *entry.node.implicit) if value is not None}
    return live[::-1]


def _free_want(value: Value) -> Want:
    """The form in which a call takes a value that it does not ask for on the host."""
    if value.is_container:
        return Want.EITHER
    return Want.DEVICE if value.elem_type in dtypes.OF_MLX else Want.HOST  # MLX can't hold it: numpy carries it


def _drop_unused(frame: Frame, segments: Sequence[Segment], keep: set[int]) -> None:
    """Let go of constants that only other constants were computed from."""
    used = keep | {arg[0] for segment in segments for step in segment.steps for arg in step.args if arg}
    for slot in _filled(frame) - used:
        frame.free(slot)


def _free_after_last_use(segments: Sequence[Segment], keep: set[int]) -> None:
    seen = set(keep)
    for segment in reversed(segments):
        for step in reversed(segment.steps):
            touched = {arg[0] for arg in step.args if arg} | {slot for slot in step.outs if slot >= 0}
            step.frees = tuple(sorted(touched - seen))
            seen |= touched
