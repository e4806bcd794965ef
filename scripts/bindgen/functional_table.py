"""Which mlx-c calls make up each function of the functional API, in a small notation that `functional.py` reads.

    name(parameters) = mlx_call(arguments)  # docstring
or, where several C functions share one name,
    name(parameters)  # docstring
        ! statement before the call
        condition: mlx_call(arguments)
        mlx_call(arguments)

Parameters carry one of the kinds listed in `functional.KINDS`; arguments are in C's order, without result and stream,
an (int*, size_t) pair being one argument. `-> tuple` after the parameters turns a list of results into a tuple.
"""

# ruff: noqa: E501  (one function a line reads best)
from __future__ import annotations

OPS = """
abs(a: array) = mlx_abs(a)  # Absolute values.
add(a: operand, b: operand) = mlx_add(a, b)  # Sum, with broadcasting.
all(a: array, axis: axes = None, keepdims: bool = False)  # Whether all elements are true, over axes.
    axis is None: mlx_all(a, keepdims)
    mlx_all_axes(a, axis, keepdims)
allclose(a: operand, b: operand, rtol: float = 1e-05, atol: float = 1e-08, *, equal_nan: bool = False) = mlx_allclose(a, b, rtol, atol, equal_nan)  # Whether everything differs by at most atol + rtol * |b|.
any(a: array, axis: axes = None, keepdims: bool = False)  # Whether any element is true, over axes.
    axis is None: mlx_any(a, keepdims)
    mlx_any_axes(a, axis, keepdims)
arccos(a: array) = mlx_arccos(a)  # Inverse cosine.
arccosh(a: array) = mlx_arccosh(a)  # Inverse hyperbolic cosine.
arcsin(a: array) = mlx_arcsin(a)  # Inverse sine.
arcsinh(a: array) = mlx_arcsinh(a)  # Inverse hyperbolic sine.
arctan(a: array) = mlx_arctan(a)  # Inverse tangent.
arctan2(a: operand, b: operand) = mlx_arctan2(a, b)  # Angle of the point (b, a).
arctanh(a: array) = mlx_arctanh(a)  # Inverse hyperbolic tangent.
argmax(a: array, axis: axis = None, keepdims: bool = False)  # Index of the first largest element, uint32.
    axis is None: mlx_argmax(a, keepdims)
    mlx_argmax_axis(a, axis, keepdims)
argmin(a: array, axis: axis = None, keepdims: bool = False)  # Index of the first smallest element, uint32.
    axis is None: mlx_argmin(a, keepdims)
    mlx_argmin_axis(a, axis, keepdims)
argpartition(a: array, kth: int, axis: axis = -1)  # Indices that put the kth smallest in place, smaller ones before it.
    ! check_sortable(a, axis, "argpartition")
    axis is None: mlx_argpartition(a, kth)
    mlx_argpartition_axis(a, kth, axis)
argsort(a: array, axis: axis = -1)  # Indices that sort ascending, stable.
    ! check_sortable(a, axis, "argsort")
    axis is None: mlx_argsort(a)
    mlx_argsort_axis(a, axis)
array_equal(a: operand, b: operand, equal_nan: bool = False) = mlx_array_equal(a, b, equal_nan)  # Whether shapes and all elements are equal.
as_strided(a: array, shape: optional_ints = None, strides: optional_ints = None, offset: int = 0)  # The elements of a, seen through a shape and strides in elements.
    ! shape = a.shape if shape is None else shape_of(shape)
    ! strides = row_strides(shape) if strides is None else several_ints(strides)
    ! check_strided(a.size, shape, strides, offset)
    mlx_as_strided(a, shape, strides, offset)
astype(a: array, dtype: dtype) = mlx_astype(a, dtype)  # Converted to dtype, by C's rules.
bartlett(M: int) = mlx_bartlett(M)  # Bartlett window of M points.
bitwise_and(a: operand, b: operand) = mlx_bitwise_and(a, b)  # Bitwise and.
bitwise_invert(a: array) = mlx_bitwise_invert(a)  # Every bit flipped.
bitwise_or(a: operand, b: operand) = mlx_bitwise_or(a, b)  # Bitwise or.
bitwise_xor(a: operand, b: operand) = mlx_bitwise_xor(a, b)  # Bitwise exclusive or.
blackman(M: int) = mlx_blackman(M)  # Blackman window of M points.
block_masked_mm(a: array, b: array, block_size: int = 64, mask_out: optional_array = None, mask_lhs: optional_array = None, mask_rhs: optional_array = None) = mlx_block_masked_mm(a, b, block_size, mask_out, mask_lhs, mask_rhs)  # Matrix product with blocks masked out.
broadcast_arrays(*arrays: array) -> tuple = mlx_broadcast_arrays(arrays)  # All arrays broadcast to their common shape.
broadcast_to(a: array, shape: shape) = mlx_broadcast_to(a, shape)  # Broadcast to shape.
ceil(a: array) = mlx_ceil(a)  # Rounded up.
clip(a: array, a_min: weak, a_max: weak) = mlx_clip(a, a_min, a_max)  # Limited to [a_min, a_max]; None leaves a side open.
concatenate(arrays: arrays, axis: axis = 0)  # Joined along an axis, or flattened and joined.
    axis is None: mlx_concatenate(arrays)
    mlx_concatenate_axis(arrays, axis)
conjugate(a: array) = mlx_conjugate(a)  # Complex conjugate.
contiguous(a: array, allow_col_major: bool = False) = mlx_contiguous(a, allow_col_major)  # Row-contiguous in memory; free where it is already.
conv1d(input: array, weight: array, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) = mlx_conv1d(input, weight, stride, padding, dilation, groups)  # 1-D convolution: input (N, W, C), weight (O, W, C / groups).
conv2d(input: array, weight: array, stride: ints = 1, padding: ints = 0, dilation: ints = 1, groups: int = 1)  # 2-D convolution: input (N, H, W, C), weight (O, H, W, C / groups).
    ! stride, padding, dilation = several(stride, 2, "stride"), several(padding, 2, "padding"), several(dilation, 2, "dilation")
    mlx_conv2d(input, weight, stride[0], stride[1], padding[0], padding[1], dilation[0], dilation[1], groups)
conv3d(input: array, weight: array, stride: ints = 1, padding: ints = 0, dilation: ints = 1, groups: int = 1)  # 3-D convolution: input (N, D, H, W, C), weight (O, D, H, W, C / groups).
    ! stride, padding, dilation = several(stride, 3, "stride"), several(padding, 3, "padding"), several(dilation, 3, "dilation")
    mlx_conv3d(input, weight, stride[0], stride[1], stride[2], padding[0], padding[1], padding[2], dilation[0], dilation[1], dilation[2], groups)
conv_general(input: array, weight: array, stride: ints = 1, padding: padding = 0, kernel_dilation: ints = 1, input_dilation: ints = 1, groups: int = 1, flip: bool = False)  # Convolution with any padding, input dilation and flipping; padding may be (low, high).
    ! low, high = padding_pair(padding)
    mlx_conv_general(input, weight, stride, low, high, kernel_dilation, input_dilation, groups, flip)
conv_transpose1d(input: array, weight: array, stride: int = 1, padding: int = 0, dilation: int = 1, output_padding: int = 0, groups: int = 1) = mlx_conv_transpose1d(input, weight, stride, padding, dilation, output_padding, groups)  # 1-D transposed convolution: input (N, W, C).
conv_transpose2d(input: array, weight: array, stride: ints = 1, padding: ints = 0, dilation: ints = 1, output_padding: ints = 0, groups: int = 1)  # 2-D transposed convolution: input (N, H, W, C).
    ! stride, padding, dilation = several(stride, 2, "stride"), several(padding, 2, "padding"), several(dilation, 2, "dilation")
    ! output_padding = several(output_padding, 2, "output_padding")
    mlx_conv_transpose2d(input, weight, stride[0], stride[1], padding[0], padding[1], dilation[0], dilation[1], output_padding[0], output_padding[1], groups)
conv_transpose3d(input: array, weight: array, stride: ints = 1, padding: ints = 0, dilation: ints = 1, output_padding: ints = 0, groups: int = 1)  # 3-D transposed convolution: input (N, D, H, W, C).
    ! stride, padding, dilation = several(stride, 3, "stride"), several(padding, 3, "padding"), several(dilation, 3, "dilation")
    ! output_padding = several(output_padding, 3, "output_padding")
    mlx_conv_transpose3d(input, weight, stride[0], stride[1], stride[2], padding[0], padding[1], padding[2], dilation[0], dilation[1], dilation[2], output_padding[0], output_padding[1], output_padding[2], groups)
copy(a: array) = mlx_copy(a)  # A copy with memory of its own.
cos(a: array) = mlx_cos(a)  # Cosine.
cosh(a: array) = mlx_cosh(a)  # Hyperbolic cosine.
count_nonzero(a: array, *, axis: axes = None, keepdims: bool = False)  # How many elements are not zero, over axes.
    axis is None: mlx_count_nonzero(a, keepdims)
    mlx_count_nonzero_axes(a, axis, keepdims)
cummax(a: array, axis: axis = None, *, reverse: bool = False, inclusive: bool = True)  # Running maximum.
    ! check_sortable(a, axis, "cummax")
    axis is None: mlx_cummax(a, reverse, inclusive)
    mlx_cummax_axis(a, axis, reverse, inclusive)
cummin(a: array, axis: axis = None, *, reverse: bool = False, inclusive: bool = True)  # Running minimum.
    ! check_sortable(a, axis, "cummin")
    axis is None: mlx_cummin(a, reverse, inclusive)
    mlx_cummin_axis(a, axis, reverse, inclusive)
cumprod(a: array, axis: axis = None, *, reverse: bool = False, inclusive: bool = True, dtype: optional_dtype = None)  # Running product.
    ! check_sortable(a, axis, "cumprod")
    axis is None: mlx_cumprod(a, reverse, inclusive, dtype)
    mlx_cumprod_axis(a, axis, reverse, inclusive, dtype)
cumsum(a: array, axis: axis = None, *, reverse: bool = False, inclusive: bool = True, dtype: optional_dtype = None)  # Running sum.
    ! check_sortable(a, axis, "cumsum")
    axis is None: mlx_cumsum(a, reverse, inclusive, dtype)
    mlx_cumsum_axis(a, axis, reverse, inclusive, dtype)
degrees(a: array) = mlx_degrees(a)  # Radians to degrees.
dequantize(w: array, scales: array, biases: optional_array = None, group_size: optional_int = None, bits: optional_int = None, mode: str = "affine", global_scale: optional_array = None, dtype: optional_dtype = None) = mlx_dequantize(w, scales, biases, group_size, bits, mode, global_scale, dtype)  # The matrix that quantize packed.
diag(a: array, k: int = 0) = mlx_diag(a, k)  # The k-th diagonal of a matrix, or the matrix with that diagonal.
diagonal(a: array, offset: int = 0, axis1: int = 0, axis2: int = 1) = mlx_diagonal(a, offset, axis1, axis2)  # Diagonals of the matrices along two axes.
diff(a: array, n: int = 1, axis: int = -1) = mlx_diff(a, n, axis)  # n-th difference between neighbours.
divide(a: operand, b: operand) = mlx_divide(a, b)  # Quotient; integers give float32.
divmod(a: operand, b: operand)  # [floor quotient, remainder].
    ! check_integers(a, b, "divmod")
    mlx_divmod(a, b)
einsum(subscripts: str, *operands: array) = mlx_einsum(subscripts, operands)  # Sum of products by Einstein's notation.
equal(a: operand, b: operand) = mlx_equal(a, b)  # a == b.
erf(a: array) = mlx_erf(a)  # Error function.
erfinv(a: array) = mlx_erfinv(a)  # Inverse error function.
exp(a: array) = mlx_exp(a)  # e to the power of each element.
expand_dims(a: array, axis: ints) = mlx_expand_dims_axes(a, axis)  # New axes of size 1.
expm1(a: array) = mlx_expm1(a)  # exp(a) - 1.
eye(n: int, m: optional_int = None, k: int = 0, dtype: optional_dtype = float32) = mlx_eye(n, n if m is None else index(m), k, dtype or float32)  # Ones on the k-th diagonal.
flatten(a: array, start_axis: int = 0, end_axis: int = -1) = mlx_flatten(a, start_axis, end_axis)  # Axes start_axis to end_axis joined into one.
flip(a: array, axis: axes = None)  # Reversed along axes.
    axis is None: mlx_flip(a)
    mlx_flip_axes(a, axis)
floor(a: array) = mlx_floor(a)  # Rounded down.
floor_divide(a: operand, b: operand)  # Quotient rounded down.
    ! check_integers(a, b, "floor_divide")
    mlx_floor_divide(a, b)
from_fp8(x: array, dtype: dtype = bfloat16) = mlx_from_fp8(x, dtype)  # uint8 fp8 (e4m3) values to dtype.
gather(a: array, indices: positions, axes: ints, slice_sizes: ints)  # Slices at the given positions along axes; shape: index shape + slice_sizes.
    ! indices = checked_positions(indices, a, axes, "gather")
    mlx_gather(a, indices, axes, slice_sizes)
gather_mm(a: array, b: array, lhs_indices: optional_array = None, rhs_indices: optional_array = None, *, sorted_indices: bool = False) = mlx_gather_mm(a, b, lhs_indices, rhs_indices, sorted_indices)  # Matrix product of picked matrices.
gather_qmm(x: array, w: array, scales: array, biases: optional_array = None, lhs_indices: optional_array = None, rhs_indices: optional_array = None, transpose: bool = True, group_size: optional_int = None, bits: optional_int = None, mode: str = "affine", *, sorted_indices: bool = False) = mlx_gather_qmm(x, w, scales, biases, lhs_indices, rhs_indices, transpose, group_size, bits, mode, sorted_indices)  # quantized_matmul of picked matrices.
gather_qqmm(x: array, w: array, scales: optional_array = None, lhs_indices: optional_array = None, rhs_indices: optional_array = None, group_size: optional_int = None, bits: optional_int = None, mode: str = "nvfp4", global_scale_x: optional_array = None, global_scale_w: optional_array = None, *, sorted_indices: bool = False) = mlx_gather_qqmm(x, w, scales, lhs_indices, rhs_indices, group_size, bits, mode, global_scale_x, global_scale_w, sorted_indices)  # qqmm of picked matrices.
greater(a: operand, b: operand) = mlx_greater(a, b)  # a > b.
greater_equal(a: operand, b: operand) = mlx_greater_equal(a, b)  # a >= b.
hadamard_transform(a: array, scale: optional_float = None) = mlx_hadamard_transform(a, scale)  # Walsh-Hadamard transform of the last axis.
hamming(M: int) = mlx_hamming(M)  # Hamming window of M points.
hanning(M: int) = mlx_hanning(M)  # Hann window of M points.
identity(n: int, dtype: optional_dtype = float32) = mlx_identity(n, dtype or float32)  # Square identity matrix.
imag(a: array) = mlx_imag(a)  # Imaginary part.
inner(a: array, b: array) = mlx_inner(a, b)  # Inner product over the last axes.
isclose(a: operand, b: operand, rtol: float = 1e-05, atol: float = 1e-08, *, equal_nan: bool = False) = mlx_isclose(a, b, rtol, atol, equal_nan)  # Where the difference is at most atol + rtol * |b|.
isfinite(a: array) = mlx_isfinite(a)  # Where elements are finite.
isinf(a: array) = mlx_isinf(a)  # Where elements are infinite.
isnan(a: array) = mlx_isnan(a)  # Where elements are NaN.
isneginf(a: array) = mlx_isneginf(a)  # Where elements are -infinity.
isposinf(a: array) = mlx_isposinf(a)  # Where elements are +infinity.
kron(a: array, b: array) = mlx_kron(a, b)  # Kronecker product.
left_shift(a: operand, b: operand) = mlx_left_shift(a, b)  # Bits shifted left.
less(a: operand, b: operand) = mlx_less(a, b)  # a < b.
less_equal(a: operand, b: operand) = mlx_less_equal(a, b)  # a <= b.
log(a: array) = mlx_log(a)  # Natural logarithm.
log10(a: array) = mlx_log10(a)  # Logarithm to base 10.
log1p(a: array) = mlx_log1p(a)  # log(1 + a).
log2(a: array) = mlx_log2(a)  # Logarithm to base 2.
logaddexp(a: operand, b: operand) = mlx_logaddexp(a, b)  # log(exp(a) + exp(b)).
logcumsumexp(a: array, axis: axis = None, *, reverse: bool = False, inclusive: bool = True)  # Running log(sum(exp)).
    ! check_sortable(a, axis, "logcumsumexp")
    axis is None: mlx_logcumsumexp(a, reverse, inclusive)
    mlx_logcumsumexp_axis(a, axis, reverse, inclusive)
logical_and(a: operand, b: operand) = mlx_logical_and(a, b)  # Whether both are true.
logical_not(a: array) = mlx_logical_not(a)  # Whether it is false.
logical_or(a: operand, b: operand) = mlx_logical_or(a, b)  # Whether either is true.
logical_xor(a: operand, b: operand) = mlx_logical_xor(a, b)  # Whether exactly one is true.
logsumexp(a: array, axis: axes = None, keepdims: bool = False)  # log(sum(exp(a))) over axes.
    axis is None: mlx_logsumexp(a, keepdims)
    mlx_logsumexp_axes(a, axis, keepdims)
masked_scatter(a: array, mask: array, src: array) = mlx_masked_scatter(a, mask, src)  # a with the elements under mask replaced by those of src, in order.
matmul(a: array, b: array) = mlx_matmul(a, b)  # Matrix product, with broadcasting of the leading axes.
max(a: array, axis: axes = None, keepdims: bool = False)  # Largest element over axes.
    axis is None: mlx_max(a, keepdims)
    mlx_max_axes(a, axis, keepdims)
maximum(a: operand, b: operand) = mlx_maximum(a, b)  # The larger of two, NaN if either is.
mean(a: array, axis: axes = None, keepdims: bool = False)  # Mean over axes.
    axis is None: mlx_mean(a, keepdims)
    mlx_mean_axes(a, axis, keepdims)
median(a: array, axis: axes = None, keepdims: bool = False)  # Median over axes.
    axis is None: mlx_median(a, keepdims)
    mlx_median_axes(a, axis, keepdims)
meshgrid(*arrays: array, sparse: bool = False, indexing: str = "xy") -> tuple = mlx_meshgrid(arrays, sparse, indexing)  # Coordinate grids of the given axes.
min(a: array, axis: axes = None, keepdims: bool = False)  # Smallest element over axes.
    axis is None: mlx_min(a, keepdims)
    mlx_min_axes(a, axis, keepdims)
minimum(a: operand, b: operand) = mlx_minimum(a, b)  # The smaller of two, NaN if either is.
moveaxis(a: array, source: int, destination: int) = mlx_moveaxis(a, source, destination)  # One axis moved to another place.
multiply(a: operand, b: operand) = mlx_multiply(a, b)  # Product, with broadcasting.
nan_to_num(a: array, nan: float = 0, posinf: optional_float = None, neginf: optional_float = None) = mlx_nan_to_num(a, nan, posinf, neginf)  # NaN and infinities replaced; infinities by the dtype's limits when None.
negative(a: array) = mlx_negative(a)  # -a.
not_equal(a: operand, b: operand) = mlx_not_equal(a, b)  # a != b.
number_of_elements(a: array, axes: ints, inverted: bool = False, dtype: dtype = int32) = mlx_number_of_elements(a, axes, inverted, dtype)  # Product of the sizes of axes (its inverse if inverted), as an array.
ones(shape: shape, dtype: optional_dtype = float32) = mlx_ones(shape, dtype or float32)  # Ones.
ones_like(a: array, dtype: optional_dtype = None)  # Ones in a's shape, and its dtype unless one is given.
    dtype is None: mlx_ones_like(a)
    mlx_ones_like_dtype(a, dtype)
outer(a: array, b: array) = mlx_outer(a, b)  # Outer product of flattened arrays.
partition(a: array, kth: int, axis: axis = -1)  # The kth smallest in place, smaller ones before it.
    ! check_sortable(a, axis, "partition")
    axis is None: mlx_partition(a, kth)
    mlx_partition_axis(a, kth, axis)
positive(a: array) = mlx_positive(a)  # +a.
power(a: operand, b: operand)  # a to the power of b.
    ! check_integers(a, b, "power")
    mlx_power(a, b)
prod(a: array, axis: axes = None, keepdims: bool = False)  # Product over axes.
    axis is None: mlx_prod(a, keepdims)
    mlx_prod_axes(a, axis, keepdims)
put_along_axis(a: array, indices: indices, values: value, axis: axis = None)  # a with values put at indices along an axis (of the flattened array for None).
    ! indices = checked_indices(indices, a, axis, "put_along_axis")
    axis is None: mlx_reshape(put_along_axis(reshape(a, -1), reshape(indices, -1), reshape(values, -1), 0), a.shape)
    mlx_put_along_axis(a, indices, values, axis)
qqmm(x: array, w: array, scales: optional_array = None, group_size: optional_int = None, bits: optional_int = None, mode: str = "nvfp4", global_scale_x: optional_array = None, global_scale_w: optional_array = None) = mlx_qqmm(x, w, scales, group_size, bits, mode, global_scale_x, global_scale_w)  # Matrix product with both sides quantized.
quantize(w: array, group_size: optional_int = None, bits: optional_int = None, mode: str = "affine", *, global_scale: optional_array = None) -> tuple = mlx_quantize(w, group_size, bits, mode, global_scale)  # (packed, scales, biases), without biases in the mx and nv modes.
quantized_matmul(x: array, w: array, scales: array, biases: optional_array = None, transpose: bool = True, group_size: optional_int = None, bits: optional_int = None, mode: str = "affine")  # x @ w with w quantized (transposed by default).
    ! check_rows(x, "quantized_matmul")
    mlx_quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode)
radians(a: array) = mlx_radians(a)  # Degrees to radians.
real(a: array) = mlx_real(a)  # Real part.
reciprocal(a: array) = mlx_reciprocal(a)  # 1 / a.
remainder(a: operand, b: operand)  # Remainder with the divisor's sign.
    ! check_integers(a, b, "remainder")
    mlx_remainder(a, b)
repeat(array: array, repeats: int, axis: axis = None)  # Each element repeated, along an axis or flattened.
    axis is None: mlx_repeat(array, repeats)
    mlx_repeat_axis(array, repeats, axis)
reshape(a: array, shape: ints) = mlx_reshape(a, shape)  # Another shape of the same size; one dimension may be -1.
right_shift(a: operand, b: operand) = mlx_right_shift(a, b)  # Bits shifted right.
roll(a: array, shift: ints, axis: axes = None)  # Elements moved round, along axes or flattened.
    axis is None: mlx_roll(a, shift)
    is_int(axis): mlx_roll_axis(a, shift, axis)
    mlx_roll_axes(a, shift, axis)
round(a: array, decimals: int = 0) = mlx_round(a, decimals)  # Rounded, half to even.
rsqrt(a: array) = mlx_rsqrt(a)  # 1 / sqrt(a).
scatter(a: array, indices: positions, updates: array, axes: ints)  # a with slices replaced; updates: index shape + slice shape.
    ! indices = checked_positions(indices, a, axes, "scatter")
    mlx_scatter(a, indices, updates, axes)
scatter_add(a: array, indices: positions, updates: array, axes: ints)  # a with slices added at positions, repeated ones accumulating.
    ! indices = checked_positions(indices, a, axes, "scatter_add")
    mlx_scatter_add(a, indices, updates, axes)
scatter_add_axis(a: array, indices: indices, values: value, axis: int)  # a with values added at indices along an axis.
    ! indices = checked_indices(indices, a, axis, "scatter_add_axis")
    mlx_scatter_add_axis(a, indices, values, axis)
scatter_max(a: array, indices: positions, updates: array, axes: ints)  # a with the larger of slices and updates.
    ! indices = checked_positions(indices, a, axes, "scatter_max")
    mlx_scatter_max(a, indices, updates, axes)
scatter_min(a: array, indices: positions, updates: array, axes: ints)  # a with the smaller of slices and updates.
    ! indices = checked_positions(indices, a, axes, "scatter_min")
    mlx_scatter_min(a, indices, updates, axes)
scatter_prod(a: array, indices: positions, updates: array, axes: ints)  # a with slices multiplied at positions.
    ! indices = checked_positions(indices, a, axes, "scatter_prod")
    mlx_scatter_prod(a, indices, updates, axes)
searchsorted(sorted_sequence: array, values: array, side: str = "left") = mlx_searchsorted(sorted_sequence, values, side)  # Where values would be inserted to keep the order.
segmented_mm(a: array, b: array, segments: array) = mlx_segmented_mm(a, b, segments)  # Matrix products over segments of the inner dimension.
sigmoid(a: array) = mlx_sigmoid(a)  # 1 / (1 + exp(-a)).
sign(a: array) = mlx_sign(a)  # -1, 0 or 1.
sin(a: array) = mlx_sin(a)  # Sine.
sinh(a: array) = mlx_sinh(a)  # Hyperbolic sine.
slice(a: array, start_indices: indices, axes: ints, slice_size: ints)  # A slice of fixed size whose start is an array.
    ! start_indices = checked_start(start_indices, a, axes, slice_size, "slice")
    mlx_slice_dynamic(a, start_indices, axes, slice_size)
slice_update(a: array, update: value, start_indices: indices, axes: ints)  # a with update put where start_indices says.
    ! sizes = [update.shape[axis] for axis in several_ints(axes)]
    ! start_indices = checked_start(start_indices, a, axes, sizes, "slice_update")
    mlx_slice_update_dynamic(a, update, start_indices, axes)
softmax(a: array, axis: axes = None, *, precise: bool = False)  # Softmax over axes; precise accumulates in float32.
    axis is None: mlx_softmax(a, precise)
    mlx_softmax_axes(a, axis, precise)
sort(a: array, axis: axis = -1)  # Sorted ascending, NaN last.
    ! check_sortable(a, axis, "sort")
    axis is None: mlx_sort(a)
    mlx_sort_axis(a, axis)
split(a: array, indices_or_sections: ints, axis: int = 0)  # Equal parts along an axis, or parts at indices.
    is_int(indices_or_sections): mlx_split(a, indices_or_sections, axis)
    mlx_split_sections(a, indices_or_sections, axis)
sqrt(a: array) = mlx_sqrt(a)  # Square root.
square(a: array) = mlx_square(a)  # a * a.
squeeze(a: array, axis: axes = None)  # Without axes of size 1.
    axis is None: mlx_squeeze(a)
    mlx_squeeze_axes(a, axis)
stack(arrays: arrays, axis: int = 0) = mlx_stack_axis(arrays, axis)  # Joined along a new axis.
std(a: array, axis: axes = None, keepdims: bool = False, ddof: int = 0)  # Standard deviation over axes.
    axis is None: mlx_std(a, keepdims, ddof)
    mlx_std_axes(a, axis, keepdims, ddof)
stop_gradient(a: array) = mlx_stop_gradient(a)  # a, constant for gradients.
strided_slice(a: array, start: ints, stop: ints, strides: ints) = mlx_slice(a, start, stop, strides)  # a[start:stop:strides] with one entry per axis; negative strides reverse.
strided_slice_update(a: array, update: value, start: ints, stop: ints, strides: ints) = mlx_slice_update(a, update, start, stop, strides)  # a with a[start:stop:strides] replaced.
strided_slice_update_add(a: array, update: value, start: ints, stop: ints, strides: ints) = mlx_slice_update_add(a, update, start, stop, strides)  # a with update added to a[start:stop:strides].
strided_slice_update_max(a: array, update: value, start: ints, stop: ints, strides: ints) = mlx_slice_update_max(a, update, start, stop, strides)  # a with the larger of update and a[start:stop:strides].
strided_slice_update_min(a: array, update: value, start: ints, stop: ints, strides: ints) = mlx_slice_update_min(a, update, start, stop, strides)  # a with the smaller of update and a[start:stop:strides].
strided_slice_update_prod(a: array, update: value, start: ints, stop: ints, strides: ints) = mlx_slice_update_prod(a, update, start, stop, strides)  # a with a[start:stop:strides] multiplied by update.
subtract(a: operand, b: operand) = mlx_subtract(a, b)  # Difference, with broadcasting.
sum(a: array, axis: axes = None, keepdims: bool = False)  # Sum over axes.
    axis is None: mlx_sum(a, keepdims)
    mlx_sum_axes(a, axis, keepdims)
swapaxes(a: array, axis1: int, axis2: int) = mlx_swapaxes(a, axis1, axis2)  # Two axes swapped.
take(a: array, indices: indices, axis: axis = None)  # Elements or slices at indices, along an axis or flattened.
    ! indices = checked_indices(indices, a, axis, "take")
    axis is None: mlx_take(a, indices)
    mlx_take_axis(a, indices, axis)
take_along_axis(a: array, indices: indices, axis: axis = -1)  # Elements at indices that match a's other axes.
    ! indices = checked_indices(indices, a, axis, "take_along_axis")
    axis is None: mlx_take_along_axis(reshape(a, -1), indices, 0)
    mlx_take_along_axis(a, indices, axis)
tan(a: array) = mlx_tan(a)  # Tangent.
tanh(a: array) = mlx_tanh(a)  # Hyperbolic tangent.
tensordot(a: array, b: array, axes: contraction = 2)  # Product summed over axes: the last n with the first n, or two lists of axes.
    isinstance(axes, int): mlx_tensordot_axis(a, b, axes)
    mlx_tensordot(a, b, axes[0], axes[1])
tile(a: array, reps: ints) = mlx_tile(a, reps)  # Repeated along every axis.
to_fp8(x: array) = mlx_to_fp8(x)  # Rounded to fp8 (e4m3), as uint8.
topk(a: array, k: int, axis: axis = -1)  # The k largest elements, ascending.
    ! check_sortable(a, axis, "topk")
    axis is None: mlx_topk(a, k)
    mlx_topk_axis(a, k, axis)
trace(a: array, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: optional_dtype = None) = mlx_trace_axes(a, offset, axis1, axis2, dtype or a.dtype)  # Sum along a diagonal.
transpose(a: array, axes: axes = None)  # Axes permuted, reversed when none are given.
    axes is None: mlx_transpose(a)
    mlx_transpose_axes(a, axes)
tri(n: int, m: optional_int = None, k: int = 0, dtype: optional_dtype = None) = mlx_tri(n, n if m is None else index(m), k, dtype or float32)  # Ones on and below the k-th diagonal.
tril(x: array, k: int = 0) = mlx_tril(x, k)  # Zeros above the k-th diagonal.
triu(x: array, k: int = 0) = mlx_triu(x, k)  # Zeros below the k-th diagonal.
trunc(a: array) = mlx_trunc(a)  # Rounded towards zero.
unflatten(a: array, axis: int, shape: ints) = mlx_unflatten(a, axis, shape)  # One axis split into several.
unstack(x: array, *, axis: int = 0) -> tuple = mlx_unstack_axis(x, axis)  # The slices along an axis.
var(a: array, axis: axes = None, keepdims: bool = False, ddof: int = 0)  # Variance over axes.
    axis is None: mlx_var(a, keepdims, ddof)
    mlx_var_axes(a, axis, keepdims, ddof)
vecdot(a: array, b: array, *, axis: int = -1) = mlx_vecdot(a, b, axis)  # Dot products along an axis, a conjugated.
view(a: array, dtype: dtype) = mlx_view(a, dtype)  # The bytes seen as another dtype.
where(condition: array, x: operand, y: operand) = mlx_where(condition, x, y)  # x where condition holds, else y.
zeros(shape: shape, dtype: optional_dtype = float32) = mlx_zeros(shape, dtype or float32)  # Zeros.
zeros_like(a: array, dtype: optional_dtype = None)  # Zeros in a's shape, and its dtype unless one is given.
    dtype is None: mlx_zeros_like(a)
    mlx_zeros_like_dtype(a, dtype)
"""

