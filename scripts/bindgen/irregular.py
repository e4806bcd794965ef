"""What the headers cannot say and no rule covers; each table raises when the models move beneath it."""

from __future__ import annotations

from bindgen.model import BindgenError, Models

# Functions whose signature changed under the same name -> the name first exported together with the newer form.
CHANGED_IN_07 = {
    "mlx_cummax": "mlx_cumsum_axis",
    "mlx_cummin": "mlx_cumsum_axis",
    "mlx_cumprod": "mlx_cumsum_axis",
    "mlx_cumsum": "mlx_cumsum_axis",
    "mlx_detail_compile_clear_cache": "mlx_compile_cache_new",
    "mlx_detail_compile_erase": "mlx_compile_cache_new",
    "mlx_fast_scaled_dot_product_attention": "mlx_compile_cache_new",
    "mlx_logcumsumexp": "mlx_logcumsumexp_axis",
    "mlx_median": "mlx_median_axes",
    "mlx_trace": "mlx_trace_axes",
}
CHANGED_IN_06 = {
    "mlx_distributed_group_split": "mlx_distributed_group_new",
    "mlx_distributed_init": "mlx_distributed_group_new",
    **{
        f"mlx_fft_{inverse}{kind}fft{n}": "mlx_fft_fftfreq"
        for inverse in ("", "i")
        for kind in ("", "r")
        for n in ("", "2", "n")
    },
}
VARIADIC = {"_mlx_error"}
HALF_ACCESSORS = {f"mlx_array_{kind}_{dtype}" for kind in ("item", "data") for dtype in ("float16", "bfloat16")}
# Structs passed by value that are not one register; ctypes passes them as they are.
STRUCTS_BY_VALUE = {"mlx_io_vtable", "mlx_map_string_to_array_iterator", "mlx_map_string_to_string_iterator"}
OPTIONALS = {"mlx_optional_dtype", "mlx_optional_float", "mlx_optional_int"}


def check(models: Models) -> None:
    """Raise BindgenError when a table no longer says what the models say."""
    new, old = models.mlx_07, models.mlx_06
    _same("CHANGED_IN_07", set(CHANGED_IN_07), {f.name for f in old.functions if new.by_name[f.name].abi != f.abi})
    _same("CHANGED_IN_06", set(CHANGED_IN_06), {f.name for f in old.older})
    _same("VARIADIC", VARIADIC, {f.name for f in new.functions if f.variadic})
    _same("HALF_ACCESSORS", HALF_ACCESSORS, {f.name for f in new.functions if _mentions_half(f.abi)})
    _same("STRUCTS_BY_VALUE", STRUCTS_BY_VALUE | OPTIONALS, set(new.structs) - new.handles)
    markers = {*CHANGED_IN_07.values(), *CHANGED_IN_06.values()}
    if missing := sorted(markers - set(new.by_name)):
        raise BindgenError(f"irregular.py: markers that no longer exist: {', '.join(missing)}")
    for marker in sorted(set(CHANGED_IN_07.values())):
        if marker in old.by_name:
            raise BindgenError(f"irregular.py: {marker} is in 0.6 already, so it marks no 0.7 signature")


def _mentions_half(abi: tuple[str, ...]) -> bool:
    return any("float16_t" in text for text in abi)


def _same(table: str, listed: set[str], found: set[str]) -> None:
    if listed != found:
        raise BindgenError(
            f"irregular.py: {table} is out of step with the headers: "
            f"missing {sorted(found - listed)}, no longer there {sorted(listed - found)}"
        )
