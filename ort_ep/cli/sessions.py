"""One model on two providers: MLX and ONNX Runtime's own CPU provider."""

from __future__ import annotations

import ctypes
import math
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx

from ort_ep.cli.console import CommandError, one_line, progress
from ort_ep.options import parse

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

T = TypeVar("T")
CPU = "CPUExecutionProvider"
# ONNX Runtime's severities: its errors also arrive as exceptions, so its log can keep to fatal ones
QUIET, CHATTY = 4, 0


@dataclass
class Timed:
    """A run's outputs by name, with the first call's time and the median of the later ones, in ms."""

    outputs: dict[str, Any]
    first_ms: float
    median_ms: float


def import_onnxruntime() -> Any:
    """The onnxruntime module; CommandError where it is missing or too old."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise CommandError(
            "onnxruntime is not installed", "Install it: pip install 'mlxc-py[ort]' (1.24 or newer)."
        ) from error
    try:
        import ort_ep.session  # noqa: F401  checks the version
    except ModuleNotFoundError:
        raise
    except ImportError as error:
        raise CommandError(str(error)) from error
    return onnxruntime


def mlx_session(path: Path, options: dict[str, str], *, strict: bool = False, debug: bool = False) -> InferenceSession:
    """A session of the model at `path` on MLXExecutionProvider, with everything it declines on CPU."""
    onnxruntime = import_onnxruntime()
    import ort_ep
    from mlxc_py._sys import load

    onnxruntime.set_default_logger_severity(CHATTY if debug else QUIET)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = CHATTY if debug else QUIET
    with progress("Loading the model on MLX"), failing_as("MLXExecutionProvider can't load the model"):
        # registration would wrap its words
        load.library()
        # a failure shall be seen here, not be hidden by a rerun on CPU
        chosen = {"on_compute_error": "raise", **options}
        strict |= parse(options).strict
        chosen.pop("strict", None)
        return interruptible(lambda: ort_ep.InferenceSession(str(path), settings, strict=strict, **chosen))


def cpu_session(path: Path, *, debug: bool = False) -> InferenceSession:
    """The same model on ONNX Runtime's CPU provider alone."""
    onnxruntime = import_onnxruntime()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = CHATTY if debug else QUIET
    with progress("Loading the model on CPU"), failing_as("ONNX Runtime can't load the model"):
        return interruptible(lambda: onnxruntime.InferenceSession(str(path), settings, providers=[CPU]))


def interruptible(work: Callable[[], T]) -> T:
    """The result of `work`, done on another thread: Ctrl-C is not heard by a thread that is inside native code."""
    outcome: Future[T] = Future()

    def run_it() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run_it, daemon=True).start()
    return outcome.result()


@contextmanager
def failing_as(what: str, advice: str = "") -> Iterator[None]:
    """Give an exception of the body that isn't worded for users a beginning that says what failed."""
    try:
        yield
    except CommandError:
        raise
    except Exception as error:
        raise CommandError(sentence(error) if _is_ours(error) else f"{what}: {sentence(error)}", advice) from error


def _is_ours(error: BaseException) -> bool:
    """Our own exceptions already say what was wrong and what to do."""
    return type(error).__module__.partition(".")[0] in ("ort_ep", "mlxc_py")


_ORT_WRAPPING = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : "
    r"|Non-zero status code returned while running .*? Status Message: "
    r"|MLXExecutionProvider: "
)


def sentence(error: BaseException) -> str:
    """The error's text; on one line and without what ONNX Runtime wraps around it, where it is not ours."""
    if _is_ours(error):
        return str(error)
    text = _ORT_WRAPPING.sub("", one_line(str(error)))
    return text or type(error).__name__


def run(session: InferenceSession, feeds: dict[str, np.ndarray]) -> dict[str, Any]:
    """One run's outputs by name; bfloat16 and the small types of ml_dtypes pass through OrtValues."""
    names = [output.name for output in session.get_outputs()]
    exotic = {o.name for o in session.get_outputs() if _exotic(o.type)}
    if not exotic and all(array.dtype.isbuiltin == 1 for array in feeds.values()):
        return dict(zip(names, session.run(None, feeds), strict=True))
    from onnxruntime import OrtValue

    values = {
        name: OrtValue.ortvalue_from_numpy_with_onnx_type(array, onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
        if array.dtype.isbuiltin != 1
        else OrtValue.ortvalue_from_numpy(array)
        for name, array in feeds.items()
    }
    results = session.run_with_ort_values(names, values)
    return {
        name: _copy_out(value) if name in exotic else value.numpy() for name, value in zip(names, results, strict=True)
    }


def _exotic(ort_type: str) -> bool:
    return any(word in ort_type for word in ("bfloat16", "float8", "float4", "int4", "int2"))


def _copy_out(value: Any) -> np.ndarray:
    """numpy() refuses these dtypes, so copy the bytes."""
    elem_type = value.element_type()
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    raw = ctypes.string_at(value.data_ptr(), math.prod(value.shape()) * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(value.shape())


def time_runs(session: InferenceSession, feeds: dict[str, np.ndarray], runs: int, label: str) -> Timed:
    """A first run (it allocates and traces), then the median of `runs` more."""

    def timed() -> Timed:
        laps = []
        outputs: dict[str, Any] = {}
        for number in range(1 + runs):
            started = time.perf_counter()
            results = run(session, feeds)
            laps.append(1e3 * (time.perf_counter() - started))
            if number == 0:
                outputs = results
        return Timed(outputs, laps[0], statistics.median(laps[1:]))

    with progress(f"Running on {label}"):
        return interruptible(timed)
