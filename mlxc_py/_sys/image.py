"""Whether a shared library's file is whole: the loader maps a cut one and the process dies of SIGBUS later."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_HEADERS = 1 << 16
_PT_LOAD, _LC_SEGMENT_64 = 1, 0x19


def missing_bytes(path: Path) -> int:
    """How many bytes the file lacks of what its own headers say; 0 too for what is no 64-bit ELF or Mach-O file."""
    with path.open("rb") as file:
        data = file.read(_HEADERS)
    try:
        ends = list(_elf(data) if data.startswith(b"\x7fELF\x02\x01") else _mach_o(data))
    except (struct.error, OverflowError, ValueError):  # the headers are cut or nonsense, which the loader notices
        return 0
    return max(0, max(ends, default=0) - path.stat().st_size)


def _elf(data: bytes) -> Iterator[int]:
    (table,), (width, count) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<HH", data, 54)
    for at in range(table, table + width * count, width):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, at)
        if kind == _PT_LOAD:
            yield offset + length


def _mach_o(data: bytes) -> Iterator[int]:
    if data.startswith(b"\xca\xfe\xba\xbe"):  # one image for each architecture
        (count,) = struct.unpack_from(">I", data, 4)
        for at in range(8, 8 + 20 * count, 20):
            offset, length = struct.unpack_from(">8xII", data, at)
            yield offset + length
    elif data.startswith(b"\xcf\xfa\xed\xfe"):
        at, (count,) = 32, struct.unpack_from("<I", data, 16)
        for _ in range(count):
            kind, width = struct.unpack_from("<II", data, at)
            if kind == _LC_SEGMENT_64:
                offset, length = struct.unpack_from("<40xQQ", data, at)
                yield offset + length
            at += max(width, 8)
