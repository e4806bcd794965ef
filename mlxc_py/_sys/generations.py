"""Which mlx-c a library is, told by its exported names: mlx-c has no version function and keeps its names when
signatures change."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

# Signatures that changed in one upstream commit; a library with only some of its names is no upstream build.
_COMMIT_07 = (
    "mlx_compile_cache_new",
    "mlx_cumsum_axis",
    "mlx_logcumsumexp_axis",
    "mlx_median_axes",
    "mlx_trace_axes",
)
_CHANGED_07 = (
    "mlx_cummax",
    "mlx_cummin",
    "mlx_cumprod",
    "mlx_cumsum",
    "mlx_detail_compile_clear_cache",
    "mlx_detail_compile_erase",
    "mlx_fast_scaled_dot_product_attention",
    "mlx_logcumsumexp",
    "mlx_median",
    "mlx_trace",
)
# Names that appear with, or after, gather_qmm's extra parameter.
_AFTER_07 = ("mlx_fast_gated_delta_update", "mlx_unique", "mlx_minmax", "mlx_fft_stft")
# A fork that gave these other parameters; the first name is its mark.
_FORK_MARK = "mlx_stream_new_thread_unsafe_device"
_FORK_CHANGED = (
    "mlx_fast_metal_kernel_new",
    "mlx_metal_get_metallib_path",
    "mlx_stream_from_thread_local",
    "mlx_synchronize_thread_local",
)


class Generation(NamedTuple):
    """A generation's name, and the functions whose signature in this library is unknown: name -> why."""

    name: str
    refused: dict[str, str]


class UnknownLibrary(Exception):
    """The library is not an mlx-c that this project knows."""


def classify(has: Callable[[str], bool], mlx_version: str, path: str) -> Generation:
    """Name the generation of a library from its exports, MLX's version text, and where it lies."""
    if not has("mlx_array_new"):
        raise UnknownLibrary("it exports no mlx_array_new, so it is not an mlx-c library")
    if not has("mlx_hanning"):
        raise UnknownLibrary("it is an mlx-c older than 0.6.0; 0.6.0 or newer is needed")
    return Generation(_name(has), _refused(has, mlx_version, path))


def _name(has: Callable[[str], bool]) -> str:
    if not has("mlx_fft_fftfreq"):
        return "0.6.0"
    if not has("mlx_compile_cache_new"):
        return "0.6"
    if not has("mlx_stream_thread_local_new"):
        return "0.7-pre"
    return "newer" if any(map(has, _AFTER_07)) else "0.7.0"


def _refused(has: Callable[[str], bool], mlx_version: str, path: str) -> dict[str, str]:
    refused = {}
    unreleased = is_unreleased(mlx_version)
    ollama = any("ollama" in part.lower() for part in re.split(r"[/\\]", path))
    present = [n for n in _COMMIT_07 if has(n)]
    if present and len(present) < len(_COMMIT_07):
        why = f"the library has {', '.join(present)} but not all that came with it, so its signature is unknown"
        refused.update(dict.fromkeys(_CHANGED_07, why))
    if not present and (ollama or unreleased or _release(mlx_version) > (0, 32, 1)):
        refused["mlx_fast_scaled_dot_product_attention"] = (
            f"an mlx-c 0.6 on MLX {mlx_version} may or may not take force_fused, and nothing in it tells"
        )
    if any(map(has, _AFTER_07)) or (present and (ollama or unreleased)):
        refused["mlx_gather_qmm"] = "the library is newer than mlx-c 0.7.0 or patched, and may take global_scale"
    if has(_FORK_MARK):
        refused.update(dict.fromkeys(_FORK_CHANGED, f"{_FORK_MARK} marks a fork with other parameters here"))
    return refused


def is_unreleased(mlx_version: str) -> bool:
    """Whether MLX's version text is that of a build between releases (`0.32.2-65-g59d600b`, `.dev...`, unreadable)."""
    return re.fullmatch(r"\d+\.\d+\.\d+", mlx_version) is None


def _release(mlx_version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", mlx_version)[:3])
