"""Functions saved to files and loaded again, and graphs as text."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlxc_py._sys import mlx as c
from mlxc_py.arguments import text
from mlxc_py.arrays import Array, as_array, take_list
from mlxc_py.closure import Closure, KeywordClosure
from mlxc_py.errors import UnsupportedError
from mlxc_py.owner import Owner
from mlxc_py.state import local
from mlxc_py.vector import ArrayMap, VectorArray

File = str | os.PathLike[str]


def _on_lists(fun: Callable[..., Any]) -> Callable[..., list[Array]]:
    def run(arrays: list[Array], named: dict[str, Array] | None = None) -> list[Array]:
        result = fun(*arrays, **(named or {}))
        return [result] if isinstance(result, Array) else list(result)

    return run


def _inputs(args: tuple[Any, ...]) -> list[Array]:
    """Arrays given one by one or as one list."""
    if len(args) == 1 and isinstance(args[0], list | tuple):
        args = tuple(args[0])
    return [as_array(a) for a in args]


def _no_metadata(metadata: object) -> None:
    if metadata:
        raise UnsupportedError("mlx-c has no parameter for the metadata of an exported function")


def export_function(
    file: File,
    fun: Callable[..., Any],
    *args: Any,
    shapeless: bool = False,
    metadata: str | None = None,
    **kwargs: Any,
) -> None:
    """Trace fun on example arguments and save the graph."""
    _no_metadata(metadata)
    path = text(os.fspath(file)).encode()
    here = local.here
    here.raised = None
    with VectorArray(_inputs(args)) as given, ArrayMap({k: as_array(v) for k, v in kwargs.items()}) as named:
        if kwargs:
            with KeywordClosure(_on_lists(fun)) as closure:
                failed = c.mlx_export_function_kwargs(path, closure.handle, given.handle, named.handle, shapeless)
        else:
            with Closure(_on_lists(fun)) as closure:
                failed = c.mlx_export_function(path, closure.handle, given.handle, shapeless)
    if failed:
        raise here.failure("export_function")


class FunctionExporter(Owner):
    """Saves several traces of one function to a file; use as a context manager."""

    __slots__ = ("_closure",)
    free = "mlx_function_exporter_free"

    def __init__(self, file: File, fun: Callable[..., Any], shapeless: bool = False) -> None:
        self.handle = 0
        self._closure = Closure(_on_lists(fun))
        super().__init__(c.mlx_function_exporter_new(text(os.fspath(file)).encode(), self._closure.handle, shapeless))

    def __call__(self, *args: Any) -> None:
        """Trace the function on these arguments and add the trace."""
        here = local.here
        here.raised = None
        with VectorArray(_inputs(args)) as given:
            if c.mlx_function_exporter_apply(self.live, given.handle):
                raise here.failure("exporter")


def exporter(
    file: File, fun: Callable[..., Any], *, shapeless: bool = False, metadata: str | None = None
) -> FunctionExporter:
    """A FunctionExporter for fun."""
    _no_metadata(metadata)
    return FunctionExporter(file, fun, shapeless)


class ImportedFunction(Owner):
    """A function loaded from a file; call it with arrays, get a list of arrays."""

    __slots__ = ()
    free = "mlx_imported_function_free"

    def __init__(self, file: File) -> None:
        self.handle = 0
        if not Path(file).is_file():
            raise FileNotFoundError(f"import_function: no file {os.fspath(file)!r}")
        super().__init__(c.mlx_imported_function_new(text(os.fspath(file)).encode()))

    def __call__(self, *args: Any, **kwargs: Any) -> list[Array]:
        here = local.here
        with VectorArray(_inputs(args)) as given, ArrayMap({k: as_array(v) for k, v in kwargs.items()}) as named:
            if kwargs:
                failed = c.mlx_imported_function_apply_kwargs(here.out, self.live, given.handle, named.handle)
            else:
                failed = c.mlx_imported_function_apply(here.out, self.live, given.handle)
            return take_list(here, failed)


def import_function(file: File, return_metadata: bool = False) -> ImportedFunction:
    """Load a function that export_function or an exporter saved."""
    _no_metadata(return_metadata)
    return ImportedFunction(file)


# ---- graphs as text
class _Namer(Owner):
    __slots__ = ()
    free = "mlx_node_namer_free"


def _write(file: Any, function: Any, arrays: Sequence[Array], names: dict[str, Array]) -> None:
    libc = ctypes.CDLL(None)
    libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
    libc.fclose.argtypes = [ctypes.c_void_p]
    with (
        tempfile.TemporaryDirectory() as folder,
        _Namer(c.mlx_node_namer_new()) as namer,
        VectorArray([*arrays, *names.values()]) as outputs,
    ):
        for name, array in names.items():
            if c.mlx_node_namer_set_name(namer.handle, array.live, name.encode()):
                raise local.here.failure("export_to_dot")
        path = Path(folder) / "graph"
        stream = libc.fopen(os.fsencode(path), b"w")
        if not stream:
            raise OSError(f"cannot write {path}")
        try:
            failed = function(stream, namer.handle, outputs.handle)
        finally:
            libc.fclose(stream)
        if failed:
            raise local.here.failure("export_to_dot")
        written = path.read_text(encoding="utf-8")
    if isinstance(file, str | os.PathLike):
        Path(file).write_text(written, encoding="utf-8")
    else:
        file.write(written)


def export_to_dot(file: Any, *args: Array, **kwargs: Array) -> None:
    """Write the graph that leads to the arrays in Graphviz's format, to a path or a text file; keywords name arrays."""
    _write(file, c.mlx_export_to_dot, args, kwargs)


def print_graph(file: Any, *args: Array, **kwargs: Array) -> None:
    """Write the graph that leads to the arrays as a list of its nodes, to a path or a text file."""
    _write(file, c.mlx_print_graph, args, kwargs)
