from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

import numpy as np
import pytest

from ort_ep.dtypes import BY_NAME
from ort_ep.registry import ANY, REGISTRY, SINGLES, Registry


def test_lookup_takes_the_newest_version_that_is_not_newer_than_the_node() -> None:
    registry = Registry()
    for since in (13, 1, 6):
        registry.op("Softmax", since=since)(lambda x, since=since: since)
    found = [registry.lookup("", "Softmax", version) for version in (1, 5, 6, 12, 13, 99)]
    assert [handler.since for handler in found if handler] == [1, 1, 6, 6, 13, 13]
    assert registry.versions("", "Softmax") == [1, 6, 13]


def test_lookup_knows_nothing_of_older_versions_other_names_and_other_domains() -> None:
    registry = Registry()
    registry.op("Gelu", since=20)(lambda x: x)
    assert registry.lookup("", "Gelu", 19) is None
    assert registry.lookup("", "gelu", 20) is None
    assert registry.lookup("com.microsoft", "Gelu", 20) is None
    assert registry.lookup("ai.onnx", "Gelu", 20) is not None


def test_duplicate_is_an_error_that_names_the_owner() -> None:
    registry = Registry()
    registry.op("Relu", since=6)(lambda x: x)
    with pytest.raises(ValueError, match=r"ai\.onnx::Relu since 6 .* already registered .*override=True"):
        registry.op("Relu", since=6, domain="ai.onnx")(lambda x: x)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": ""}, "the name must be an operator's, such as 'Relu', not ''"),
        ({"name": len}, "the name must be an operator's"),
        ({"since": 0}, "Thing: since=0 must be an operator-set version"),
        ({"claim": 3}, "Thing: claim=3 must be a function of the node"),
        ({"fold": "numpy"}, "Thing: fold='numpy' must be True or a function"),
        ({"since": "13"}, "Thing: since='13' must be"),
        ({"since": True}, "Thing: since=True must be"),
        ({"dtypes": {"float"}}, "Thing: 'float' is no dtype's name; there are float32, uint8"),
        ({"dtypes": {"x": {"float32", "half"}}}, "Thing: 'half' is no dtype's name"),
        ({"dtypes": {"T": {"float32"}}}, r"Thing: dtypes has 'T', which is neither among \['x'\] nor 'return'"),
        ({"dtypes": "float32"}, "Thing: dtypes='float32' must be a set of names"),
    ],
)
def test_what_the_decorator_is_given_is_checked(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        Registry().op(**{"name": "Thing", **arguments})(lambda x: x)


def test_override_wins_over_newer_handlers_and_may_be_replaced() -> None:
    registry = Registry()
    registry.op("Relu", since=14)(lambda x: "ours")
    registry.op("Relu", since=1, override=True)(lambda x: "first")
    registry.op("Relu", since=1, override=True)(lambda x: "second")
    handler = registry.lookup("", "Relu", 14)
    assert handler is not None
    assert handler.function(None) == "second"


def test_signature_tells_inputs_attributes_and_injected_parameters() -> None:
    registry = Registry()

    @registry.op("Thing", domain="my", host=("shape", "rest"))
    def thing(
        x: Any, shape: Any, bias: Any = None, *rest: Any, axis: int, keep: int = 1, n_outputs: int, node: Any
    ) -> Any:
        return x

    handler = registry.lookup("my", "Thing", 1)
    assert handler is not None
    assert (handler.parameters, handler.required, handler.variadic) == (("x", "shape", "bias"), 2, "rest")
    assert (handler.attributes, handler.required_attributes) == ({"axis", "keep"}, {"axis"})
    assert handler.injected == {"n_outputs", "node"}
    assert [handler.wants_host(index) for index in range(5)] == [False, True, False, True, True]
    assert handler.dtypes == SINGLES


def test_inputs_between_others_may_be_absent_where_the_annotation_says_so() -> None:
    registry = Registry()

    @registry.op("Thing", domain="my")
    def thing(x: Any, scale: Any | None, y: Any) -> Any:
        return x

    handler = registry.lookup("my", "Thing", 1)
    assert handler is not None
    assert (handler.required, handler.nullable) == (3, {1})


class Sizes(TypedDict, total=False):
    height: int
    width: int


class NamedSizes(Sizes):
    name: str


def test_keys_of_typed_keywords_are_attributes() -> None:
    registry = Registry()

    @registry.op("Thing", domain="my")
    def thing(x: Any, *, axis: int = 0, n_outputs: int, **sizes: Unpack[NamedSizes]) -> Any:
        return x

    @registry.op("Other", domain="my")
    def other(x: Any, **attributes: Any) -> Any:
        return x

    other_handler, handler = registry.handlers()
    assert (handler.attributes, handler.required_attributes) == ({"axis", "height", "width", "name"}, {"name"})
    assert (handler.any_attribute, other_handler.any_attribute) == (False, True)


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_bare(abs), r"Thing: \(\*args, \*\*kwargs\) tells neither inputs nor attributes; .* needs functools.wraps"),
        (lambda x, n_outputs: x, "Thing: n_outputs is no input of a node: make it keyword-only, behind a "),
        (lambda *node: node, "Thing: node is no input of a node"),
        (3, "Thing: the handler must be a function with a signature, not 3"),
        (dict.update, "Thing: the handler must be a function with a signature, not <method 'update'"),
    ],
)
def test_handler_that_cannot_be_bound_is_refused(function: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Registry().op("Thing")(function)


@pytest.mark.parametrize("host", ["shape", ("nothing",)])
def test_host_must_name_inputs(host: Any) -> None:
    with pytest.raises(TypeError, match="must be a tuple of names among the handler's inputs"):
        Registry().op("Reshape", host=host)(lambda x, shape: x)


def test_fold_true_is_the_handler_itself() -> None:
    registry = Registry()
    registry.op("A", fold=True)(lambda x: x)
    registry.op("B", fold=np.negative)(lambda x: x)
    registry.op("C")(lambda x: x)
    a, b, c = registry.handlers()
    assert a.fold is a.function
    assert b.fold is np.negative
    assert c.fold is None


def test_random_operators_are_not_pure_unless_told_otherwise() -> None:
    registry = Registry()
    registry.op("RandomNormalLike")(lambda x: x)
    registry.op("Relu")(lambda x: x)
    registry.op("Noise", domain="my", pure=False)(lambda x: x)
    assert {handler.name: handler.pure for handler in registry.handlers()} == {
        "RandomNormalLike": False,
        "Relu": True,
        "Noise": False,
    }


def test_handlers_and_host_steps_are_listed_in_order() -> None:
    registry = Registry()
    registry.op("NonZero", host_step=True)(lambda x: x)
    registry.op("Abs", since=13)(lambda x: x)
    registry.op("Abs", since=6)(lambda x: x)
    registry.op("Abs", domain="my")(lambda x: x)
    assert [(h.domain, h.name, h.since) for h in registry.handlers()] == [
        ("", "Abs", 6),
        ("", "Abs", 13),
        ("", "NonZero", 1),
        ("my", "Abs", 1),
    ]
    assert [handler.name for handler in registry.host_steps()] == ["NonZero"]


def test_builtin_handlers_load_once_and_know_their_dtypes() -> None:
    REGISTRY.load()
    REGISTRY.load()
    handlers = list(REGISTRY.handlers())
    assert {"Add", "Conv", "Reshape", "MatMul", "Softmax"} <= {handler.name for handler in handlers}
    known = ANY | {"string"} | set(BY_NAME)
    for handler in handlers:
        rows = handler.dtypes.values() if not isinstance(handler.dtypes, frozenset) else [handler.dtypes]
        assert all(names <= known for names in rows), str(handler)


def test_users_duplicate_of_a_builtin_is_refused_whoever_comes_first() -> None:
    code = "import ort_ep\nort_ep.op('Relu', since=6)(lambda x: x)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "already registered by ort_ep.ops" in done.stderr
