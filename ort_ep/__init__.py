"""ONNX Runtime plugin execution provider on MLX: register it, make sessions with it, ask what it claimed.

Everything but the plugin library's path and names is imported at first use, so `import ort_ep` needs neither
`onnx` nor `onnxruntime`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxc_py._version import __version__ as __version__
    from ort_ep.provider import StrictError as StrictError
    from ort_ep.registry import op as op
    from ort_ep.session import InferenceSession as InferenceSession
    from ort_ep.session import claim_report as claim_report
    from ort_ep.session import devices as devices
    from ort_ep.session import register as register
    from ort_ep.session import session_options as session_options
    from ort_ep.session import unregister as unregister

__all__ = [
    "EP_NAME",
    "InferenceSession",
    "StrictError",
    "claim_report",
    "devices",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "op",
    "register",
    "session_options",
    "unregister",
]

EP_NAME = "MLXExecutionProvider"

_LAZY = {"__version__": "mlxc_py._version", "op": "ort_ep.registry", "StrictError": "ort_ep.provider"} | dict.fromkeys(
    ["InferenceSession", "claim_report", "devices", "register", "session_options", "unregister"],
    "ort_ep.session",
)


def get_library_path() -> str:
    """The plugin library, for `onnxruntime.register_execution_provider_library`; FileNotFoundError if not built."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    path = Path(__file__).resolve().parent / "lib" / f"libort_ep_mlx.{suffix}"
    if not path.is_file():
        raise FileNotFoundError(
            f"the plugin library {path} is missing: reinstall mlxc-py with a C compiler present and without "
            "MLXC_PY_NO_NATIVE (in a clone: pip install .)"
        )
    return str(path)


def get_ep_name() -> str:
    """The execution provider's name."""
    return EP_NAME


def get_ep_names() -> list[str]:
    """The names of all execution providers in the plugin library."""
    return [EP_NAME]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'ort_ep' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
