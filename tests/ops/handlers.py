"""Calling handlers one by one, outside a plan; for programs that tests start."""

from __future__ import annotations

from typing import Any

import numpy as np

import mlxc_py as mx
from ort_ep.registry import REGISTRY

REGISTRY.load()


def call(domain: str, name: str, *inputs: Any, **attributes: Any) -> None:
    """Evaluate what a handler makes of its inputs: numpy arrays become Arrays but where it takes them as they are."""
    handler = REGISTRY.lookup(domain, name, 26)
    assert handler is not None
    given = [
        mx.array(value) if isinstance(value, np.ndarray) and not handler.wants_host(index) else value
        for index, value in enumerate(inputs)
    ]
    places = {parameter: index for index, parameter in enumerate(handler.parameters) if index < len(given)}
    prepared = {}
    for parameter, recipe in handler.prepare.items():
        if parameter == recipe.inputs[0] and parameter in places and given[places[parameter]] is not None:
            sources = [given[places[source]] if source in places else None for source in recipe.inputs]
            known = {key: attributes[key] for key in recipe.attributes & attributes.keys()}
            prepared[places[parameter]] = recipe.function(*sources, **known)
    result = handler.function(*(prepared.get(index, value) for index, value in enumerate(given)), **attributes)
    results = result if isinstance(result, tuple) else (result,)
    mx.eval(*(value for value in results if isinstance(value, mx.Array)))