FAST = """
cross_entropy(logits: array, targets: array) = mlx_fast_cross_entropy(logits, targets)  # Cross entropy of the last axis with class indices.
layer_norm(x: array, weight: optional_array, bias: optional_array, eps: float) = mlx_fast_layer_norm(x, weight, bias, eps)  # Layer normalisation of the last axis.
rms_norm(x: array, weight: optional_array, eps: float) = mlx_fast_rms_norm(x, weight, eps)  # Root-mean-square normalisation of the last axis.
rope(a: array, dims: int, *, traditional: bool, base: optional_float, scale: float, offset: offset, freqs: optional_array = None)  # Rotary position encoding of the first dims features; give base or freqs.
    is_int(offset): mlx_fast_rope(a, dims, traditional, base, scale, offset, freqs)
    ! offset = as_array(offset)
    mlx_fast_rope_dynamic(a, dims, traditional, base, scale, offset, freqs)
scaled_dot_product_attention(q: array, k: array, v: array, *, scale: float, mask: mask = None, sinks: optional_array = None, force_fused: bool = False)  # softmax(scale * q @ k.T + mask) @ v over (batch, heads, length, features); mask "causal" or an array.
    mask is None: mlx_fast_scaled_dot_product_attention(q, k, v, scale, "", 0, sinks, force_fused)
    isinstance(mask, str): mlx_fast_scaled_dot_product_attention(q, k, v, scale, text(mask), 0, sinks, force_fused)
    ! mask = as_array(mask)
    mlx_fast_scaled_dot_product_attention(q, k, v, scale, "array", mask, sinks, force_fused)
"""

