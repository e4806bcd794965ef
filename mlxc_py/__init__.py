"""MLX through mlx-c: `import mlxc_py as mx` has mlx.core's names.

Names load their module, and with it libmlxc, when first used: `mlxc_py._sys` alone works without a library.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import TYPE_CHECKING, Any

from mlxc_py._version import __version__

if TYPE_CHECKING:  # what type checkers see of the names below; everything else of `ops` is there too
    from mlxc_py.arrays import Array, ArrayLike, array, as_array
    from mlxc_py.ops import *  # noqa: F403

pi = math.pi
e = math.e
inf = math.inf
nan = math.nan
euler_gamma = 0.5772156649015329
newaxis = None

SUBMODULES = ("cuda", "distributed", "fast", "fft", "linalg", "metal", "random")
_NAMES: dict[str, str] = {
    "allocation": "uninitialized",
    "arrays": "Array ArrayLike array as_array",
    "closure": "Closure",
    "compilation": "CompileMode clear_compile_cache compile disable_compile enable_compile set_compile_mode",
    "composed": "addmm arange asarray atleast_1d atleast_2d atleast_3d convolve depends full full_like linspace"
    " matrix_transpose minmax pad",
    "device": "Device DeviceType cpu default_device device_count device_info gpu is_available set_default_device",
    "dlpack": "from_dlpack",
    "dtype": "DTYPES Dtype DtypeCategory bfloat16 bool_ complex64 complexfloating dtype_of finfo float16 float32"
    " float64 floating generic iinfo inexact int16 int32 int64 int8 integer isdtype issubdtype number signedinteger"
    " uint16 uint32 uint64 uint8 unsignedinteger",
    "errors": "ClosedError MLXError MLXIndexError MLXMemoryError MLXStreamError MLXValueError UnsupportedError",
    "evaluate": "async_eval eval library_path",
    "export": "FunctionExporter ImportedFunction export_function export_to_dot exporter import_function print_graph",
    "indexing": "At",
    "io": "load save save_gguf save_safetensors savez savez_compressed",
    "memory": "clear_cache get_active_memory get_cache_memory get_memory_limit get_peak_memory reset_peak_memory"
    " set_cache_limit set_memory_limit set_wired_limit",
    "printing": "PrintOptions get_printoptions printoptions set_printoptions",
    "shapes": "broadcast_shapes can_cast result_type",
    "streams": "Stream StreamContext ThreadLocalStream clear_streams current_stream default_stream new_stream"
    " new_thread_local_stream new_thread_unsafe_stream set_default_stream stream synchronize",
    "transforms": "checkpoint custom_function grad jvp value_and_grad vjp vmap",
    "vector": "ArrayMap IntVector StringMap StringVector VectorArray VectorVectorArray",
}
_ALIASES = {
    "ArrayAt": "At",
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "concat": "concatenate",
    "conj": "conjugate",
    "cumulative_prod": "cumprod",
    "cumulative_sum": "cumsum",
    "empty": "zeros",
    "empty_like": "zeros_like",
    "matrix_norm": "linalg.norm",
    "permute_dims": "transpose",
    "pow": "power",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES and importlib.util.find_spec(f"mlxc_py.{name}"):
        return importlib.import_module(f"mlxc_py.{name}")
    if name in _ALIASES:
        found: Any = importlib.import_module(__name__)
        for part in _ALIASES[name].split("."):
            found = getattr(found, part)
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        # Everything that no table lists is a function of the generated `ops`.
        module = importlib.import_module(f"mlxc_py.{_HOMES.get(name, 'ops')}")
        if name not in _HOMES and getattr(getattr(module, name, None), "__module__", "") != "mlxc_py.ops":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    ops = importlib.import_module("mlxc_py.ops")
    functions = [n for n, f in vars(ops).items() if getattr(f, "__module__", "") == "mlxc_py.ops"]
    return sorted({*globals(), *_HOMES, *_ALIASES, *SUBMODULES, *functions})


__all__ = ["Array", "ArrayLike", "__version__", "array", "as_array"]
