"""Array: one mlx_array handle, with mlx.core's methods."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ctypes import addressof, c_bool
from typing import TYPE_CHECKING, Any

import numpy as np

import mlxc_py as mx
from mlxc_py._sys import fastcall
from mlxc_py._sys import mlx as c
from mlxc_py.dtype import DTYPES, Dtype, bool_
from mlxc_py.errors import ClosedError, MLXError
from mlxc_py.guards import check_fork
from mlxc_py.methods import Methods
from mlxc_py.state import Here, local

if TYPE_CHECKING:
    from mlxc_py.indexing import At

_new = fastcall.Handle.__new__


class Array(fastcall.Handle, Methods):
    """An n-dimensional array of MLX, lazy until evaluated. Made from numbers, sequences, numpy, buffers, DLPack.

    `handle` is its mlx_array, 0 once closed; it is freed once, by close() or when collected, on any thread.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, val: Any, dtype: Dtype | None = None) -> None:
        if isinstance(val, Array):
            made = _copied(val, dtype)
        elif isinstance(val, list | tuple) and _holds_arrays(val):
            made = mx.stack([Array(v, dtype) for v in val])
        else:
            made = mx.convert.made_of(val, dtype)
        self.handle, made.handle = made.handle, self.handle

    def close(self) -> None:
        """Release the handle now; a second time does nothing. Any use afterwards raises."""
        handle, self.handle = self.handle, 0
        if handle:
            c.mlx_array_free(handle)

    @staticmethod
    def from_address(address: int, shape: tuple[int, ...], dtype: Dtype, owner: object | None = None) -> Array:
        """An array of the bytes at a host address: in place where the back end can (`owner` is kept), else a copy."""
        return mx.interop.from_address(address, shape, dtype, owner)

    # ---- what it is
    @property
    def live(self) -> int:
        """The handle, or ClosedError."""
        if not self.handle:
            raise ClosedError("this array is closed")
        return self.handle

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return _shape(self)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return _ndim(self)

    @property
    def size(self) -> int:
        """Number of elements."""
        return _size(self)

    @property
    def dtype(self) -> Dtype:
        """Element type."""
        return DTYPES[_dtype_code(self)]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return _nbytes(self)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension; evaluates the array first."""
        return mx.interop.strides(self)

    @property
    def address(self) -> int:
        """Address of the first element; MLXError unless the array is evaluated and row-contiguous."""
        return mx.interop.address(self)

    @property
    def evaluated(self) -> bool:
        """Whether the data is there, so that reading it does not wait."""
        flag = c_bool()
        if c._mlx_array_is_available(addressof(flag), self.live):
            raise local.here.failure("evaluated")
        return flag.value

    def eval(self) -> None:
        """Compute the array now and wait for it."""
        check_fork()
        if c.mlx_array_eval(self.live):
            raise local.here.failure("eval")

    # ---- to Python
    def item(self) -> Any:
        """The only element as a Python number."""
        return self._host_scalar().item()

    def _host_scalar(self) -> np.ndarray:
        if self.size != 1:
            raise ValueError(f"only an array of one element is a Python scalar, this one has shape {self.shape}")
        host = mx.interop.host_view(self).reshape(())
        return host.astype(np.float32) if host.dtype.name == "bfloat16" else host

    def tolist(self) -> Any:
        """Nested lists of Python numbers; a number for rank 0."""
        host = mx.interop.host_view(self)
        return (host.astype(np.float32) if host.dtype.name == "bfloat16" else host).tolist()

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError("len() of a 0-dimensional array")
        return shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.ndim:
            raise TypeError("iteration over a 0-dimensional array")
        return iter(mx.unstack(self))

    def __bool__(self) -> bool:
        return bool(self._host_scalar())

    def __int__(self) -> int:
        return int(self._host_scalar())

    def __float__(self) -> float:
        return float(self._host_scalar())

    def __complex__(self) -> complex:
        return complex(self._host_scalar())

    def __index__(self) -> int:
        if self.dtype.numpy.kind not in "iu":
            raise TypeError(f"only an integer array of one element can be an index, not {self.dtype.name}")
        return int(self._host_scalar())

    def __bytes__(self) -> bytes:
        return mx.interop.host_view(self).tobytes()

    def __contains__(self, value: Any) -> bool:
        return bool(mx.any(mx.equal(self, value)))

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return mx.printing.describe(self) if self.handle else "array(<closed>)"

    def __format__(self, spec: str) -> str:
        if not self.ndim:
            return format(self.item(), spec)
        if spec:
            raise TypeError(f"format {spec!r} is for scalars, this array has shape {tuple(self.shape)}")
        return str(self)

    # ---- interop, copies
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return mx.interop.to_numpy(self, dtype, copy)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return mx.dlpack.export(self, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return mx.dlpack.device_of(self)

    if sys.version_info >= (3, 12):

        def __buffer__(self, flags: int) -> memoryview:
            return mx.interop.export_buffer(self)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return mx

    def __copy__(self) -> Array:
        return _copied(self, None)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Array:
        return mx.copy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return mx.interop.restore, (bytes(self), self.shape, self.dtype)

    # ---- indexing
    def __getitem__(self, key: Any) -> Array:
        found = mx.indexing.get(self, key)
        return _copied(self, None) if found is self else found

    def __setitem__(self, key: Any, value: Any) -> None:
        # Arrays are immutable in MLX: an update makes this object own the new array.
        made = _copied(mx.indexing.updated(self, key, value), None)
        self.handle, made.handle = made.handle, self.handle

    @property
    def at(self) -> At:
        """Updates where repeated indices accumulate: x.at[i].add(y), subtract, multiply, divide, maximum, minimum."""
        return mx.indexing.At(self)

    # ---- operators: the other operand is an Array in most calls, and then nothing else stands before the call
    def __add__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_add(self, other)

    def __radd__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_add(other, self)

    def __sub__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_subtract(self, other)

    def __rsub__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_subtract(other, self)

    def __mul__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_multiply(self, other)

    def __rmul__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_multiply(other, self)

    def __truediv__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_divide(self, other)

    def __rtruediv__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_divide(other, self)

    def __floordiv__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return mx.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return mx.floor_divide(other, self)

    def __mod__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return mx.remainder(self, other)

    def __rmod__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return mx.remainder(other, self)

    def __pow__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return mx.power(self, other)

    def __rpow__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return mx.power(other, self)

    def __matmul__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_matmul(self, other)

    def __rmatmul__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_matmul(other, self)

    def __and__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_bitwise_and(self, other)

    def __rand__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_bitwise_and(other, self)

    def __or__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_bitwise_or(self, other)

    def __ror__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_bitwise_or(other, self)

    def __xor__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_bitwise_xor(other, self)

    def __lshift__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_left_shift(self, other)

    def __rlshift__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_left_shift(other, self)

    def __rshift__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_right_shift(self, other)

    def __rrshift__(self, other: Any) -> Array:
        if (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_right_shift(other, self)

    def __eq__(self, other: object) -> Array:  # type: ignore[override]
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_equal(self, other)

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_not_equal(self, other)

    def __lt__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_less(self, other)

    def __le__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_less_equal(self, other)

    def __gt__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_greater(self, other)

    def __ge__(self, other: Any) -> Array:
        if other.__class__ is not Array and (other := _operand(other, self)) is None:
            return NotImplemented
        return call.mlx_greater_equal(self, other)

    def __neg__(self) -> Array:
        return call.mlx_negative(self)

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return call.mlx_abs(self)

    def __invert__(self) -> Array:
        return call.mlx_logical_not(self) if self.dtype is bool_ else call.mlx_bitwise_invert(self)


def _closed(array: Array) -> Any:
    return array.live


_shape = fastcall.shape_reader(_closed)
_ndim, _size, _nbytes, _dtype_code = (
    fastcall.reader(f"mlx_array_{name}", _closed) for name in ("ndim", "size", "nbytes", "dtype")
)


def wrap(handle: int) -> Array:
    """An Array that owns a handle."""
    array: Array = _new(Array)
    array.handle = handle
    return array


def take(here: Here, failed: int) -> Array:
    """The result of a call that wrote to `here.out`, or its exception."""
    slot = here.slot
    handle = slot[0]
    if failed or not handle:
        raise here.failure()
    slot[0] = 0
    array: Array = _new(Array)
    array.handle = handle
    return array


def take_pair(here: Here, failed: int) -> tuple[Array, Array]:
    """The results of a call that wrote to `here.out` and `here.out2`."""
    slot = here.slot
    first, second = slot[0], slot[1]
    if failed or not (first and second):
        raise here.failure()
    slot[0] = slot[1] = 0
    return wrap(first), wrap(second)


def take_list(here: Here, failed: int) -> list[Array]:
    """The arrays of a vector that a call wrote to `here.out`."""
    if failed:
        raise here.failure()
    vector = here.take_raw()
    try:
        return unpack(here, vector)
    finally:
        c.mlx_vector_array_free(vector)


def unpack(here: Here, vector: int) -> list[Array]:
    """The arrays of an mlx_vector_array, which stays as it is."""
    get, out = c.mlx_vector_array_get, here.out
    return [take(here, get(out, vector, i)) for i in range(c.mlx_vector_array_size(vector))]


def as_array(value: Any) -> Array:
    """`value` itself where it is an Array, else an Array made of it."""
    return value if isinstance(value, Array) else Array(value)


def optional(value: Any) -> Array | None:
    """`value` as an array, None for None; a closed array, whose handle MLX would take for None, is an error."""
    if value is None:
        return None
    array = as_array(value)
    array.live  # noqa: B018  (raises)
    return array


def handle_or_none(value: Array | None) -> int:
    """The handle of an optional array: 0 for None, never for a closed one."""
    if value is None:
        return 0
    return value.handle or value.live


def _holds_arrays(value: list[Any] | tuple[Any, ...]) -> bool:
    return any(isinstance(v, Array) or (isinstance(v, list | tuple) and _holds_arrays(v)) for v in value)


def _copied(value: Array, dtype: Dtype | None) -> Array:
    """The conversion to dtype, or a second handle of the same (immutable) array."""
    if dtype is not None and dtype is not value.dtype:
        return mx.astype(value, dtype)
    here = local.here
    return take(here, c.mlx_array_set(here.out, value.live))


def _operand(value: Any, like: Array) -> Array | None:
    """The other operand of an operator, None where Python shall ask that operand's class instead."""
    if isinstance(value, Array):
        return value
    if isinstance(value, mx.convert.NUMBERS) or hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        return mx.convert.weak(value, like)
    return None


def _failed(_name: str) -> None:
    # The name that the user knows is that of the function which made the call.
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") == "mlxc_py._sys.plaincall" and frame.f_back:
        frame = frame.f_back
    raise local.here.failure(frame.f_code.co_name.strip("_"))


ArrayLike = Any
"""An Array, or what Array() takes."""
array = Array
call = fastcall.Caller(Array, _failed)
"""mlx-c's functions that make one array."""

__all__ = [
    "Array",
    "MLXError",
    "array",
    "as_array",
    "call",
    "handle_or_none",
    "optional",
    "take",
    "take_list",
    "take_pair",
    "unpack",
    "wrap",
]