FFT = """
fft(a: array, n: optional_int = None, axis: int = -1, norm: norm = "backward") = mlx_fft_fft(a, fft_sizes.line(a, n, axis), axis, norm)  # Fourier transform along an axis, complex64.
ifft(a: array, n: optional_int = None, axis: int = -1, norm: norm = "backward") = mlx_fft_ifft(a, fft_sizes.line(a, n, axis), axis, norm)  # Inverse of fft.
rfft(a: array, n: optional_int = None, axis: int = -1, norm: norm = "backward") = mlx_fft_rfft(a, fft_sizes.line(a, n, axis), axis, norm)  # Fourier transform of real data: the first n // 2 + 1 values.
irfft(a: array, n: optional_int = None, axis: int = -1, norm: norm = "backward") = mlx_fft_irfft(a, fft_sizes.real_line(a, n, axis), axis, norm)  # Inverse of rfft.
fft2(a: array, s: optional_ints = None, axes: optional_ints = (-2, -1), norm: norm = "backward")  # Fourier transform over two axes.
    ! s, axes = fft_sizes.several(a, s, axes)
    mlx_fft_fft2(a, s, axes, norm)
ifft2(a: array, s: optional_ints = None, axes: optional_ints = (-2, -1), norm: norm = "backward")  # Inverse of fft2.
    ! s, axes = fft_sizes.several(a, s, axes)
    mlx_fft_ifft2(a, s, axes, norm)
rfft2(a: array, s: optional_ints = None, axes: optional_ints = (-2, -1), norm: norm = "backward")  # Fourier transform of real data over two axes.
    ! s, axes = fft_sizes.several(a, s, axes)
    mlx_fft_rfft2(a, s, axes, norm)
irfft2(a: array, s: optional_ints = None, axes: optional_ints = (-2, -1), norm: norm = "backward")  # Inverse of rfft2.
    ! s, axes = fft_sizes.real_several(a, s, axes)
    mlx_fft_irfft2(a, s, axes, norm)
fftn(a: array, s: optional_ints = None, axes: optional_ints = None, norm: norm = "backward")  # Fourier transform over axes, all by default.
    ! s, axes = fft_sizes.several(a, s, axes)
    mlx_fft_fftn(a, s, axes, norm)
ifftn(a: array, s: optional_ints = None, axes: optional_ints = None, norm: norm = "backward")  # Inverse of fftn.
    ! s, axes = fft_sizes.several(a, s, axes)
    mlx_fft_ifftn(a, s, axes, norm)
rfftn(a: array, s: optional_ints = None, axes: optional_ints = None, norm: norm = "backward")  # Fourier transform of real data over axes.
    ! s, axes = fft_sizes.several(a, s, axes)
    mlx_fft_rfftn(a, s, axes, norm)
irfftn(a: array, s: optional_ints = None, axes: optional_ints = None, norm: norm = "backward")  # Inverse of rfftn.
    ! s, axes = fft_sizes.real_several(a, s, axes)
    mlx_fft_irfftn(a, s, axes, norm)
fftshift(a: array, axes: axes = None)  # Zero frequency moved to the middle.
    ! axes = range(a.ndim) if axes is None else axes
    mlx_fft_fftshift(a, axes)
ifftshift(a: array, axes: axes = None)  # Inverse of fftshift.
    ! axes = range(a.ndim) if axes is None else axes
    mlx_fft_ifftshift(a, axes)
fftfreq(n: int, d: float = 1.0) = mlx_fft_fftfreq(n, d)  # Frequencies of fft's values.
rfftfreq(n: int, d: float = 1.0) = mlx_fft_rfftfreq(n, d)  # Frequencies of rfft's values.
"""

