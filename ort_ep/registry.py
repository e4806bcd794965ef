"""The operator registry: which function translates which ONNX operator, from which version, under which conditions.

A handler takes the ONNX inputs positionally (absent = None, which a default or `| None` allows), the attributes
keyword-only with the spec's defaults, and returns an Array or a tuple of them. Its signature is the schema check; the
decorator's arguments are its claim.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_type_hints

if TYPE_CHECKING:
    from ort_ep.graph import Node

MICROSOFT: Final = "com.microsoft"

BOOL: Final = frozenset({"bool"})
SINGLES: Final = frozenset({"float16", "bfloat16", "float32"})
FLOATS: Final = SINGLES | {"float64"}
SIGNED: Final = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED: Final = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTS: Final = SIGNED | UNSIGNED
INT32: Final = frozenset({"int32"})
INDEX: Final = INT32 | {"int64"}
BYTES: Final = frozenset({"int8", "uint8"})
NUMERIC: Final = FLOATS | INTS
ANY: Final = NUMERIC | BOOL

# Their result changes from call to call, so it is never computed once at compile time.
IMPURE: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)

RETURN: Final = "return"
INJECTED: Final = frozenset({"n_outputs", "node", "opset"})

Dtypes = frozenset[str] | Mapping[str, frozenset[str]]
Claim = Callable[["Node"], "str | None"]
Preparations = Mapping[str | tuple[str, ...], Callable[..., Any]]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """What is done to inputs before their handler sees them, once where they are constant: see `prepare` of
    `Registry.op`.

    `inputs` name what the function takes, `required` those that must not be absent, `attributes` the node's attributes
    among its keywords. Of `replaced`, the handler gets the result as the first, and nothing as the others.
    """

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    required: frozenset[str]
    attributes: frozenset[str]
    replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """One registered function and the conditions under which it may be used."""

    domain: str
    name: str
    since: int
    function: Callable[..., Any]
    host: frozenset[str]
    dtypes: Dtypes
    claim: Claim | None
    fold: Callable[..., Any] | None
    host_result: bool
    host_step: bool
    pure: bool
    containers: bool
    host_results: Mapping[str, tuple[int, ...]]
    host_arguments: Mapping[str, tuple[int, ...]]
    trips: Callable[[Node], int | None] | None
    override: bool
    prepare: Mapping[str, Preparation]
    parameters: tuple[str, ...]
    required: int
    nullable: frozenset[int]
    variadic: str | None
    attributes: frozenset[str]
    required_attributes: frozenset[str]
    any_attribute: bool
    injected: frozenset[str]

    def parameter(self, index: int) -> str | None:
        """The name of the parameter that takes input `index`; None where the handler takes no such input."""
        return self.parameters[index] if index < len(self.parameters) else self.variadic

    def takes(self, index: int) -> frozenset[str] | None:
        """The dtypes that input `index` may have; None: whatever MLX holds."""
        parameter = self.parameter(index)
        if isinstance(self.dtypes, frozenset):
            return None if parameter in self.host else self.dtypes
        return self.dtypes.get(parameter or "")

    @property
    def returns(self) -> frozenset[str] | None:
        """The dtypes that outputs may have; None: whatever MLX holds."""
        return None if isinstance(self.dtypes, frozenset) else self.dtypes.get(RETURN)

    def wants_host(self, index: int) -> bool:
        """Whether input `index` must be a numpy array when the handler is called."""
        return self.host_step or self.parameter(index) in self.host

    @property
    def takes_anything(self) -> bool:
        """Whether every input may come in the form in which it is there."""
        return not (self.host or self.prepare or self.host_step or self.host_result)

    @property
    def is_builtin(self) -> bool:
        """Whether the function is this package's."""
        return self.function.__module__.startswith("ort_ep.")

    def __str__(self) -> str:
        return f"{self.domain or 'ai.onnx'}::{self.name} since {self.since} ({self.function.__module__})"


