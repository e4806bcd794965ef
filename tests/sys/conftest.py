"""Fixtures of the bindings' tests: the generator as modules, and stub libraries standing in for each mlx-c."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="session")
def repository() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def package_environment() -> dict[str, str]:
    """Environment of a subprocess that imports the same mlxc_py as this process."""
    import mlxc_py

    return {**os.environ, "PYTHONPATH": str(Path(mlxc_py.__file__).resolve().parents[1])}


@pytest.fixture(scope="session")
def bindgen() -> Iterator[SimpleNamespace]:
    """The generator's modules, by name."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        names = ("diff", "headers", "irregular", "mlx_ctypes", "model", "ort_ctypes", "parse", "plugin_header", "seals")
        modules = {name: importlib.import_module(f"bindgen.{name}") for name in names}
        yield SimpleNamespace(command=importlib.import_module("gen_bindings"), **modules)
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="session")
def models(bindgen: SimpleNamespace) -> Any:
    return bindgen.model.load_models()


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.fixture(scope="session")
def build_library(compiler: str) -> Callable[[str, Path], Path]:
    """Compile C text to a shared library at the given path."""

    def build(source: str, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.with_suffix(".c")
        text.write_text(source)
        subprocess.run([compiler, "-shared", "-fPIC", "-O0", "-w", "-o", path, text], check=True)
        return path

    return build


# ---------------------------------------------------------------- stubs of mlx-c
PRELUDE = """
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef uint16_t float16_t, bfloat16_t;
typedef struct { float re, im; } mlx_complex64_t;
typedef void (*mlx_error_handler_func)(const char*, void*);
static struct { uint64_t bits[24]; double floats[24]; char name[80]; } record;
void* stub_record(void) { return &record; }
"""
WRITTEN_BY_HAND = ("mlx_version", "mlx_string_data", "mlx_string_free", "mlx_set_error_handler")


def declare(text: str, name: str) -> str:
    """C declaration of a name, function pointers included."""
    return text.replace("(*)", f"(*{name})", 1) if "(*)" in text else f"{text} {name}"


def types_source(api: Any) -> str:
    """The enums and structs of a model as C."""
    lines = [f"typedef unsigned int {name};" for name in api.enums]
    for s in api.structs.values():
        members = " ".join(f"{declare(m.type, m.name)};" for m in s.members)
        lines.append(f"typedef struct {s.tag} {{ {members} }} {s.name};")
    return "\n".join(lines) + "\n"


def function_source(api: Any, function: Any) -> str:
    """A function that records its arguments, each in its own slot, and returns a value that names it."""
    body = ["memset(&record, 0, sizeof record);", f'strcpy(record.name, "{function.name}");']
    for i, p in enumerate(function.params):
        if p.type in ("float", "double"):
            body.append(f"record.floats[{i}] = a{i};")
        elif p.type in api.structs:
            body.append(f"memcpy(&record.bits[{i}], &a{i}, sizeof a{i} < 8 ? sizeof a{i} : 8);")
        elif "*" in p.type or p.type in api.typedefs:
            body.append(f"record.bits[{i}] = (uintptr_t)a{i};")
        else:
            body.append(f"record.bits[{i}] = (uint64_t)(int64_t)a{i};")
    params = ", ".join(declare(p.type, f"a{i}") for i, p in enumerate(function.params))
    if function.variadic:
        params += ", ..."
    if function.result != "void":
        zero = f"{function.result} r; memset(&r, 0, sizeof r);"
        if function.result in api.handles:
            zero += " r.ctx = (void*)0x7fff12345678;"
        elif "*" not in function.result and function.result not in api.structs:
            zero += " r = 3;" if function.result == "int" else " r = 1;"
        body.append(zero + " return r;")
    return f"{function.result} {function.name}({params or 'void'}) {{ {' '.join(body)} }}\n"


def stub_source(api: Any, functions: list[Any], mlx_version: str, extra: tuple[str, ...] = ()) -> str:
    """C source of a library that exports these functions and reports an MLX version."""
    hand = f"""
static mlx_error_handler_func handler;
void mlx_set_error_handler(mlx_error_handler_func f, void* data, void (*dtor)(void*)) {{ handler = f; }}
int mlx_version(mlx_string* s) {{ s->ctx = "{mlx_version}"; return 0; }}
const char* mlx_string_data(mlx_string s) {{ return s.ctx; }}
int mlx_string_free(mlx_string s) {{ return 0; }}
int stub_fail(const char* message) {{ handler(message, 0); return 1; }}
"""
    stubs = [function_source(api, f) for f in functions if f.name not in WRITTEN_BY_HAND]
    return (
        PRELUDE + types_source(api) + hand + "".join(stubs) + "".join(f"int {n}(void) {{ return 0; }}\n" for n in extra)
    )


@pytest.fixture(scope="session")
def generations(models: Any) -> dict[str, Callable[[], str]]:
    """C source of a stub library for each mlx-c generation in the field."""
    new, old = models.mlx_07, models.mlx_06
    first = {f.name: f for f in old.older}
    v060 = [first.get(f.name, f) for f in old.functions if f.since == "<=0.6.0"]
    pre = [f for f in new.functions if f.since != "0.7.0"]
    sdpa = "mlx_fast_scaled_dot_product_attention"
    fused = [new.by_name[sdpa] if f.name == sdpa else f for f in old.functions]
    return {
        "0.6.0": lambda: stub_source(new, v060, "0.31.1"),
        "0.6": lambda: stub_source(new, list(old.functions), "0.31.2"),
        "0.7-pre": lambda: stub_source(new, pre, "0.32.2"),
        "0.7.0": lambda: stub_source(new, list(new.functions), "0.32.3"),
        "ollama": lambda: stub_source(new, fused, "0.32.2-65-g59d600b"),
        "ollama-0.34": lambda: stub_source(new, list(new.functions), "0.32.4-3-gd9add9d"),
        "newer": lambda: stub_source(new, list(new.functions), "0.33.0", ("mlx_fast_gated_delta_update",)),
        "half": lambda: stub_source(new, [f for f in new.functions if f.name != "mlx_trace_axes"], "0.32.2"),
        "fork": lambda: stub_source(new, list(new.functions), "0.32.0", ("mlx_stream_new_thread_unsafe_device",)),
        "0.5": lambda: stub_source(new, [f for f in v060 if f.name != "mlx_hanning"], "0.30.0"),
    }


@pytest.fixture(scope="session")
def stub_path(
    generations: dict[str, Callable[[], str]],
    build_library: Callable[[str, Path], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """Path of the stub library of a generation, built at first use."""
    built: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in built:
            built[name] = build_library(generations[name](), tmp_path_factory.mktemp("stub") / name / "libmlxc.so")
        return built[name]

    return path


class Record(ctypes.Structure):
    """What the last call of a stub received."""

    bits: ctypes.Array[ctypes.c_uint64]
    floats: ctypes.Array[ctypes.c_double]
    name: bytes
    _fields_ = [("bits", ctypes.c_uint64 * 24), ("floats", ctypes.c_double * 24), ("name", ctypes.c_char * 80)]


@pytest.fixture
def use_stub(stub_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Any, Record]]:
    """Make a stub library the one that calls go to: (Library, record of the last call)."""
    from mlxc_py._sys import load
    from mlxc_py._sys.places import this_platform

    def use(name: str) -> tuple[Any, Record]:
        library = load.find(this_platform(), {"MLXC_PY_LIBRARY": str(stub_path(name))}, ROOT / "mlxc_py")
        monkeypatch.setattr(load, "_library", library)
        address = library.handle["stub_record"]
        address.restype = ctypes.c_void_p
        return library, Record.from_address(address())

    return use
