"""Registering the plugin with ONNX Runtime, and sessions that use it."""

from __future__ import annotations

import os
import re
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ort_ep import EP_NAME, get_library_path
from ort_ep.options import BY_NAME as OPTIONS
from ort_ep.options import parse

LOWEST = (1, 24)
BY_NAME = (1, 25)  # providers=[name] knows plugin EPs from here on
SHOWN = 20  # nodes that an error lists
FOLDED_HERE = "ConvBNFusion"  # an optimizer of ORT that has all weights in memory twice: see ort_ep/folding.py
_DISABLED = "optimization.disable_specified_optimizers"

if TYPE_CHECKING:
    import onnxruntime

    from ort_ep.report import ClaimReport
else:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ImportError(
            "ort_ep needs onnxruntime >= 1.24, which is not installed: pip install onnxruntime"
        ) from error


def _version() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", onnxruntime.__version__)
    return (int(match[1]), int(match[2])) if match else (0, 0)


if _version() < LOWEST:
    raise ImportError(
        f"ort_ep needs onnxruntime >= {LOWEST[0]}.{LOWEST[1]}, this is {onnxruntime.__version__}: "
        "pip install -U onnxruntime"
    )


# ---------------------------------------------------------------- registration
_lock = threading.RLock()


def devices() -> list[onnxruntime.OrtEpDevice]:
    """The devices ONNX Runtime offers the execution provider on; empty before registration."""
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == EP_NAME]


def register() -> str:
    """Register the plugin library under the EP's name, which is returned; does nothing where it is registered."""
    with _lock:
        if not devices():
            onnxruntime.register_execution_provider_library(EP_NAME, get_library_path())
            if not devices():
                raise RuntimeError(
                    f"ONNX Runtime registered {EP_NAME} but lists no device for it: this build of onnxruntime "
                    f"({onnxruntime.__version__}) reports no CPU device to plugin execution providers"
                )
    return EP_NAME


def unregister() -> None:
    """Take the plugin library out of ONNX Runtime again; RuntimeError while sessions use it, naming them."""
    with _lock:
        if not devices():
            raise RuntimeError(f"{EP_NAME} is not registered, so there is nothing to unregister")
        from ort_ep.factory import live_providers

        models = sorted(provider.describe() for provider in live_providers())
        if models:
            raise RuntimeError(
                f"{EP_NAME} is in use by {len(models)} session{'s' if len(models) > 1 else ''} "
                f"({', '.join(models)}): delete {'them' if len(models) > 1 else 'it'} before unregistering"
            )
        try:
            onnxruntime.unregister_execution_provider_library(EP_NAME)
        except Exception as error:
            raise RuntimeError(
                f"{EP_NAME} was registered under a name of your own: give that name to "
                "onnxruntime.unregister_execution_provider_library"
            ) from error


# ---------------------------------------------------------------- sessions
def session_options(*, strict: bool = False, **options: object) -> onnxruntime.SessionOptions:
    """SessionOptions with the EP added, for `onnxruntime.InferenceSession(model, sess_options)`; registers the EP too.

    `options` are provider options, checked here. With strict=True ONNX Runtime's Fail refuses a model of which a node
    would stay on the CPU.
    """
    texts = _checked(options | {"strict": True} if _is_strict(strict) else options)
    settings = onnxruntime.SessionOptions()
    register()
    settings.add_provider_for_devices(devices()[:1], texts)
    settings.add_session_config_entry(_DISABLED, FOLDED_HERE)
    _made.add(settings)
    return settings


_made: weakref.WeakSet[onnxruntime.SessionOptions] = weakref.WeakSet()  # by session_options: the EP is in them already


