"""Communication between processes, with mlx.core.distributed's names."""

from __future__ import annotations

from collections.abc import Sequence

from mlxc_py._sys import mlx as c
from mlxc_py.arguments import ints, shape_of, text
from mlxc_py.arrays import Array, ArrayLike, as_array, take
from mlxc_py.dtype import Dtype
from mlxc_py.owner import Owner
from mlxc_py.state import StreamLike, local


class Group(Owner):
    """Processes that communicate."""

    __slots__ = ()
    free = "mlx_distributed_group_free"

    def rank(self) -> int:
        """This process's number in the group."""
        return int(c.mlx_distributed_group_rank(self.live))

    def size(self) -> int:
        """Number of processes."""
        return int(c.mlx_distributed_group_size(self.live))

    def split(self, color: int, key: int = -1) -> Group:
        """The group of the processes that give the same color, ordered by key."""
        here = local.here
        if c.mlx_distributed_group_split(here.out, self.live, color, key):
            raise here.failure("split")
        return Group.adopt(here.take_raw())


def is_available(backend: str = "any") -> bool:
    """Whether a communication back end exists."""
    return bool(c.mlx_distributed_is_available(_backend(backend)))


def init(strict: bool = False, backend: str = "any") -> Group:
    """Join the group of all processes; strict: an error rather than a group of one."""
    here = local.here
    if c.mlx_distributed_init(here.out, strict, _backend(backend)):
        raise here.failure("init")
    return Group.adopt(here.take_raw())


def _backend(backend: str) -> bytes | None:
    return None if backend == "any" else text(backend).encode()


def _handle(group: Group | None) -> int:
    return 0 if group is None else group.live


def all_sum(x: ArrayLike, *, group: Group | None = None, stream: StreamLike = None) -> Array:
    """Sum over all processes."""
    x, here = as_array(x), local.here
    return take(here, c.mlx_distributed_all_sum(here.out, x.live, _handle(group), here.on(stream)))


def all_max(x: ArrayLike, *, group: Group | None = None, stream: StreamLike = None) -> Array:
    """Maximum over all processes."""
    x, here = as_array(x), local.here
    return take(here, c.mlx_distributed_all_max(here.out, x.live, _handle(group), here.on(stream)))


def all_min(x: ArrayLike, *, group: Group | None = None, stream: StreamLike = None) -> Array:
    """Minimum over all processes."""
    x, here = as_array(x), local.here
    return take(here, c.mlx_distributed_all_min(here.out, x.live, _handle(group), here.on(stream)))


def all_gather(x: ArrayLike, *, group: Group | None = None, stream: StreamLike = None) -> Array:
    """The arrays of all processes, joined along the first axis."""
    x, here = as_array(x), local.here
    return take(here, c.mlx_distributed_all_gather(here.out, x.live, _handle(group), here.on(stream)))


def sum_scatter(x: ArrayLike, *, group: Group | None = None, stream: StreamLike = None) -> Array:
    """Sum over all processes, of which each gets its part."""
    x, here = as_array(x), local.here
    return take(here, c.mlx_distributed_sum_scatter(here.out, x.live, _handle(group), here.on(stream)))


def send(x: ArrayLike, dst: int, *, group: Group | None = None, stream: StreamLike = None) -> Array:
    """Send to one process; evaluate the result to do it."""
    x, here = as_array(x), local.here
    return take(here, c.mlx_distributed_send(here.out, x.live, dst, _handle(group), here.on(stream)))


def recv(
    shape: Sequence[int], dtype: Dtype, src: int, *, group: Group | None = None, stream: StreamLike = None
) -> Array:
    """Receive from one process."""
    sizes, here = ints(shape_of(shape)), local.here
    failed = c.mlx_distributed_recv(here.out, sizes, len(sizes) // 4, dtype.code, src, _handle(group), here.on(stream))
    return take(here, failed)


def recv_like(x: ArrayLike, src: int, *, group: Group | None = None, stream: StreamLike = None) -> Array:
    """Receive an array of x's shape and dtype from one process."""
    x, here = as_array(x), local.here
    return take(here, c.mlx_distributed_recv_like(here.out, x.live, src, _handle(group), here.on(stream)))