@dataclass(slots=True)
class _Versions:
    """The handlers of one operator, newest first; overrides are looked up before the others."""

    ours: list[Handler] = field(default_factory=list)
    overrides: list[Handler] = field(default_factory=list)


class Registry:
    """Handlers keyed by (domain, op type, since); the lookup takes the newest that is not newer than the node."""

    def __init__(self, package: str | None = None) -> None:
        self._ops: dict[tuple[str, str], _Versions] = {}
        self._package = package
        self._loading = threading.RLock()
        self._loaded = package is None

    def op(
        self,
        name: str,
        *,
        since: int = 1,
        domain: str = "",
        host: Collection[str] = (),
        dtypes: Collection[str] | Mapping[str, Collection[str]] = SINGLES,
        claim: Claim | None = None,
        fold: Callable[..., Any] | bool | None = None,
        host_result: bool = False,
        host_step: bool = False,
        pure: bool | None = None,
        containers: bool = False,
        host_results: Mapping[str, tuple[int, ...]] | None = None,
        host_arguments: Mapping[str, tuple[int, ...]] | None = None,
        trips: Callable[[Node], int | None] | None = None,
        prepare: Preparations | None = None,
        override: bool = False,
    ) -> Callable[[F], F]:
        """Register the decorated function as the translation of an ONNX operator.

        since: the first operator-set version it is right for; it serves until a newer one is registered.
        host: parameters whose values must be known as numpy arrays (Reshape's shape, Slice's starts, ...).
        dtypes: names allowed for every other input, or {parameter: names}, with "return" for the outputs; what a dict
            does not mention may be anything MLX holds.
        claim: called with the Node; a returned sentence declines it.
        fold: numpy twin for host-known inputs (True: the handler itself takes numpy), so shape arithmetic stays there.
        host_result: the handler returns numpy whatever it is given (Shape, Size): it reads only shapes.
        host_step: all inputs are numpy and the plan is split here; only where an output's shape depends on data.
        pure: False where the result changes from call to call (default: false for ONNX's random operators).
        containers: inputs and outputs may be sequences (lists) and optionals (None where empty) beside tensors.
        host_results: by body attribute, which outputs of the body the handler reads as numpy (Loop's condition).
        host_arguments: by body attribute, which inputs of the body the handler gives as numpy.
        trips: how often the handler calls a body at most; None where only the run tells. Few calls become part of the
            caller's trace.
        prepare: {input: function}: the handler gets what the function makes of that input: an Array, or a NamedTuple of
            Arrays and plain values. Its keywords are attributes of the node; further positional parameters are other
            inputs of the handler, by name. Of constants it is computed once, when the session is made, shared between
            sessions and kept in the place of the weights that it was computed from. A tuple of inputs as the key are
            the function's first parameters: the handler gets its result as the first of them and None as the others.
        override: replace what is registered. Without it a duplicate is a ValueError.
        """

        if not isinstance(name, str) or not name:
            raise TypeError(f"op: the name must be an operator's, such as 'Relu', not {name!r}")
        if isinstance(since, bool) or not isinstance(since, int) or since < 1:
            raise ValueError(f"{name}: since={since!r} must be an operator-set version, a whole number from 1")

        if claim is not None and not callable(claim):
            raise TypeError(f"{name}: claim={claim!r} must be a function of the node that returns a reason or None")
        if not isinstance(fold, bool) and fold is not None and not callable(fold):
            raise TypeError(f"{name}: fold={fold!r} must be True or a function of numpy arrays")

        def register(function: F) -> F:
            module = getattr(function, "__module__", "")
            if self._package is not None and not module.startswith(self._package):
                self.load()  # a user's op must meet ours as a duplicate now, not when ours are imported later
            parts = _signature(name, function, host)
            recipes = [_preparation(name, key, made, parts) for key, made in (prepare or {}).items()]
            prepared = {key: recipe for recipe in recipes for key in recipe.replaced}
            if prepared and (fold is True or host_step or prepared.keys() & set(host)):
                raise ValueError(f"{name}: what is prepared is on the device, what folds or is in `host` is numpy")
            if any(prepared.get(key, recipe) is not recipe for recipe in recipes for key in recipe.inputs):
                raise ValueError(f"{name}: an input that is itself prepared can't go into the preparation of another")
            needed = {key for key, recipe in prepared.items() if key in recipe.required}
            parts["nullable"] -= {i for i, parameter in enumerate(parts["parameters"]) if parameter in needed}
            self.add(
                Handler(
                    domain=_domain(domain),
                    name=name,
                    since=since,
                    function=function,
                    host=frozenset(host),
                    dtypes=_dtypes(name, dtypes, parts),
                    claim=claim,
                    fold=function if fold is True else (fold or None),
                    host_result=host_result,
                    host_step=host_step,
                    pure=name not in IMPURE if pure is None else pure,
                    containers=containers,
                    host_results=dict(host_results or {}),
                    host_arguments=dict(host_arguments or {}),
                    trips=trips,
                    override=override,
                    prepare=prepared,
                    **parts,
                )
            )
            return function

        return register

    def add(self, handler: Handler) -> None:
        """Add one handler; ValueError for a duplicate."""
        versions = self._ops.setdefault((handler.domain, handler.name), _Versions())
        same = versions.overrides if handler.override else versions.ours
        clash = next((other for other in same if other.since == handler.since), None)
        if clash and not handler.override:
            raise ValueError(f"{handler} is already registered by {clash.function.__module__}; pass override=True")
        if clash:
            same.remove(clash)
        same.append(handler)
        same.sort(key=lambda entry: -entry.since)

    def lookup(self, domain: str, name: str, version: int) -> Handler | None:
        """The newest handler whose `since` is not above `version`; overrides first; None where there is none."""
        versions = self._ops.get((_domain(domain), name))
        if versions is None:
            return None
        for handler in (*versions.overrides, *versions.ours):
            if handler.since <= version:
                return handler
        return None

    def only(self, domain: str, name: str) -> Handler:
        """The one handler of an operator, whatever overrides it; KeyError for none, ValueError for several."""
        (handler,) = self._ops[_domain(domain), name].ours
        return handler

    def versions(self, domain: str, name: str) -> list[int]:
        """Every registered `since` of an operator, oldest first."""
        versions = self._ops.get((_domain(domain), name), _Versions())
        return sorted({handler.since for handler in (*versions.ours, *versions.overrides)})

    def handlers(self) -> Iterator[Handler]:
        """Every handler, ordered by domain, name and version: what docs/OPS.md lists."""
        for _, versions in sorted(self._ops.items()):
            yield from sorted((*versions.ours, *versions.overrides), key=lambda handler: handler.since)

    def host_steps(self) -> list[Handler]:
        """The handlers that split a plan: the one table of what may run as numpy between segments."""
        return [handler for handler in self.handlers() if handler.host_step]

    def load(self) -> None:
        """Import every module of the package of built-in handlers, once."""
        if self._loaded or self._package is None:
            return
        with self._loading:
            if self._loaded:
                return
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
            self._loaded = True


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _dtypes(name: str, dtypes: Collection[str] | Mapping[str, Collection[str]], handler: Mapping[str, Any]) -> Dtypes:
    if not isinstance(dtypes, Mapping):
        return _names(name, dtypes)
    known = [*handler["parameters"], *filter(None, [handler["variadic"]])]
    if unknown := [key for key in dtypes if key not in (*known, RETURN)]:
        raise TypeError(f"{name}: dtypes has {unknown[0]!r}, which is neither among {known} nor {RETURN!r}")
    return {key: _names(name, names) for key, names in dtypes.items()}


