"""Calls of the C API from Python values, checked against its signatures; records which functions were called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from mlxc_py._sys import abi, load, mlx

DTYPES = [
    np.dtype(t)
    for t in (
        np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16,
        np.int32, np.int64, np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.complex64,
    )
]  # fmt: skip
CODES = {t: i for i, t in enumerate(DTYPES)}


class Failed(Exception):
    """A call returned an error; the text is the message that the error handler got."""


class Recorder:
    """`mlxc_py._sys.mlx`, remembering every function that was called through it."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        function = getattr(mlx, name)
        if name not in mlx.FUNCTIONS:
            return function

        def call(*args: Any) -> Any:
            self.called.add(name)
            return function(*args)

        return call


class Slot:
    """Room for one result: a handle, or a C value of `kind`."""

    def __init__(self, kind: Any = ctypes.c_size_t) -> None:
        self.cell = kind()
        self.address = ctypes.addressof(self.cell)

    @property
    def value(self) -> Any:
        return self.cell.value


_RESULT_KINDS = {"size_t*": ctypes.c_size_t, "bool*": ctypes.c_bool, "int*": ctypes.c_int}


class CApi:
    """Handles are ints here and most are never freed: these tests check results, not lifetimes."""

    def __init__(self) -> None:
        self.c = Recorder()
        load.library()
        self.stream: int = self.c.mlx_default_cpu_stream_new()
        self._alive: list[Any] = []

    # ---- calls
    def check(self, rc: int) -> None:
        """Raise Failed for a return code other than 0."""
        if rc:
            raise Failed(load.take_error() or f"return code {rc} without a message")

    def need(self, handle: int) -> int:
        """The handle, or Failed where it is NULL."""
        if not handle:
            raise Failed(load.take_error() or "NULL without a message")
        return handle

    def op(self, name: str, *values: Any) -> Any:
        """Call `mlx_<name>`: results come first and are returned, the stream is appended, the rest is converted.

        An ndarray becomes an array, a list of them a vector, a tuple of ints a pointer and a size, a dtype its code.
        """
        name = f"mlx_{name}"
        params = list(mlx.FUNCTIONS[name].params)
        n = self._count_results(params)
        slots = [Slot(_RESULT_KINDS.get(t, ctypes.c_size_t)) for t, _ in params[:n]]
        args: list[Any] = [s.address for s in slots] + self._arguments(params[n:], list(values), name)
        self.check(getattr(self.c, name)(*args))
        results = [self._read(t, s) for (t, _), s in zip(params[:n], slots, strict=False)]
        return results[0] if n == 1 else tuple(results) or None

    def _count_results(self, params: Sequence[tuple[str, str]]) -> int:
        n = 0
        for kind, _ in params:
            if kind in _RESULT_KINDS or (kind.startswith("mlx_") and kind.endswith("*")):
                n += 1
            else:
                break
        return n

    def _arguments(self, params: list[tuple[str, str]], values: list[Any], name: str) -> list[Any]:
        args: list[Any] = []
        kinds = iter(params)
        for kind, _ in kinds:
            if kind == "mlx_stream" and not values:
                args.append(self.stream)
                continue
            assert values, f"{name}: too few values"
            value = values.pop(0)
            if kind in ("const int*", "const int64_t*", "const uint64_t*"):
                next(kinds)  # the size
                args += self.pointer(value, kind)
            else:
                args.append(self._argument(kind, value))
        assert not values, f"{name}: too many values"
        return args

    def _argument(self, kind: str, value: Any) -> Any:
        if kind == "mlx_array":
            return self.array(value) if isinstance(value, np.ndarray) else (value or 0)
        if kind == "mlx_vector_array" and isinstance(value, list):
            return self.vector(value)
        if kind == "mlx_optional_float":
            return abi.optional_float(value)
        if kind == "mlx_optional_dtype":
            return abi.optional_dtype(None if value is None else CODES[np.dtype(value)])
        if kind == "mlx_optional_int":
            return abi.optional_int(value)
        if kind == "mlx_dtype":
            return CODES[np.dtype(value)]
        if kind == "const char*":
            return value.encode() if isinstance(value, str) else value
        return value

    def pointer(self, values: Iterable[int] | None, kind: str = "const int*") -> list[Any]:
        """[pointer, size] of a C array of integers; [NULL, 0] for None."""
        if values is None:
            return [None, 0]
        element = {"const int*": ctypes.c_int, "const int64_t*": ctypes.c_int64, "const uint64_t*": ctypes.c_uint64}
        items = tuple(values)
        buffer = (element[kind] * max(len(items), 1))(*items)
        self._alive.append(buffer)
        return [ctypes.addressof(buffer), len(items)]

    # ---- values
    def array(self, value: np.ndarray) -> int:
        """A new mlx_array with the ndarray's shape, dtype and data."""
        value = np.asarray(value, order="C")
        shape, ndim = self.pointer(value.shape)
        return self.need(self.c.mlx_array_new_data(value.ctypes.data, shape, ndim, CODES[value.dtype]))

    def vector(self, values: Sequence[Any]) -> int:
        """A new mlx_vector_array of ndarrays or handles."""
        handles = [self.array(v) if isinstance(v, np.ndarray) else v for v in values]
        data = (ctypes.c_size_t * max(len(handles), 1))(*handles)
        return self.need(self.c.mlx_vector_array_new_data(data, len(handles)))

    def numpy(self, handle: int) -> np.ndarray:
        """An array's value, evaluated."""
        row_major = Slot()
        self.check(self.c.mlx_contiguous(row_major.address, handle, False, self.stream))
        a = row_major.value
        self.check(self.c.mlx_array_eval(a))
        out = np.empty(self.shape(a), DTYPES[self.c.mlx_array_dtype(a)])
        if out.nbytes:
            ctypes.memmove(out.ctypes.data, self.need(self.c.mlx_array_data_uint8(a)), out.nbytes)
        self.check(self.c.mlx_array_free(a))
        return out

    def shape(self, handle: int) -> tuple[int, ...]:
        """An array's shape."""
        n = self.c.mlx_array_ndim(handle)
        return tuple((ctypes.c_int * n).from_address(self.c.mlx_array_shape(handle))) if n else ()

    def arrays(self, vector: int) -> list[np.ndarray]:
        """The values in an mlx_vector_array."""
        return [self.numpy(h) for h in self.handles(vector)]

    def handles(self, vector: int) -> list[int]:
        """New handles of the arrays in an mlx_vector_array."""
        out = []
        for i in range(self.c.mlx_vector_array_size(vector)):
            slot = Slot()
            self.check(self.c.mlx_vector_array_get(slot.address, vector, i))
            out.append(slot.value)
        return out

    def text(self, string: int) -> str:
        """The text of an mlx_string."""
        return self.c.mlx_string_data(string).decode()

    def filled(self, function: str, *args: Any, kind: Any = ctypes.c_size_t) -> Any:
        """What a function puts into its first argument."""
        slot = Slot(kind)
        self.check(getattr(self.c, function)(slot.address, *args))
        return slot.value

    def keep(self, thing: Any) -> Any:
        """Keep a callback or a buffer alive until the end."""
        self._alive.append(thing)
        return thing

    def closure(self, function: Callable[[list[int]], Sequence[int]]) -> int:
        """An mlx_closure of a Python function from input handles to new output handles."""

        def call(result: int, inputs: int) -> int:
            outputs = function(self.handles(inputs))
            data = (ctypes.c_size_t * len(outputs))(*outputs)
            return self.c.mlx_vector_array_set_data(result, data, len(outputs))

        callback = self.keep(mlx.mlx_closure_new_func_fun(call))
        return self.need(self.c.mlx_closure_new_func(ctypes.cast(callback, ctypes.c_void_p)))

    def node(self, name: str, *values: Any) -> int:
        """Like `op` for a function with one array as result, but gives the lazy handle."""
        name = f"mlx_{name}"
        params = list(mlx.FUNCTIONS[name].params)
        slot = Slot()
        self.check(getattr(self.c, name)(slot.address, *self._arguments(params[1:], list(values), name)))
        return slot.value

    def _read(self, kind: str, slot: Slot) -> Any:
        if kind == "mlx_array*":
            return self.numpy(slot.value)
        if kind == "mlx_vector_array*":
            return self.arrays(slot.value)
        if kind == "mlx_string*":
            return self.text(slot.value)
        return slot.value