class InferenceSession(onnxruntime.InferenceSession):
    """An onnxruntime.InferenceSession on MLX, with what MLX declines on the CPU; registers the EP if need be.

    `model` is a path or bytes; `options` are provider options, checked before ONNX Runtime sees them. With strict=True
    a model of which any node stays on the CPU is refused with StrictError, which names the nodes and the reasons.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        sess_options: onnxruntime.SessionOptions | None = None,
        *,
        strict: bool = False,
        **options: object,
    ) -> None:
        if {"providers", "provider_options"} & options.keys():
            raise TypeError(
                f"ort_ep.InferenceSession sets the providers itself, {EP_NAME} and then CPUExecutionProvider: give the "
                "options of the former as keywords, or use onnxruntime.InferenceSession for a list of your own"
            )
        texts, strict = _checked(options), _is_strict(strict)
        register()
        disabled = _disabled_optimizers(sess_options)
        if sess_options in _made and not texts:  # named again, ORT would warn that it has its providers
            super().__init__(model, sess_options, disabled_optimizers=disabled)
        elif _version() >= BY_NAME:
            providers = [(EP_NAME, texts), "CPUExecutionProvider"]
            super().__init__(model, sess_options, providers=providers, disabled_optimizers=disabled)
        else:
            settings = sess_options or onnxruntime.SessionOptions()
            if not settings.has_providers():
                settings.add_provider_for_devices(devices()[:1], texts)
            elif texts:
                raise ValueError(
                    "these SessionOptions have been used, and onnxruntime 1.24 keeps the first session's provider "
                    "options in them: pass new SessionOptions"
                )
            super().__init__(model, settings, disabled_optimizers=disabled)
        if strict:
            _refuse_cpu_nodes(self)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: dict[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """As in onnxruntime.InferenceSession; a Ctrl-C that ended the run is KeyboardInterrupt, not ORT's Fail."""
        try:
            outputs: list[Any] = super().run(output_names, input_feed, run_options)
        except Exception:
            _hear_interrupt()
            raise
        return outputs


def _disabled_optimizers(sess_options: onnxruntime.SessionOptions | None) -> set[str]:
    """What the options disable, and what `ort_ep.folding` does: ORT takes the names from one place only."""
    try:
        named = sess_options.get_session_config_entry(_DISABLED) if sess_options is not None else ""
    except RuntimeError:  # it has no such entry
        named = ""
    return {FOLDED_HERE, *filter(None, named.split(";"))}


def _hear_interrupt() -> None:
    """Python raises a pending KeyboardInterrupt where a function begins, so here."""


def claim_report(session: onnxruntime.InferenceSession) -> ClaimReport:
    """Which nodes of the session MLX runs, and why it declined the others; ValueError for a session without the EP."""
    if not isinstance(session, onnxruntime.InferenceSession):
        raise TypeError(f"claim_report takes an onnxruntime.InferenceSession, not {type(session).__name__}")
    factory = sys.modules.get("ort_ep.factory")  # not imported: then nothing was registered either
    report: ClaimReport | None = factory.report_of(session) if factory is not None else None
    if report is None:
        raise ValueError(
            f"this session has no {EP_NAME}: make it with ort_ep.InferenceSession, or name the provider in providers="
        )
    return report


def _refuse_cpu_nodes(session: onnxruntime.InferenceSession) -> None:
    from ort_ep.provider import StrictError

    report = claim_report(session)
    declined = [node for node in report.nodes if not node.on_mlx]
    if report.failures:
        raise StrictError(f"strict=True, but {report.failures[-1]}")
    if declined:
        shown = "; ".join(f"{node.op_type} {node.name!r}: {node.reason}" for node in declined[:SHOWN])
        more = f"; and {len(declined) - SHOWN} more" if len(declined) > SHOWN else ""
        count = "1 node stays" if len(declined) == 1 else f"{len(declined)} nodes stay"
        raise StrictError(f"strict=True, but {count} on the CPU: {shown}{more}")


def _is_strict(value: object) -> bool:
    return bool(OPTIONS["strict"].parse(value, "provider option strict"))


def _checked(options: dict[str, object]) -> dict[str, str]:
    """The options as ONNX Runtime carries them; what is wrong with one is told here, not by a silent CPU session."""
    texts = {key: str(int(value)) if isinstance(value, bool) else str(value) for key, value in options.items()}
    parse(texts)
    return texts
