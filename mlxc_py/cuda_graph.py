"""A graph of MLX operations that is kept and launched as one, on CUDA.

MLX lays every operation out anew in each evaluation, 8 to 30 us of the host's time an operation, also where a graph was
compiled. Here that is done once: what MLX laid out is a CUDA graph, which runs again over the memory it was made for.
Only the libmlxc that this package builds has it, and only with the release of MLX that it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_bool, c_int, c_size_t, c_void_p
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

from mlxc_py._sys.load import library
from mlxc_py.arrays import Array, wrap
from mlxc_py.errors import UnsupportedError
from mlxc_py.guards import check_fork
from mlxc_py.owner import Owner
from mlxc_py.state import local

__all__ = ["CudaGraph", "supported"]


def supported() -> bool:
    """Whether MLX computes on CUDA here and its graphs can be kept."""
    return _calls() is not None


class CudaGraph(Owner):
    """What `outputs` are computed from, kept as one launch over memory of its own.

    `inputs`: evaluated arrays from `device_memory.copy_to_device`, which every run writes anew. `outputs` depend on
    them and are not evaluated: all their operations are on one stream, and equal ones have been evaluated before,
    because what a first evaluation compiles is not kept. Nobody may schedule on that stream meanwhile. The outputs are
    spent, nothing notices that they are read afterwards. MLXError where the results in between, which stay in memory,
    would take more than `most_bytes`, where operations are on several streams, where MLX fails; UnsupportedError where
    `supported()` is False. Closing lets go of the graph and its memory; arrays that runs have returned stay.
    """

    __slots__ = ("_given", "_results", "nbytes")
    free = "mlxc_py_cuda_graph_free"

    def __init__(self, inputs: Sequence[Array], outputs: Sequence[Array], most_bytes: int) -> None:
        check_fork()
        calls = _needed()
        self._given = Struct(f"{len(inputs)}P")
        self._results = c_size_t * (len(outputs) + 1)
        made, nbytes = c_size_t(), c_size_t()
        given = self._given.pack(*[a.live for a in inputs]) or None
        wanted = Struct(f"{len(outputs)}P").pack(*[a.live for a in outputs]) or None
        if calls.new(addressof(made), given, len(inputs), wanted, len(outputs), most_bytes):
            raise local.here.failure("CudaGraph")
        super().__init__(made.value)
        if calls.nbytes(addressof(nbytes), self.handle):
            raise local.here.failure("CudaGraph")
        self.nbytes = nbytes.value
        """Bytes held beside inputs and constants."""

    def run(self, addresses: Sequence[int]) -> tuple[list[Array], int]:
        """The outputs, evaluated, in the device's memory, and the nanoseconds from the launch to its end.

        The inputs lie at host addresses, row-contiguous, of the shapes and dtypes that the graph was kept with; nothing
        checks that. Runs of one graph take turns. MLXError where the launch fails, or where somebody has read an array
        of the graph on the host, which moves its memory.
        """
        if len(addresses) * 8 != self._given.size:
            raise ValueError(f"the graph has {self._given.size // 8} inputs, {len(addresses)} were given")
        results = self._results()
        n, at = len(results) - 1, addressof(results)
        if _needed().run(at, n, at + 8 * n, self.live, self._given.pack(*addresses) or None, len(addresses)):
            raise local.here.failure("CudaGraph.run")
        return [wrap(handle) for handle in results[:n]], results[n]


class _Calls(NamedTuple):
    new: Any
    run: Any
    nbytes: Any


@cache
def _calls() -> _Calls | None:
    found = library()
    if not found.has("mlxc_py_has_cuda_graphs"):
        return None

    function = found.typed
    if not function("mlxc_py_has_cuda_graphs", c_bool)():
        return None
    return _Calls(
        function("mlxc_py_cuda_graph_new", c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_size_t),
        function("mlxc_py_cuda_graph_run", c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_size_t),
        function("mlxc_py_cuda_graph_bytes", c_int, c_void_p, c_void_p),
    )


def _needed() -> _Calls:
    calls = _calls()
    if calls is None:
        raise UnsupportedError("graphs are kept on CUDA only, with the release of MLX that libmlxc knows")
    return calls