LINALG = """
cholesky(a: array, upper: bool = False) = mlx_linalg_cholesky(a, upper)  # Cholesky factor.
cholesky_inv(a: array, upper: bool = False) = mlx_linalg_cholesky_inv(a, upper)  # Inverse of the matrix whose Cholesky factor is given.
cross(a: array, b: array, axis: int = -1) = mlx_linalg_cross(a, b, axis)  # Cross product.
det(a: array) = mlx_linalg_det(a)  # Determinant.
eig(a: array) = mlx_linalg_eig(a)  # (eigenvalues, eigenvectors), complex.
eigh(a: array, UPLO: str = "L") = mlx_linalg_eigh(a, UPLO)  # (eigenvalues, eigenvectors) of a symmetric matrix.
eigvals(a: array) = mlx_linalg_eigvals(a)  # Eigenvalues, complex.
eigvalsh(a: array, UPLO: str = "L") = mlx_linalg_eigvalsh(a, UPLO)  # Eigenvalues of a symmetric matrix.
inv(a: array) = mlx_linalg_inv(a)  # Inverse matrix.
lu(a: array) -> tuple = mlx_linalg_lu(a)  # (permutation, L, U).
lu_factor(a: array) = mlx_linalg_lu_factor(a)  # (LU, pivots).
norm(a: array, ord: order = None, axis: axes = None, keepdims: bool = False)  # Vector or matrix norm.
    ord is None: mlx_linalg_norm_l2(a, None if axis is None else several_ints(axis), keepdims)
    isinstance(ord, str): mlx_linalg_norm_matrix(a, text(ord), None if axis is None else several_ints(axis), keepdims)
    mlx_linalg_norm(a, ord, None if axis is None else several_ints(axis), keepdims)
pinv(a: array) = mlx_linalg_pinv(a)  # Pseudo-inverse.
qr(a: array) = mlx_linalg_qr(a)  # (Q, R).
slogdet(a: array) = mlx_linalg_slogdet(a)  # (sign, log |determinant|).
solve(a: array, b: array) = mlx_linalg_solve(a, b)  # x with a @ x = b.
solve_triangular(a: array, b: array, *, upper: bool = False) = mlx_linalg_solve_triangular(a, b, upper)  # x with a @ x = b, a triangular.
svd(a: array, compute_uv: bool = True) -> svd = mlx_linalg_svd(a, compute_uv)  # (U, S, Vt), or S alone.
tri_inv(a: array, upper: bool = False) = mlx_linalg_tri_inv(a, upper)  # Inverse of a triangular matrix.
"""

