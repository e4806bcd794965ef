"""DLPack in both directions and with both kinds of capsule, in host memory (which MLX's is everywhere)."""

from __future__ import annotations

import atexit
import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

import numpy as np

from mlxc_py import convert, interop
from mlxc_py._sys import mlx as c
from mlxc_py.arrays import Array
from mlxc_py.dtype import DTYPES, Dtype, bfloat16, dtype_of

CPU = (1, 0)
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_KINDS = {code: kind for kind, code in _CODES.items()}
_READ_ONLY, _COPIED = 1, 2


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_Deleter = CFUNCTYPE(None, c_void_p)


class _Managed(Structure):
    _fields_ = [("tensor", _Tensor), ("manager", c_void_p), ("deleter", c_void_p)]


class _Versioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_NAMES: dict[type[_Managed | _Versioned], bytes] = {_Managed: b"dltensor", _Versioned: b"dltensor_versioned"}
# Capsules hold a pointer to the name they were made with, so these bytes live as long as the module.
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))

_lent: dict[int, tuple[Any, ...]] = {}
"""What consumers still hold: address of the managed tensor -> everything it points to."""


@_Deleter
def _release(address: int, _lent: dict[int, tuple[Any, ...]] = _lent) -> None:
    _lent.pop(address, None)


@_Deleter
def _drop_capsule(capsule: int, _lent: Any = _lent, _is_valid: Any = _is_valid, _pointer: Any = _pointer) -> None:
    # A consumed capsule was renamed; one that still has its first name takes its tensor with it.
    for name in (b"dltensor", b"dltensor_versioned"):
        if _is_valid(capsule, name):
            _lent.pop(_pointer(capsule, name), None)


for _callback in (_release, _drop_capsule):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))  # consumers may outlive this module


@atexit.register
def _retire() -> None:
    # Python is about to end: whoever releases a tensor later calls a C function without effect instead of Python.
    harmless = ctypes.cast(ctypes.CDLL(None).abs, c_void_p).value
    for managed, *_ in _lent.values():
        managed.deleter = harmless


def device_of(a: Array) -> tuple[int, int]:
    """`__dlpack_device__`."""
    a.live  # noqa: B018  (raises for a closed array)
    return CPU


def export(a: Array, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None, copy: bool | None) -> Any:
    """`__dlpack__`: a capsule of the evaluated array; BufferError for another device."""
    if dl_device is not None and tuple(dl_device) != CPU:
        raise BufferError(f"an array can be lent as host memory {CPU} only, not to device {tuple(dl_device)}")
    source = interop.evaluated(a)
    if copy:
        source = Array(np.array(source), source.dtype)
        source.eval()
    shape, dtype = source.shape, source.dtype
    sizes, steps = (c_int64 * len(shape))(*shape), (c_int64 * len(shape))()
    step = 1
    for i in reversed(range(len(shape))):
        steps[i], step = step, step * shape[i]
    kind = _Versioned if max_version is not None and max_version[0] >= 1 else _Managed
    managed = kind()
    tensor = managed.tensor
    tensor.data = c.mlx_array_data_uint8(source.handle) if source.size else None
    tensor.device_type, tensor.device_id = CPU
    tensor.ndim, tensor.shape, tensor.strides = len(shape), sizes, steps
    tensor.code = _BFLOAT if dtype is bfloat16 else _CODES[dtype.numpy.kind]
    tensor.bits, tensor.lanes = dtype.size * 8, 1
    managed.deleter = ctypes.cast(_release, c_void_p)
    if isinstance(managed, _Versioned):
        managed.major, managed.minor = 1, 0
        managed.flags = _COPIED if copy else _READ_ONLY
    address = ctypes.addressof(managed)
    _lent[address] = (managed, sizes, steps, source)
    return _new_capsule(address, _NAMES[kind], ctypes.cast(_drop_capsule, c_void_p))


def to_host(x: Any) -> np.ndarray:
    """A numpy copy of a DLPack producer's data."""
    device = tuple(int(v) for v in x.__dlpack_device__())
    if device[0] not in (1, 3, 8, 11, 13):  # CPU, pinned, Metal (unified memory), CUDA-pinned, managed
        raise BufferError(f"from_dlpack: the data is on device {device}; move it to host memory first")
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer from before version 1
        capsule = x.__dlpack__()
    identity = id(capsule)
    kind = next((k for k, name in _NAMES.items() if _is_valid(identity, name)), None)
    if kind is None:
        raise BufferError("from_dlpack: the capsule was used already, or is none of DLPack's")
    address = _pointer(identity, _NAMES[kind])
    managed = kind.from_address(address)
    if isinstance(managed, _Versioned) and managed.major > 1:
        raise BufferError(f"from_dlpack: DLPack {managed.major}.{managed.minor} is newer than the 1.x known here")
    try:
        return _copied(managed.tensor)
    finally:
        _rename(identity, _USED[kind])
        if managed.deleter:
            _Deleter(managed.deleter)(address)


_USED: dict[type[_Managed | _Versioned], bytes] = {_Managed: b"used_dltensor", _Versioned: b"used_dltensor_versioned"}


def _copied(tensor: _Tensor) -> np.ndarray:
    dtype = _dtype(tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, dtype.numpy)
    address = (tensor.data or 0) + tensor.byte_offset
    if not tensor.strides:
        raw = (c_uint8 * (count * dtype.size)).from_address(address)
        return np.frombuffer(raw, dtype.numpy).reshape(shape).copy()
    steps = tensor.strides[: tensor.ndim]
    low = sum((n - 1) * s for n, s in zip(shape, steps, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, steps, strict=True) if s > 0)
    raw = (c_uint8 * ((high - low + 1) * dtype.size)).from_address(address + low * dtype.size)
    flat = np.frombuffer(raw, dtype.numpy)
    return np.lib.stride_tricks.as_strided(flat[-low:], shape, [s * dtype.size for s in steps]).copy()


def _dtype(tensor: _Tensor) -> Dtype:
    if tensor.lanes == 1:
        if tensor.code == _BFLOAT and tensor.bits == 16:
            return bfloat16
        kind = _KINDS.get(tensor.code)
        if kind == "b" and tensor.bits == 8:
            return DTYPES[0]
        if kind is not None and tensor.bits % 8 == 0:
            try:
                return dtype_of(f"{kind}{tensor.bits // 8}")
            except TypeError as problem:
                raise BufferError(f"from_dlpack: {problem}") from None
    raise BufferError(f"from_dlpack: MLX has no dtype (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes)")


def from_dlpack(x: Any, /, *, copy: bool | None = None) -> Array:
    """An array with a copy of a DLPack producer's data, in its dtype."""
    if copy is False:
        raise BufferError("from_dlpack: data is always copied here")
    host = to_host(x)
    return convert.from_numpy(host, dtype_of(host.dtype))
