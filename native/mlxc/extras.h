/* What libmlxc exports beyond mlx-c. Nothing in mlxc_py needs them: with an official libmlxc they are absent. */
#pragma once
#include "generated/mlxc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Release of MLX whose headers this library was built with ("0.32.4"). A static string. */
MLXC_API const char* mlxc_py_build_mlx_version(void);

/* Whether the array stands for an argument or an intermediate of a function being traced, so has no data. */
MLXC_API int mlxc_py_array_is_tracer(bool* res, mlx_array arr);

/* Like mlx_array_new_data_managed_payload, but also on the CPU without a copy: the array reads `data` (row-major)
 * where it is, and MLX never writes there. `dtor` is called with `payload` once, on whichever thread drops the last
 * reference; on failure it is not called. 8 bytes before `data` must be readable if mlx_get_array_buffer_size is to be
 * called on it. */
MLXC_API mlx_array mlxc_py_array_new_borrowed(
    void* data, const int* shape, int dim, mlx_dtype dtype, void* payload, void (*dtor)(void*));

/* An evaluated row-contiguous array whose elements are whatever the memory held: its maker fills them through
 * mlx_array_data_uint8 before anyone else sees it. Host-writable on every back end (malloc'ed, unified or managed). */
MLXC_API mlx_array mlxc_py_array_new_uninitialized(const int* shape, int dim, mlx_dtype dtype);

#ifdef __cplusplus
}
#endif