def _names(name: str, dtypes: Collection[str]) -> frozenset[str]:
    if isinstance(dtypes, str):
        raise TypeError(f"{name}: dtypes={dtypes!r} must be a set of names, {{{dtypes!r}}}")
    names = frozenset(dtypes)
    if not names <= ANY:  # the whole table is imported only where it is needed: it brings MLX
        from ort_ep.dtypes import BY_NAME

        if unknown := sorted(names - BY_NAME.keys(), key=str):
            raise ValueError(f"{name}: {unknown[0]!r} is no dtype's name; there are {', '.join(BY_NAME)}")
    return names


def _signature(name: str, function: Callable[..., Any], host: Collection[str]) -> dict[str, Any]:
    """What the handler's signature says, as fields of Handler; TypeError where it can't be bound to a node."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: the handler must be a function with a signature, not {function!r}") from error
    positional = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    keywords = [item for item in parameters if item.kind is item.KEYWORD_ONLY]
    variadic = next((item.name for item in parameters if item.kind is item.VAR_POSITIONAL), None)
    others = next((item for item in parameters if item.kind is item.VAR_KEYWORD), None)
    inputs = [item.name for item in positional] + ([variadic] if variadic else [])
    if variadic and others and len(parameters) == 2:
        raise TypeError(
            f"{name}: (*{variadic}, **{others.name}) tells neither inputs nor attributes; a decorator around a handler "
            "needs functools.wraps"
        )
    if misplaced := [parameter for parameter in inputs if parameter in INJECTED]:
        raise TypeError(f"{name}: {misplaced[0]} is no input of a node: make it keyword-only, behind a *")
    if isinstance(host, str) or set(host) - set(inputs):
        raise TypeError(f"{name}: host={host!r} must be a tuple of names among the handler's inputs {inputs}")
    typed = _typed_keywords(function, others)
    attributes = {item.name for item in keywords} | (typed.__annotations__.keys() if typed else set())
    required = {item.name for item in keywords if item.default is item.empty}
    required |= typed.__required_keys__ if typed else set()
    return {
        "parameters": tuple(item.name for item in positional),
        "required": sum(item.default is item.empty for item in positional),
        "nullable": frozenset(i for i, item in enumerate(positional) if "None" in str(item.annotation)),
        "variadic": variadic,
        "attributes": frozenset(attributes - INJECTED),
        "required_attributes": frozenset(required - INJECTED),
        "any_attribute": others is not None and typed is None,
        "injected": frozenset(attributes & INJECTED),
    }


def _preparation(
    name: str, key: str | tuple[str, ...], function: Callable[..., Any], handler: Mapping[str, Any]
) -> Preparation:
    """A function given as `prepare`; TypeError where its signature does not fit the handler's."""
    parts, replaced = _signature(name, function, ()), (key,) if isinstance(key, str) else tuple(key)
    inputs = (*replaced, *parts["parameters"][len(replaced) :])
    fits = 0 < len(replaced) <= len(parts["parameters"]) and not parts["variadic"]
    if not fits or not set(inputs) <= set(handler["parameters"]):
        raise TypeError(
            f"{name}: prepare={key!r}: {function.__name__} takes {list(inputs)}, the handler's inputs are"
            f" {list(handler['parameters'])}"
        )
    required = frozenset(key for i, key in enumerate(inputs) if i < parts["required"] and i not in parts["nullable"])
    return Preparation(function, inputs, required, parts["attributes"], replaced)


def _typed_keywords(function: Callable[..., Any], keywords: inspect.Parameter | None) -> Any:
    """The TypedDict T of `**keywords: Unpack[T]`, whose keys are attributes; None where there is none."""
    if keywords is None or "Unpack[" not in str(keywords.annotation):
        return None
    return get_args(get_type_hints(function)[keywords.name])[0]


REGISTRY: Final = Registry("ort_ep.ops")
op = REGISTRY.op