RANDOM = """
bernoulli(p: array = 0.5, shape: optional_ints = None, key: optional_array = None)  # True with probability p.
    ! shape = p.shape if shape is None else shape_of(shape)
    mlx_random_bernoulli(p, shape, key)
bits(shape: shape = (), width: int = 4, key: optional_array = None) = mlx_random_bits(shape, width, key)  # Random unsigned integers of width bytes.
categorical(logits: array, axis: int = -1, shape: optional_ints = None, num_samples: optional_int = None, key: optional_array = None)  # Class indices drawn from unnormalised log probabilities along an axis.
    ! one_of(shape=shape, num_samples=num_samples)
    shape is not None: mlx_random_categorical_shape(logits, axis, shape, key)
    num_samples is not None: mlx_random_categorical_num_samples(logits, axis, index(num_samples), key)
    mlx_random_categorical(logits, axis, key)
gumbel(shape: shape = (), dtype: optional_dtype = float32, key: optional_array = None) = mlx_random_gumbel(shape, dtype or float32, key)  # Standard Gumbel values.
laplace(shape: shape = (), dtype: optional_dtype = float32, loc: float = 0.0, scale: float = 1.0, key: optional_array = None) = mlx_random_laplace(shape, dtype or float32, loc, scale, key)  # Laplace values.
multivariate_normal(mean: array, cov: array, shape: shape = (), dtype: optional_dtype = float32, key: optional_array = None) = mlx_random_multivariate_normal(mean, cov, shape, dtype or float32, key)  # Normal vectors with a mean and a covariance.
normal(shape: shape = (), dtype: optional_dtype = float32, loc: location = None, scale: location = None, key: optional_array = None)  # Normal values.
    is_number(loc) and is_number(scale): mlx_random_normal(shape, dtype or float32, 0.0 if loc is None else loc, 1.0 if scale is None else scale, key)
    ! loc, scale = optional(loc), optional(scale)
    mlx_random_normal_broadcast(shape, dtype or float32, loc, scale, key)
permutation(x: permuted, axis: int = 0, key: optional_array = None)  # x shuffled along an axis, or 0 .. x - 1 shuffled.
    is_int(x): mlx_random_permutation_arange(x, key)
    ! x = as_array(x)
    mlx_random_permutation(x, axis, key)
randint(low: array, high: array, shape: shape = (), dtype: optional_dtype = int32, key: optional_array = None) = mlx_random_randint(low, high, shape, dtype or int32, key)  # Integers in [low, high).
split(key: array, num: int = 2) = mlx_random_split_num(key, num)  # num new keys, one a row.
truncated_normal(lower: array, upper: array, shape: optional_ints = None, dtype: optional_dtype = float32, key: optional_array = None)  # Normal values limited to [lower, upper].
    ! shape = broadcast_shapes(lower.shape, upper.shape) if shape is None else shape_of(shape)
    mlx_random_truncated_normal(lower, upper, shape, dtype or float32, key)
uniform(low: array = 0, high: array = 1, shape: shape = (), dtype: optional_dtype = float32, key: optional_array = None) = mlx_random_uniform(low, high, shape, dtype or float32, key)  # Uniform values in [low, high).
"""

