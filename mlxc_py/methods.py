"""Array's methods that are ops under another name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

import mlxc_py as mx
from mlxc_py.dtype import Dtype
from mlxc_py.state import StreamLike

if TYPE_CHECKING:
    from mlxc_py.arrays import Array

A = TypeVar("A", bound="Methods")
Axes = int | tuple[int, ...] | list[int] | None


class Methods:
    """Mixed into Array; each calls the function of the same name."""

    __slots__ = ()

    @property
    def T(self) -> Array:
        """The transpose."""
        return mx.transpose(self)

    @property
    def mT(self) -> Array:
        """The last two axes swapped."""
        return mx.swapaxes(self, -1, -2)

    @property
    def real(self) -> Array:
        """Real part."""
        return mx.real(self)

    @property
    def imag(self) -> Array:
        """Imaginary part."""
        return mx.imag(self)

    def astype(self, dtype: Dtype, *, stream: StreamLike = None) -> Array:
        """Converted to dtype, by C's rules."""
        return mx.astype(self, dtype, stream=stream)

    def view(self, dtype: Dtype, *, stream: StreamLike = None) -> Array:
        """The bytes seen as another dtype."""
        return mx.view(self, dtype, stream=stream)

    def reshape(self, *shape: Any, stream: StreamLike = None) -> Array:
        """Another shape of the same size; one dimension may be -1."""
        return mx.reshape(self, _unpacked(shape), stream=stream)

    def transpose(self, *axes: Any, stream: StreamLike = None) -> Array:
        """Permuted axes, reversed ones when none are given."""
        return mx.transpose(self, _unpacked(axes) if axes else None, stream=stream)

    def flatten(self, start_axis: int = 0, end_axis: int = -1, *, stream: StreamLike = None) -> Array:
        """Axes start_axis to end_axis joined into one."""
        return mx.flatten(self, start_axis, end_axis, stream=stream)

    def squeeze(self, axis: Axes = None, *, stream: StreamLike = None) -> Array:
        """Without axes of size 1."""
        return mx.squeeze(self, axis, stream=stream)

    def moveaxis(self, source: int, destination: int, *, stream: StreamLike = None) -> Array:
        """One axis moved to another place."""
        return mx.moveaxis(self, source, destination, stream=stream)

    def swapaxes(self, axis1: int, axis2: int, *, stream: StreamLike = None) -> Array:
        """Two axes swapped."""
        return mx.swapaxes(self, axis1, axis2, stream=stream)

    def split(self, indices_or_sections: Any, axis: int = 0, *, stream: StreamLike = None) -> list[Array]:
        """Parts along an axis."""
        return mx.split(self, indices_or_sections, axis, stream=stream)

    def sum(self, axis: Axes = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """Sum over axes."""
        return mx.sum(self, axis, keepdims, stream=stream)

    def prod(self, axis: Axes = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """Product over axes."""
        return mx.prod(self, axis, keepdims, stream=stream)

    def mean(self, axis: Axes = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """Mean over axes."""
        return mx.mean(self, axis, keepdims, stream=stream)

    def max(self, axis: Axes = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """Largest element over axes."""
        return mx.max(self, axis, keepdims, stream=stream)

    def min(self, axis: Axes = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """Smallest element over axes."""
        return mx.min(self, axis, keepdims, stream=stream)

    def all(self, axis: Axes = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """Whether all elements are true."""
        return mx.all(self, axis, keepdims, stream=stream)

    def any(self, axis: Axes = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """Whether any element is true."""
        return mx.any(self, axis, keepdims, stream=stream)

    def logsumexp(self, axis: Axes = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """log(sum(exp)) over axes."""
        return mx.logsumexp(self, axis, keepdims, stream=stream)

    def var(
        self,
        axis: Axes = None,
        keepdims: bool = False,
        ddof: int = 0,
        *,
        correction: int | None = None,
        stream: StreamLike = None,
    ) -> Array:
        """Variance over axes."""
        return mx.var(self, axis, keepdims, ddof if correction is None else correction, stream=stream)

    def std(
        self,
        axis: Axes = None,
        keepdims: bool = False,
        ddof: int = 0,
        *,
        correction: int | None = None,
        stream: StreamLike = None,
    ) -> Array:
        """Standard deviation over axes."""
        return mx.std(self, axis, keepdims, ddof if correction is None else correction, stream=stream)

    def argmax(self, axis: int | None = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """Index of the largest element."""
        return mx.argmax(self, axis, keepdims, stream=stream)

    def argmin(self, axis: int | None = None, keepdims: bool = False, *, stream: StreamLike = None) -> Array:
        """Index of the smallest element."""
        return mx.argmin(self, axis, keepdims, stream=stream)

    def cumsum(
        self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: StreamLike = None
    ) -> Array:
        """Running sum."""
        return mx.cumsum(self, axis, reverse=reverse, inclusive=inclusive, stream=stream)

    def cumprod(
        self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: StreamLike = None
    ) -> Array:
        """Running product."""
        return mx.cumprod(self, axis, reverse=reverse, inclusive=inclusive, stream=stream)

    def cummax(
        self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: StreamLike = None
    ) -> Array:
        """Running maximum."""
        return mx.cummax(self, axis, reverse=reverse, inclusive=inclusive, stream=stream)

    def cummin(
        self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: StreamLike = None
    ) -> Array:
        """Running minimum."""
        return mx.cummin(self, axis, reverse=reverse, inclusive=inclusive, stream=stream)

    def logcumsumexp(
        self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: StreamLike = None
    ) -> Array:
        """Running log(sum(exp))."""
        return mx.logcumsumexp(self, axis, reverse=reverse, inclusive=inclusive, stream=stream)

    def diag(self, k: int = 0, *, stream: StreamLike = None) -> Array:
        """The k-th diagonal, or a matrix with it."""
        return mx.diag(self, k, stream=stream)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1, *, stream: StreamLike = None) -> Array:
        """Diagonals of the matrices along two axes."""
        return mx.diagonal(self, offset, axis1, axis2, stream=stream)

    def round(self, decimals: int = 0, *, stream: StreamLike = None) -> Array:
        """Rounded, half to even."""
        return mx.round(self, decimals, stream=stream)

    def abs(self, *, stream: StreamLike = None) -> Array:
        """Absolute values."""
        return mx.abs(self, stream=stream)

    def conj(self, *, stream: StreamLike = None) -> Array:
        """Complex conjugate."""
        return mx.conjugate(self, stream=stream)

    def exp(self, *, stream: StreamLike = None) -> Array:
        """e to the power of each element."""
        return mx.exp(self, stream=stream)

    def log(self, *, stream: StreamLike = None) -> Array:
        """Natural logarithm."""
        return mx.log(self, stream=stream)

    def log2(self, *, stream: StreamLike = None) -> Array:
        """Logarithm to base 2."""
        return mx.log2(self, stream=stream)

    def log10(self, *, stream: StreamLike = None) -> Array:
        """Logarithm to base 10."""
        return mx.log10(self, stream=stream)

    def log1p(self, *, stream: StreamLike = None) -> Array:
        """log(1 + x)."""
        return mx.log1p(self, stream=stream)

    def sin(self, *, stream: StreamLike = None) -> Array:
        """Sine."""
        return mx.sin(self, stream=stream)

    def cos(self, *, stream: StreamLike = None) -> Array:
        """Cosine."""
        return mx.cos(self, stream=stream)

    def sqrt(self, *, stream: StreamLike = None) -> Array:
        """Square root."""
        return mx.sqrt(self, stream=stream)

    def rsqrt(self, *, stream: StreamLike = None) -> Array:
        """One over the square root."""
        return mx.rsqrt(self, stream=stream)

    def square(self, *, stream: StreamLike = None) -> Array:
        """Square."""
        return mx.square(self, stream=stream)

    def reciprocal(self, *, stream: StreamLike = None) -> Array:
        """One over each element."""
        return mx.reciprocal(self, stream=stream)

    # ---- in-place operators: the object owns the result, so every name of it sees the change, as in mlx.core
    def __iadd__(self, other: Any) -> Self:
        return _become(self, self + other)

    def __isub__(self, other: Any) -> Self:
        return _become(self, self - other)

    def __imul__(self, other: Any) -> Self:
        return _become(self, self * other)

    def __itruediv__(self, other: Any) -> Self:
        return _become(self, self / other)

    def __ifloordiv__(self, other: Any) -> Self:
        return _become(self, self // other)

    def __imod__(self, other: Any) -> Self:
        return _become(self, self % other)

    def __ipow__(self, other: Any) -> Self:
        return _become(self, self**other)

    def __imatmul__(self, other: Any) -> Self:
        return _become(self, self @ other)

    def __iand__(self, other: Any) -> Self:
        return _become(self, self & other)

    def __ior__(self, other: Any) -> Self:
        return _become(self, self | other)

    def __ixor__(self, other: Any) -> Self:
        return _become(self, self ^ other)

    def __ilshift__(self, other: Any) -> Self:
        return _become(self, self << other)

    def __irshift__(self, other: Any) -> Self:
        return _become(self, self >> other)


def _unpacked(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 and not hasattr(values[0], "__index__") else values


def _become(array: A, result: Any) -> A:
    array.handle, result.handle = result.handle, array.handle  # type: ignore[attr-defined]
    return array
