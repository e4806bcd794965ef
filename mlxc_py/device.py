"""Devices: the kind, the index, what the machine has, and the default one."""

from __future__ import annotations

import enum
from ctypes import addressof, c_bool, c_char_p, c_int, c_size_t
from dataclasses import dataclass

from mlxc_py._sys import mlx as c
from mlxc_py.state import local


class DeviceType(enum.Enum):
    """The kind of a device; usable wherever a Device is (then index 0)."""

    cpu = 0
    gpu = 1

    def __repr__(self) -> str:
        return f"DeviceType.{self.name}"


@dataclass(frozen=True)
class Device:
    """A device: its `type` and `index`."""

    type: DeviceType
    index: int = 0

    def __repr__(self) -> str:
        return f"Device({self.type.name}, {self.index})"

    @property
    def handle(self) -> int:
        """The mlx_device; made once, shared, never freed (devices are few)."""
        handle = _HANDLES.get(self)
        if handle is None:
            handle = c.mlx_device_new_type(self.type.value, self.index)
            if not handle:
                raise local.here.failure("Device")
            handle = _HANDLES.setdefault(self, handle)
        return handle


_HANDLES: dict[Device, int] = {}
cpu = DeviceType.cpu
gpu = DeviceType.gpu


def as_device(device: Device | DeviceType) -> Device:
    """A Device for a Device or DeviceType."""
    if isinstance(device, Device):
        return device
    if isinstance(device, DeviceType):
        return Device(device, 0)
    raise TypeError(f"expected a Device or DeviceType (mx.cpu, mx.gpu), not {type(device).__name__}")


def default_device() -> Device:
    """The process-wide default device."""
    here = local.here
    if c.mlx_get_default_device(here.out):
        raise here.failure("default_device")
    handle = here.take_raw()
    try:
        return _read(handle)
    finally:
        c.mlx_device_free(handle)


def _read(handle: int) -> Device:
    here = local.here
    kind, index = c_int(), c_int()
    if c.mlx_device_get_type(addressof(kind), handle) or c.mlx_device_get_index(addressof(index), handle):
        raise here.failure("Device")
    return Device(DeviceType(kind.value), index.value)


def set_default_device(device: Device | DeviceType) -> None:
    """Make device the default of every thread (threads inside `with stream(...)` keep theirs until they leave it)."""
    here = local.here
    if c.mlx_set_default_device(as_device(device).handle):
        raise here.failure("set_default_device")
    local.forget_streams()


def is_available(device: Device | DeviceType) -> bool:
    """Whether the library and the machine have the device."""
    here = local.here
    flag = c_bool()
    if c.mlx_device_is_available(addressof(flag), as_device(device).handle):
        raise here.failure("is_available")
    return flag.value


def device_count(device_type: DeviceType) -> int:
    """How many devices of a type there are."""
    here = local.here
    count = c_int()
    if c.mlx_device_count(addressof(count), device_type.value):
        raise here.failure("device_count")
    return count.value


def device_info(d: Device | DeviceType | None = None) -> dict[str, str | int]:
    """What MLX knows of a device (name, architecture, memory sizes); of the default one when d is None."""
    from mlxc_py.vector import StringVector

    here = local.here
    device = default_device() if d is None else as_device(d)
    if c.mlx_device_info_get(here.out, device.handle):
        raise here.failure("device_info")
    info = here.take_raw()
    try:
        if c.mlx_device_info_get_keys(here.out, info):
            raise here.failure("device_info")
        return {key: _info_value(info, key) for key in StringVector.adopt(here.take_raw())}
    finally:
        c.mlx_device_info_free(info)


def _info_value(info: int, key: str) -> str | int:
    name = key.encode()
    is_string = c_bool()
    failed = c.mlx_device_info_is_string(addressof(is_string), info, name)
    if not failed and is_string.value:
        text = c_char_p()
        failed = c.mlx_device_info_get_string(addressof(text), info, name)
        if not failed:
            return (text.value or b"").decode()
    size = c_size_t()
    if failed or c.mlx_device_info_get_size(addressof(size), info, name):
        raise local.here.failure("device_info")
    return size.value
