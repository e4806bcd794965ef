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
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cache, partial
from typing import Any, Final

import numpy as np

import mlxc_py as mx
from ort_ep import dtypes, even
from ort_ep.capability import Translation
from ort_ep.constants import Prepared, Recipe, constant, derived, host_constant, kept, prepared, shared
from ort_ep.graph import Flags, Graph, Node, Value
from ort_ep.plan import Body, Frame, Plan, Port, Segment, Slot, Step, Want
from ort_ep.registry import BOOL, INTS, Handler, Preparation
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
_NO_KEYWORDS: Final[Mapping[str, Any]] = {}

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


@dataclass(slots=True, eq=False)
class _Call:
    """A translation, with the slots of its inputs and outputs (None for an absent one) and the way it runs.

    `ready`: the slots of what is prepared while the plan is built; None where each run prepares it.
    """

    node: Node
    handler: Handler
    ins: tuple[int | None, ...]
    outs: tuple[int | None, ...]
    bodies: Mapping[str, Body]
    mode: _Mode = _Mode.DEVICE
    args: _Args = ()
    ready: dict[Preparation, int | None] = field(default_factory=dict)


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
        self.translations = _live(graph, calls)
        self.calls: list[_Call] = []
        self.slots: dict[int, int] = {}
        self.values: list[Value] = []
        self.given: list[tuple[int, Want]] = []  # by slot: the form in which calls take it that do not ask for the host
        self.stored: set[int] = set()  # slots of initializers
        self.known: dict[int, Known] = {}
        self.demanded: set[int] = set()  # slots that some call needs on the host
        self.weights: dict[int, SharedInitializer] = {}
        self.prepared: dict[Hashable, _Prepared] = {}
        self.kept: list[Prepared] = []
        self.alike: dict[Hashable, Mapping[str, Any]] = {}

    def plan(self) -> Plan:
        for value in (*self.inputs, *self.graph.outer()):
            self.known[self.slot(value)] = Known.CONSTANT if value.constant else Known.INPUT
        ports = [Port(self.slot(value), value.name, value.elem_type or 0) for value in self.inputs]
        outputs = [Port(self.slot(value), value.name, value.elem_type or 0) for value in self.graph.outputs]
        self.demanded.update(outputs[index].slot for index in self.host_results)
        self._number()
        self._modes()
        codes = {
            slot: dtypes.ELEM_TYPES[value.elem_type]
            for slot, value in enumerate(self.values)
            if value.elem_type in dtypes.NARROW_CODES
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
            self.given.append((slot, _free_want(value)))
            if value.constant:
                self.stored.add(slot)
                self.known[slot] = Known.CONSTANT
        return slot

    def _slots(self, values: Iterable[Value | None]) -> tuple[int | None, ...]:
        return tuple([None if value is None else self.slot(value) for value in values])

    def _number(self) -> None:
        """The calls, and from when on each value can be known on the host, in one pass forward."""
        for entry in self.translations:
            node = entry.node
            bodies = self._nested(entry) if entry.bodies else _NO_BODIES
            call = _Call(node, entry.handler, self._slots(node.inputs), self._slots(node.outputs), bodies)
            self.calls.append(call)
            level = self._level(call)
            if level is not None:
                self.known.update((slot, level) for slot in call.outs if slot is not None)

    def _level(self, call: _Call) -> Known | None:
        if call.bodies:
            return None
        handler = call.handler
        levels = [self.known.get(slot) for slot in call.ins if slot is not None]
        if levels and handler.pure and levels.count(Known.CONSTANT) == len(levels):
            return Known.CONSTANT
        if handler.host_result:
            return Known.SHAPE
        known = [level for level in levels if level is not None]
        if not known or len(known) < len(levels) or not (handler.fold or handler.host_step):
            return None
        level = max(known)
        if level is Known.INPUT and (handler.host_step or not all(map(_like_a_shape, call.node.inputs))):
            return None
        return level

    def _nested(self, entry: Translation) -> dict[str, Body]:
        """Plans of the bodies of one call."""
        places = {name: position for position, name in enumerate(entry.node.captured)}
        bodies = {}
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
        return bodies

    def _modes(self) -> None:
        """How each call runs, in one pass backward: what is needed on the host is computed there where it can be."""
        for call in reversed(self.calls):
            call.mode = self._mode(call)
            call.args = self._args(call, call.mode)
            if call.mode is not _Mode.CONSTANT:
                self.demanded.update(_on_host(call.args))

    def _mode(self, call: _Call) -> _Mode:
        outs = [slot for slot in call.outs if slot is not None]
        level = self.known.get(outs[0])
        if level is Known.CONSTANT:
            return _Mode.CONSTANT
        if level is None or call.handler.host_result:
            return _Mode.DEVICE
        small = all((value.rank or 0) <= 1 and value.shape is not None for value in call.node.outputs if value)
        from_shapes = level is Known.SHAPE and (small or call.handler.host_step)
        return _Mode.FOLD if from_shapes or self.demanded.intersection(outs) else _Mode.DEVICE

    def _args(self, call: _Call, mode: _Mode) -> _Args:
        if mode is not _Mode.FOLD and call.handler.takes_anything:
            args: _Args = tuple([None if slot is None else self.given[slot] for slot in call.ins])
        else:
            wants = (None if slot is None else self._want(call, mode, i, slot) for i, slot in enumerate(call.ins))
            args = tuple(wants)
        return args + self._captures(call) if call.node.captured else args

    def _want(self, call: _Call, mode: _Mode, index: int, slot: int) -> tuple[int, Want] | None:
        handler = call.handler
        if mode is _Mode.FOLD or handler.wants_host(index):
            return slot, Want.HOST
        if mode is _Mode.DEVICE and handler.prepare and (ready := self._ready(call, index)) is not None:
            return (ready, Want.EITHER) if _is_first(call, index) else None
        return (slot, Want.EITHER) if handler.host_result else self.given[slot]

    def _captures(self, call: _Call) -> _Args:
        """What the bodies capture, None for what none of them uses."""
        on_host: set[int] = set()
        used: set[int] = set()
        for body in call.bodies.values():
            first = len(body.plan.inputs) - len(body.captures)
            slots = body.plan.used()
            for position, place in enumerate(body.captures, first):
                if body.plan.inputs[position].slot in slots:
                    used.add(place)
                if position in body.plan.host_inputs:
                    on_host.add(place)
        return tuple(
            ((slot, Want.HOST) if place in on_host else self.given[slot]) if place in used else None
            for place, slot in enumerate(map(self.slot, call.node.implicit))
        )

    def _step(self, call: _Call, mode: _Mode, args: _Args) -> Step:
        node, handler = call.node, call.handler
        function = handler.fold if mode is _Mode.FOLD and handler.fold else handler.function
        n_outputs = node.n_outputs
        results = node.outputs[:n_outputs]
        keywords: Mapping[str, Any] = _NO_KEYWORDS
        if node.attributes:
            keywords = {k: v for k, v in node.attributes.items() if handler.any_attribute or k in handler.attributes}
        if handler.injected:
            offered = {"n_outputs": n_outputs, "node": node, "opset": node.opset}
            keywords = {**keywords, **{name: value for name, value in offered.items() if name in handler.injected}}
        if mode is not _Mode.FOLD and handler.prepare and (late := list(self._late(call, mode))):
            function = partial(_prepare_and_call, late, function)
        if not handler.is_builtin:
            function = partial(_call_on_its_own, function)
        return Step(
            node.title,
            function,
            args,
            self._alike(handler, keywords),
            tuple([-1 if slot is None else slot for slot in call.outs[:n_outputs]]),
            _host_dtypes(tuple([value.elem_type if value else None for value in results])),
            containers=tuple([i for i, value in enumerate(results) if value is not None and value.is_container]),
            traceable=mode is _Mode.FOLD or _traceable(call),
            bodies=call.bodies,
            explicit=len(call.ins),
            even=_even(call),
        )

    def _alike(self, handler: Handler, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
        """These, or those of an earlier step that are equal: what plans keep stays small."""
        try:
            return self.alike.setdefault((handler, *keywords.items()), keywords)
        except TypeError:  # an array among them has no hash
            return keywords

    # ------------------------------------------------------------ prepared inputs
    def _ready(self, call: _Call, index: int) -> int | None:
        """The slot for what is prepared from constants in the place of an input; None where each call does it."""
        recipe = _preparation(call, index)
        if recipe is None:
            return None
        if recipe not in call.ready:
            call.ready[recipe] = self._prepared_slot(call, recipe)
        return call.ready[recipe]

    def _prepared_slot(self, call: _Call, recipe: Preparation) -> int | None:
        values = _recipe_inputs(call, recipe)
        keywords = _recipe_keywords(call, recipe)
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

    def _late(self, call: _Call, mode: _Mode) -> Iterator[_Late]:
        """What is prepared at each call."""
        parameters = call.handler.parameters
        for index in range(len(call.ins)):
            recipe = _preparation(call, index)
            if recipe is None or not _is_first(call, index):
                continue
            if mode is _Mode.DEVICE and call.ready[recipe] is not None:
                continue
            make = partial(recipe.function, **_recipe_keywords(call, recipe))
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
        at_run_time = (call for call in self.calls if call.mode is not _Mode.CONSTANT)
        used = outputs | {arg[0] for call in at_run_time for arg in call.args if arg}
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
        for slot in {arg[0] for call in self.calls for arg in call.args if arg and arg[1] is Want.DEVICE}:
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
        for call in self.calls:
            if call.mode is _Mode.CONSTANT:
                self._constant_call(frame, call)

    def _constant_call(self, frame: Frame, call: _Call) -> None:
        small = all(self._size(frame, slot) <= _FOLD_LIMIT for slot in call.ins if slot is not None)
        mode = _Mode.FOLD if call.handler.fold and small else _Mode.CONSTANT
        step = self._step(call, mode, self._args(call, mode))
        self._add_constants(frame, step.args)
        for slot in _on_host(step.args):
            self._to_host(frame, slot)
        frame.execute(Segment(steps=[step]))

    def _size(self, frame: Frame, slot: int) -> int:
        initializer = self.values[slot].constant
        return initializer.size if initializer else _elements(frame.values[slot])

    def _add_constants(self, frame: Frame, args: Iterable[tuple[int, Want] | None]) -> None:
        """Make sure that initializers among `args` are in the frame, in the form that is asked for."""
        for arg in args:
            if arg is None or arg[0] not in self.stored:
                continue
            slot, want = arg
            initializer = self.values[slot].constant
            assert initializer is not None
            row = dtypes.ELEM_TYPES[initializer.elem_type]
            if want is Want.HOST or row.mlx is None:
                if frame.values[slot] is None:
                    frame.values[slot] = host_constant(initializer)
                elif slot not in frame.twins and not isinstance(frame.values[slot], np.ndarray):
                    frame.twins[slot] = host_constant(initializer)
            elif frame.values[slot] is None:
                leaf = self.weights.get(slot)
                frame.values[slot] = leaf.array if leaf else constant(initializer)

    def _segments(self, frame: Frame) -> list[Segment]:
        segments = [Segment()]
        on_host = _filled(frame) | {slot for slot in self.demanded if self.known.get(slot) is not None}
        for call in self.calls:
            if call.mode is _Mode.CONSTANT:
                continue
            step = self._step(call, call.mode, call.args)
            self._add_constants(frame, step.args)
            needed = _on_host(step.args)
            missing = {slot for slot in needed if slot not in on_host and frame.values[slot] is None}
            if missing:
                segments.append(Segment(sync=tuple(sorted(missing))))
                on_host |= missing
            for slot in needed:
                if frame.values[slot] is not None:
                    self._to_host(frame, slot)
            segments[-1].steps.append(step)
        numpy = {slot for slot, value in enumerate(frame.values) if isinstance(value, np.ndarray)}
        for arg in (arg for segment in segments for step in segment.steps for arg in step.args if numpy):
            if arg and arg[1] is Want.DEVICE and arg[0] in numpy:
                frame.device(arg[0])  # made once, not in every run
        return segments

    def _to_host(self, frame: Frame, slot: int) -> None:
        if not isinstance(frame.values[slot], np.ndarray) and slot not in frame.twins:
            evaluate([frame.values[slot]])
            frame.sync([slot])


def _preparation(call: _Call, index: int) -> Preparation | None:
    """What input `index` of a call goes into; None where that is the handler alone."""
    recipe = call.handler.prepare.get(call.handler.parameter(index) or "")
    given = recipe and call.node.input(call.handler.parameters.index(recipe.inputs[0]))
    return None if given is None else recipe


def _is_first(call: _Call, index: int) -> bool:
    """Whether the handler gets what is prepared from an input, and others, in the place of this one."""
    parameter = call.handler.parameter(index) or ""
    return call.handler.prepare[parameter].inputs[0] == parameter


def _recipe_inputs(call: _Call, recipe: Preparation) -> list[Value | None]:
    return [call.node.input(call.handler.parameters.index(name)) for name in recipe.inputs]


def _recipe_keywords(call: _Call, recipe: Preparation) -> dict[str, Any]:
    return {name: value for name, value in call.node.attributes.items() if name in recipe.attributes}


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
        value.setflags(write=False)
        return value
    return copy.copy(value)


def _even(call: _Call) -> even.Fixed | None:
    """What must not change for a call to be derived; None for a user's handler, which may do anything."""
    handler = call.handler
    if not handler.is_builtin or (call.bodies and not all(body.plan.even for body in call.bodies.values())):
        return None
    return even.fixed(handler.domain, handler.name)


def _traceable(call: _Call) -> bool:
    handler, node = call.handler, call.node
    if not handler.pure or handler.host_step:
        return False
    if handler.containers or call.bodies:
        values = (*node.reads, *node.outputs)
        if any(value is not None and value.is_container for value in values):
            return False
    return not call.bodies or _unrollable(call)


def _unrollable(call: _Call) -> bool:
    """Whether control flow runs its bodies few times and without looking at data, so that it can be traced."""
    handler = call.handler
    trips = handler.trips(call.node) if handler.trips else None
    if trips is None or trips > MAX_TRIPS:
        return False
    for name, body in call.bodies.items():
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


@cache
def _host_dtypes(elem_types: tuple[int | None, ...]) -> tuple[np.dtype[Any] | None, ...]:
    rows = (dtypes.ELEM_TYPES.get(code or 0) for code in elem_types)
    return tuple(row.numpy if row else None for row in rows)


def _on_host(args: _Args) -> list[int]:
    """The slots that a call takes on the host."""
    return [arg[0] for arg in args if arg and arg[1] is Want.HOST]


def _elements(value: Slot) -> int:
    if isinstance(value, list):
        return sum(map(_elements, value))
    return 0 if value is None else int(value.size)


def _filled(frame: Frame) -> set[int]:
    return {slot for slot, value in enumerate(frame.values) if value is not None}


def _live(graph: Graph, calls: Sequence[Translation]) -> list[Translation]:
    """The calls whose results reach an output: function bodies compute outputs that their caller leaves out."""
    needed = set(map(id, graph.outputs))
    live = []
    for entry in reversed(calls):
        node = entry.node
        if not needed.isdisjoint([id(value) for value in node.outputs if value is not None]):
            live.append(entry)
            needed.update(map(id, node.inputs))
            if node.captured:
                needed.update(map(id, node.implicit))
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
