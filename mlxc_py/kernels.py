"""Kernels from source: mx.fast.metal_kernel and mx.fast.cuda_kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlxc_py._sys import mlx as c
from mlxc_py.arguments import ints, shape_of, text
from mlxc_py.arrays import Array, ArrayLike, as_array, take_list
from mlxc_py.dtype import Dtype
from mlxc_py.owner import Owner
from mlxc_py.state import StreamLike, local
from mlxc_py.vector import StringVector, VectorArray


class _Config(Owner):
    """What one launch needs: grid, threads, template arguments, outputs."""

    __slots__ = ()
    family: str

    def __init__(self) -> None:
        super().__init__(getattr(c, f"mlx_fast_{self.family}_kernel_config_new")())

    def set(self, name: str, *values: Any) -> None:
        """Call mlx_fast_..._config_<name>."""
        if getattr(c, f"mlx_fast_{self.family}_kernel_config_{name}")(self.live, *values):
            raise local.here.failure(f"{self.family}_kernel")

    def add_template(self, name: str, value: bool | int | Dtype) -> None:
        """A template argument of the kernel."""
        if isinstance(value, Dtype):
            self.set("add_template_arg_dtype", name.encode(), value.code)
        elif isinstance(value, bool):
            self.set("add_template_arg_bool", name.encode(), value)
        else:
            self.set("add_template_arg_int", name.encode(), value)


class _MetalConfig(_Config):
    __slots__ = ()
    family, free = "metal", "mlx_fast_metal_kernel_config_free"


class _CudaConfig(_Config):
    __slots__ = ()
    family, free = "cuda", "mlx_fast_cuda_kernel_config_free"


class Kernel(Owner):
    """A compiled-at-first-use kernel; call it with inputs, grid, threadgroup and what its outputs are."""

    __slots__ = ("_outputs",)
    config: type[_Config]

    def __init__(
        self, name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, header: str, *rest: Any
    ) -> None:
        self.handle = 0
        self._outputs = len(outputs)
        create = getattr(c, f"mlx_fast_{self.config.family}_kernel_new")
        with StringVector(inputs) as input_names, StringVector(outputs) as output_names:
            strings = (input_names.handle, output_names.handle, source.encode(), header.encode())
            super().__init__(create(text(name).encode(), *strings, *rest))

    def __call__(
        self,
        *,
        inputs: Sequence[ArrayLike],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, bool | int | Dtype]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: StreamLike = None,
    ) -> list[Array]:
        """Launch: one output array per shape and dtype."""
        if not len(output_shapes) == len(output_dtypes) == self._outputs:
            raise ValueError(f"the kernel has {self._outputs} outputs; give a shape and a dtype for each")
        with self.config() as config, VectorArray(map(as_array, inputs)) as given:
            for shape, dtype in zip(output_shapes, output_dtypes, strict=True):
                sizes = ints(shape_of(shape))
                config.set("add_output_arg", sizes, len(sizes) // 4, dtype.code)
            config.set("set_grid", *grid)
            config.set("set_thread_group", *threadgroup)
            for name, value in template or ():
                config.add_template(name, value)
            if init_value is not None:
                config.set("set_init_value", init_value)
            config.set("set_verbose", verbose)
            here = local.here
            apply = getattr(c, f"mlx_fast_{self.config.family}_kernel_apply")
            return take_list(here, apply(here.out, self.live, given.handle, config.handle, here.on(stream)))


class MetalKernel(Kernel):
    """A kernel in Metal's language."""

    __slots__ = ()
    config, free = _MetalConfig, "mlx_fast_metal_kernel_free"


class CudaKernel(Kernel):
    """A kernel in CUDA's language."""

    __slots__ = ()
    config, free = _CudaConfig, "mlx_fast_cuda_kernel_free"


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
) -> Kernel:
    """A kernel from the body of a Metal function; launching it needs MLX's Metal back end."""
    return MetalKernel(name, input_names, output_names, source, header, ensure_row_contiguous, atomic_outputs)


def cuda_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    shared_memory: int = 0,
) -> Kernel:
    """A kernel from the body of a CUDA function; launching it needs MLX's CUDA back end."""
    return CudaKernel(name, input_names, output_names, source, header, ensure_row_contiguous, shared_memory)
