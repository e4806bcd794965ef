"""Sizes and offsets of structs: ctypes against the C compiler where there is one, and against a committed table."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlxc_py._sys import mlx, ort


def layout(struct: type[ctypes.Structure]) -> dict[str, Any]:
    """Size and offsets as ctypes has them."""
    return {
        "size": ctypes.sizeof(struct),
        "offsets": [getattr(struct, name).offset for name, *_ in struct._fields_],
    }


def compiled(compiler: str, header: Path, structs: list[str], modules: Any, folder: Path) -> dict[str, dict[str, Any]]:
    """Size and offsets as a C compiler has them, which also proves that the header is strict C99."""
    lines = [f'#include "{header.name}"', "#include <stdio.h>", "int main(void) {"]
    for name in structs:
        lines.append(f'    printf("{name} %zu", sizeof({name}));')
        for member, *_ in getattr(modules, name)._fields_:
            lines.append(f'    printf(" %zu", offsetof({name}, {member}));')
        lines.append('    printf("\\n");')
    source = folder / "layout.c"
    source.write_text("\n".join([*lines, "    return 0;", "}", ""]))
    strict = ["-std=c99", "-pedantic-errors", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *strict, f"-I{header.parent}", "-o", folder / "layout", source], check=True)
    done = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {name: {"size": int(size), "offsets": [int(o) for o in offsets]} for name, size, *offsets in rows}


def test_the_committed_table() -> None:
    """Made by compiling the original headers (mlx-c 0.6, ONNX Runtime API 29) on a 64-bit machine."""
    table = json.loads(Path(__file__).with_name("layouts.json").read_text())
    for name, expected in table.items():
        module = mlx if hasattr(mlx, name) else ort
        assert layout(getattr(module, name)) == expected, name
    assert len(table) == 34 + 34


def test_ort_abi_h(compiler: str, repository: Path, models: Any, bindgen: SimpleNamespace, tmp_path: Path) -> None:
    structs = [s.name for s in bindgen.plugin_header.closure(models.ort)[0] if not s.union]
    assert {"OrtApi", "OrtEpApi", "OrtEp", "OrtEpFactory", "OrtNodeComputeInfo"} <= set(structs)
    found = compiled(compiler, repository / "native" / "plugin" / "ort_abi.h", structs, ort, tmp_path)
    assert found == {name: layout(getattr(ort, name)) for name in structs}


def test_ort_abi_h_has_the_enums_values(compiler: str, repository: Path, models: Any, tmp_path: Path) -> None:
    header = repository / "native" / "plugin" / "ort_abi.h"
    text = header.read_text()
    checks = [
        f'_Static_assert({name} == {value}, "{name}");'
        for e in models.ort.enums.values()
        if f"}} {e.name};" in text
        for name, value in e.values.items()
    ]
    assert len(checks) > 100
    source = tmp_path / "enums.c"
    source.write_text("\n".join([f'#include "{header.name}"', *checks, ""]))
    subprocess.run([compiler, "-std=c11", f"-I{header.parent}", "-fsyntax-only", source], check=True)


def test_libmlxcs_header(compiler: str, repository: Path, models: Any, tmp_path: Path) -> None:
    header = repository / "native" / "mlxc" / "generated" / "mlxc.h"
    if not header.is_file():
        pytest.skip("no header of libmlxc in this tree")
    names = list(models.mlx_07.structs)
    assert compiled(compiler, header, names, mlx, tmp_path) == {n: layout(getattr(mlx, n)) for n in names}
