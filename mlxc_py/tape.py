"""Tapes: a graph built once on placeholders and laid out anew over other inputs of the same shapes.

What mx.compile does, but one tape serves every thread, arithmetic on the CPU is fused by loops that are there, and
nothing depends on MLX's caches, a compiler or the garbage collector. Only the libmlxc that this package builds has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_bool, c_char_p, c_int, c_size_t, c_void_p, cast
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple, Self

from mlxc_py._sys.load import library
from mlxc_py.arguments import ints, shape_of
from mlxc_py.arrays import Array, wrap
from mlxc_py.dtype import Dtype
from mlxc_py.errors import UnsupportedError
from mlxc_py.guards import check_fork
from mlxc_py.owner import Owner
from mlxc_py.state import local

__all__ = ["Tape", "evaluate", "placeholder"]


def supported() -> bool:
    """Whether the libmlxc in use records tapes."""
    return library().has("mlxc_py_tape_new")


@cache
def on_calling_thread() -> bool:
    """Whether tapes of the CPU's operations are computed by the thread that runs them, whatever their stream."""
    return supported() and bool(_calls().on_calling_thread())


def evaluate(arrays: Sequence[Array]) -> None:
    """As mx.eval, on the calling thread where that computes: worth it for what takes less than waking another one."""
    check_fork()
    if _calls().evaluate(handles(arrays), len(arrays)):
        raise local.here.failure("evaluate")


def placeholder(shape: tuple[int, ...], dtype: Dtype) -> Array:
    """An array without data, to build a graph on; evaluating it is an MLXError."""
    sizes = shape_of(shape)
    handle = _calls().placeholder(ints(sizes) or b"\0\0\0\0", len(sizes), dtype.code)
    if not handle:
        raise local.here.failure("placeholder")
    return wrap(handle)


class Tape(Owner):
    """What `outputs` are computed from, with `inputs` (placeholders) left open.

    Whatever does not depend on the inputs is evaluated here, once, unless it is large and cheap. The operations keep
    the stream they were built for: hold that stream's lock while recording. MLXError where outputs need a placeholder
    that is not among the inputs. Closing lets go of the graph and of the constants in it; arrays made from it stay.
    """

    __slots__ = ("_applied", "_arguments", "_evaluated")
    free = "mlxc_py_tape_free"

    def __init__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        check_fork()
        self._takes(len(inputs), len(outputs))
        made = c_size_t()
        if _calls().new(addressof(made), handles(inputs), len(inputs), handles(outputs), len(outputs)):
            raise local.here.failure("Tape")
        super().__init__(made.value)

    def _takes(self, inputs: int, outputs: int) -> None:
        self._arguments = Struct(f"{inputs}P")
        self._applied = c_size_t * (outputs + 1)
        self._evaluated = c_size_t * (2 * outputs + 1)

    @classmethod
    def taking(cls, handle: int, inputs: int, outputs: int) -> Self:
        """The owner of a handle, of a tape with so many inputs and outputs."""
        tape = cls.adopt(handle)
        tape._takes(inputs, outputs)
        return tape

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs, as `apply` gives them."""
        return self.apply(inputs)[0]

    def apply(self, inputs: Sequence[Array]) -> tuple[list[Array], int]:
        """The outputs for these inputs and the nanoseconds that computing them took.

        On the CPU they are computed here where all inputs are evaluated; elsewhere they are not evaluated yet.
        MLXError where shapes or dtypes are not the recorded ones.
        """
        results = self._applied()
        n, at = len(results) - 1, addressof(results)
        given = _packed(self._arguments, [a.live for a in inputs])
        if _calls().apply(at, n, at + 8 * n, self.live, given, len(inputs)):
            raise local.here.failure("Tape")
        return [wrap(handle) for handle in results[:n]], results[n]

    def run(self, addresses: Sequence[int]) -> tuple[list[Array], list[int], int]:
        """The outputs, evaluated, the addresses of their data, and the nanoseconds that the evaluation took.

        The inputs lie at host addresses, row-contiguous and of the recorded shapes; nothing checks that. On the CPU an
        output may lie in an input's memory. MLXError where an output is not row-contiguous.
        """
        results = self._evaluated()
        n, at = len(results) // 2, addressof(results)
        given = _packed(self._arguments, addresses)
        if _calls().run(at, at + 8 * n, n, at + 16 * n, self.live, given, len(addresses)):
            raise local.here.failure("Tape")
        return [wrap(handle) for handle in results[:n]], results[n:-1], results[-1]

    def native_run(self) -> tuple[int, int]:
        """The addresses of libmlxc's mlxc_py_tape_fill and of this tape: what C needs to run it as long as it lives."""
        return cast(_calls().fill, c_void_p).value or 0, self.live

    def __len__(self) -> int:
        """Number of operations in one run."""
        return self.count()

    def count(self, primitive: str | None = None) -> int:
        """Number of operations of one MLX primitive ("Transpose")."""
        found = c_size_t()
        if _calls().count(addressof(found), self.live, primitive.encode() if primitive else None):
            raise local.here.failure("Tape.count")
        return found.value


def handles(arrays: Sequence[Array]) -> bytes | None:
    """The handles of arrays as C reads them."""
    return _packed(Struct(f"{len(arrays)}P"), [a.live for a in arrays])


def _packed(form: Struct, addresses: Sequence[int]) -> bytes | None:
    try:
        return form.pack(*addresses) or None
    except StructError:
        raise ValueError(f"the tape has {form.size // 8} inputs, {len(addresses)} were given") from None


class _Calls(NamedTuple):
    placeholder: Any
    new: Any
    apply: Any
    run: Any
    fill: Any
    count: Any
    evaluate: Any
    on_calling_thread: Any


@cache
def _calls() -> _Calls:
    found = library()
    if not supported():
        raise UnsupportedError(f"{found.path} records no tapes: only the libmlxc that mlxc-py builds does")

    function = found.typed
    return _Calls(
        function("mlxc_py_array_new_placeholder", c_void_p, c_void_p, c_int, c_int),
        function("mlxc_py_tape_new", c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t),
        function("mlxc_py_tape_apply", c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_size_t),
        function("mlxc_py_tape_run", c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        function("mlxc_py_tape_fill", c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_size_t),
        function("mlxc_py_tape_count", c_int, c_void_p, c_void_p, c_char_p),
        function("mlxc_py_eval_on_calling_thread", c_int, c_void_p, c_size_t),
        function("mlxc_py_tapes_on_calling_thread", c_bool),
    )