ELSEWHERE = {
    # C functions that a table row does not call, and why.
    **dict.fromkeys(
        (
            "mlx_addmm",
            "mlx_arange",
            "mlx_atleast_1d",
            "mlx_atleast_2d",
            "mlx_atleast_3d",
            "mlx_depends",
            "mlx_full",
            "mlx_full_like",
            "mlx_linspace",
            "mlx_linspace_endpoint",
            "mlx_pad",
            "mlx_pad_symmetric",
        ),
        "composed.py: arguments that this notation does not express",
    ),
    **dict.fromkeys(("mlx_random_key", "mlx_random_seed"), "composed.py: no result array or no stream"),
    "mlx_random_split": "split with num=2 gives the same keys as rows",
    **dict.fromkeys(
        (
            "mlx_all_axis",
            "mlx_any_axis",
            "mlx_count_nonzero_axis",
            "mlx_expand_dims",
            "mlx_flip_axis",
            "mlx_logsumexp_axis",
            "mlx_max_axis",
            "mlx_mean_axis",
            "mlx_median_axis",
            "mlx_min_axis",
            "mlx_prod_axis",
            "mlx_softmax_axis",
            "mlx_squeeze_axis",
            "mlx_std_axis",
            "mlx_sum_axis",
            "mlx_var_axis",
        ),
        "the _axes form with one axis is the same",
    ),
    **dict.fromkeys(
        (
            "mlx_gather_single",
            "mlx_scatter_single",
            "mlx_scatter_add_single",
            "mlx_scatter_max_single",
            "mlx_scatter_min_single",
            "mlx_scatter_prod_single",
        ),
        "the form with a list of one index array is the same",
    ),
    "mlx_stack": "axis 0 of mlx_stack_axis",
    "mlx_trace": "the defaults of mlx_trace_axes",
    "mlx_unstack": "axis 0 of mlx_unstack_axis",
}
"""Every function of the headers below that no row calls."""

HEADERS = ("ops.h", "fft.h", "linalg.h", "random.h")

ADAPTED = (
    "cummax",
    "cummax_axis",
    "cummin",
    "cummin_axis",
    "cumprod",
    "cumprod_axis",
    "cumsum",
    "cumsum_axis",
    "fast_scaled_dot_product_attention",
    "fft_fft",
    "fft_fft2",
    "fft_fftn",
    "fft_ifft",
    "fft_ifft2",
    "fft_ifftn",
    "fft_irfft",
    "fft_irfft2",
    "fft_irfftn",
    "fft_rfft",
    "fft_rfft2",
    "fft_rfftn",
    "flip",
    "flip_axes",
    "logcumsumexp",
    "logcumsumexp_axis",
    "median",
    "median_axes",
    "ones_like_dtype",
    "trace_axes",
    "unstack_axis",
    "zeros_like_dtype",
)
"""Calls made through mlxc_py.adapted, which also knows the 0.6 forms."""
