"""The plugin library's entrance into Python: `attach` hands it the functions that choose devices and make providers."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ort_ep.provider import Provider

APPLE, NVIDIA = 0x106B, 0x10DE  # PCI vendors whose GPUs MLX has a back end for
ORT_FAIL = 1
_LIBRARIES = Path(__file__).resolve().parent / "lib"


class PluginError(RuntimeError):
    """An error worded for the user; the plugin library passes its text on as it is."""

    ort_status_code = ORT_FAIL


@dataclass(frozen=True)
class Hooks:
    """What the plugin library calls, always with the GIL held."""

    version: str
    select_devices: Callable[[list[dict[str, Any]]], list[tuple[int, dict[str, str], dict[str, str]]]]
    create_ep: Callable[[dict[str, str], int], LiveProvider]


library_path: str | None = None  # of the plugin library that attached last; a copy may have been registered


def attach(path: str) -> Hooks:
    """Called at every registration with the plugin library's own path; raises where the EP could not work."""
    global library_path
    try:
        # Here and not above: importing the runtime is what fails where libmlxc or MLX is missing, and says so in words.
        from mlxc_py._sys import load
        from mlxc_py._version import __version__

        load.library()
        _check_sources(Path(path))
        import ort_ep.provider  # noqa: F401  a broken installation shows now, not at the first session
    except RuntimeError as error:
        raise PluginError(str(error)) from error
    library_path = path
    return Hooks(__version__, select_devices, create_ep)


def _check_sources(library: Path) -> None:
    """Refuse a library in a source tree that was built from other sources than the tree holds now."""
    from mlxc_py._sys.stamp import source_hash

    stamp, sources = library.with_suffix(".json"), library.parents[2] / "native" / "plugin"
    if library.parent != _LIBRARIES or not (stamp.is_file() and sources.is_dir()):
        return
    if json.loads(stamp.read_text(encoding="utf-8")).get("source_hash") != source_hash(sources):
        raise PluginError(f"{library} was built from other sources than {sources} holds: run native/build.py")


# ---------------------------------------------------------------- devices
def back_end() -> str:
    """What MLX computes on by default: "metal", "cuda" or "cpu"."""
    from mlxc_py import device as mlx_device

    if not mlx_device.is_available(mlx_device.gpu):
        return "cpu"
    return "metal" if sys.platform == "darwin" else "cuda"


def select_devices(devices: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, str], dict[str, str]]]:
    """The hardware devices to offer the EP on, as (position in `devices`, metadata, default options).

    The GPU where MLX has one, else the CPU: offering it on the CPU beside a GPU would win every selection policy.
    """
    from mlxc_py._sys import load

    library = load.library()
    metadata = {
        "mlx_version": library.mlx_version,
        "mlx_c_generation": library.generation,
        "mlx_back_end": back_end(),
        "libmlxc": library.path,
    }
    vendor = {"metal": APPLE, "cuda": NVIDIA}.get(metadata["mlx_back_end"])
    chosen = [i for i, d in enumerate(devices) if d["type"] == "gpu" and d["vendor_id"] == vendor]
    if not chosen:  # also where a container hides the GPU from ONNX Runtime: the metadata tell what is used
        chosen = [i for i, d in enumerate(devices) if d["type"] == "cpu"]
    return [(i, metadata, {}) for i in chosen[:1]]


# ---------------------------------------------------------------- providers and the sessions they serve
class LiveProvider:
    """A session's provider from its creation until ONNX Runtime lets go of it; what the plugin library holds."""

    __slots__ = ("__weakref__", "compile", "get_capability", "provider", "session", "session_ready")

    def __init__(self, provider: Provider, session: weakref.ref[Any] | None) -> None:
        self.provider = provider
        self.session = session
        self.get_capability = provider.get_capability
        self.compile = provider.compile
        self.session_ready = provider.session_ready
        _live[id(self)] = self

    def close(self) -> None:
        """The session is gone."""
        _live.pop(id(self), None)
        self.provider.close()

    def describe(self) -> str:
        """The model of the session this provider serves, for messages."""
        session = self.session() if self.session is not None else None
        path = getattr(session, "_model_path", None)
        return str(path) if path else "a model loaded from memory"


_live: dict[int, LiveProvider] = {}
# A report outlives its provider: after a fallback ONNX Runtime has replaced the session's insides, reasons included.
_reports: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def live_providers() -> list[LiveProvider]:
    """Providers whose sessions exist."""
    return list(_live.values())


def report_of(session: Any) -> Any:
    """The claim report of a session's latest provider; None for a session that has none of ours."""
    return _reports.get(session)


def create_ep(options: dict[str, str], logger: int) -> LiveProvider:
    """The provider of the session under construction on this thread."""
    from ort_ep.provider import Provider

    session = _session_under_construction()
    provider = Provider(options, logger)
    if session is not None:
        _reports[session] = provider.report
    return LiveProvider(provider, None if session is None else weakref.ref(session))


def _session_under_construction() -> Any:
    """The onnxruntime.InferenceSession whose creation called us; None where another host's does.

    ORT tells a plugin nothing of the session it works for. Its Python object is the `self` of a frame below this one.
    """
    onnxruntime = sys.modules.get("onnxruntime")
    wanted = getattr(onnxruntime, "InferenceSession", None)
    if wanted is None:
        return None
    return next((me for me in _callers() if isinstance(me, wanted)), None)


def _callers() -> Iterator[Any]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back  # type: ignore[assignment]
