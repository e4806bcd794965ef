"""Exceptions of the runtime: MLX's own text, the call's name, and a class where the kind is known."""

from __future__ import annotations

import re


class MLXError(RuntimeError):
    """A call into MLX failed; the text is the call's name and MLX's message."""


class MLXIndexError(MLXError, IndexError):
    """An axis or an index lies outside the array."""


class MLXValueError(MLXError, ValueError):
    """Shapes, dtypes or arguments that don't fit together."""


class MLXMemoryError(MLXError, MemoryError):
    """MLX could not allocate a buffer."""


class MLXStreamError(MLXError):
    """A stream was used on a thread that it doesn't belong to."""


class ClosedError(MLXError, ValueError):
    """An object was used after close()."""


class UnsupportedError(MLXError, NotImplementedError):
    """The loaded libmlxc, its generation or its back end lacks what was asked for."""


# mlx-c hands over only the text of a C++ exception; first match decides.
_KINDS: tuple[tuple[re.Pattern[str], type[MLXError]], ...] = (
    (re.compile(r"non-empty mlx_"), ClosedError),
    (re.compile(r"There is no Stream"), MLXStreamError),
    (
        re.compile(r"bad_alloc|((unable|attempting) to|cannot) allocate|out of memory", re.I),
        MLXMemoryError,
    ),
    (re.compile(r"[Ii]nvalid axis|out[- ]of[- ](bounds|range)|axis .* is out"), MLXIndexError),
    (
        re.compile(r"no CPU implementation|not supported on|not (yet )?implemented|No (Metal|CUDA) back-?end", re.I),
        UnsupportedError,
    ),
    (re.compile(r"^\[[\w.:]+\] "), MLXValueError),
)


def error(call: str, message: str | None) -> MLXError:
    """The exception for MLX's message, with the name of the call in front."""
    text = message or "MLX reported a failure without a message"
    if 'cannot open source file "crt/' in text:
        text += "\nMLX compiles this kernel at run time and CUDA's crt headers are missing: pip install nvidia-cuda-crt"
    kind = next((kind for pattern, kind in _KINDS if pattern.search(text)), MLXError)
    return kind(f"{call}: {text}")
