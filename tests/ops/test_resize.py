"""Resize against ONNX Runtime's CPU provider, and against ONNX's reference where that provider refuses or differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]
COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]


def sizes(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest(check: Check, draw: Draw, coordinates: str, rounding: str) -> None:
    x = draw(np.float32, 1, 2, 5, 6)
    how = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    # at exact ties the CPU provider's symmetric positions are one rounding error off
    oracle = "reference" if coordinates == "half_pixel_symmetric" else "cpu"
    for target in ((1, 2, 10, 9), (1, 2, 3, 4), (1, 2, 1, 6)):
        check("Resize", x, None, None, sizes(*target), expect=oracle, mode="nearest", **how)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolated(check: Check, draw: Draw, mode: str, coordinates: str) -> None:
    x = draw(np.float32, 1, 2, 5, 6)
    for target in ((1, 2, 10, 9), (1, 2, 3, 4), (1, 2, 7, 1)):
        check("Resize", x, None, None, sizes(*target), mode=mode, coordinate_transformation_mode=coordinates, rtol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 0.5, 0.7), (1, 1, 1.5, 1)])
def test_scales(check: Check, draw: Draw, mode: str, scales: tuple[float, ...]) -> None:
    check("Resize", draw(np.float32, 1, 2, 5, 6), None, np.array(scales, np.float32), mode=mode, rtol=1e-4)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
def test_antialias(check: Check, draw: Draw, mode: str, exclude: int) -> None:
    x = draw(np.float32, 1, 1, 8, 9)
    check(
        "Resize",
        x,
        None,
        None,
        sizes(1, 1, 4, 5),
        expect="reference",
        mode=mode,
        antialias=1,
        exclude_outside=exclude,
        rtol=1e-4,
    )


def test_cubic_that_excludes_what_lies_outside(check: Check, draw: Draw) -> None:
    check(
        "Resize",
        draw(np.float32, 1, 1, 4, 4),
        None,
        None,
        sizes(1, 1, 7, 9),
        mode="cubic",
        exclude_outside=1,
        cubic_coeff_a=-0.5,
        rtol=1e-4,
    )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crop(check: Check, draw: Draw, mode: str) -> None:
    roi = np.array([0, 0, 0.2, 0.3, 1, 1, 0.8, 1.4], np.float32)
    x = draw(np.float32, 1, 2, 6, 7)
    check(
        "Resize",
        x,
        roi,
        None,
        sizes(1, 2, 4, 5),
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.0,
        rtol=1e-4,
    )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(("coordinates", "oracle"), [("align_corners", "reference"), ("tf_crop_and_resize", "cpu")])
def test_scales_to_no_whole_size(check: Check, draw: Draw, mode: str, coordinates: str, oracle: str) -> None:
    roi = np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], np.float32) if oracle == "cpu" else None
    scales = np.array([1, 1, 1.7, 0.6], np.float32)
    x = draw(np.float32, 1, 1, 7, 9)
    how = {"mode": mode, "coordinate_transformation_mode": coordinates}
    check("Resize", x, roi, scales, expect=oracle, rtol=1e-4, **how)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect(check: Check, draw: Draw, policy: str) -> None:
    check(
        "Resize",
        draw(np.float32, 1, 1, 4, 6),
        None,
        None,
        sizes(7, 8),
        mode="linear",
        axes=[2, 3],
        keep_aspect_ratio_policy=policy,
        rtol=1e-4,
    )


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 2, 3, 4, 5)])
def test_other_ranks(check: Check, draw: Draw, shape: tuple[int, ...]) -> None:
    x = draw(np.float32, *shape)
    target = sizes(*shape[:2], *(2 * length for length in shape[2:]))
    check("Resize", x, None, None, target, expect="reference", mode="linear", rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.int64, np.float16, np.float64])
def test_nearest_of_any_type(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 1, 1, 3, 4)
    check("Resize", x, None, None, sizes(1, 1, 6, 8), expect=x.repeat(2, 2).repeat(2, 3), mode="nearest")


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64])
def test_linear_of_other_types(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 1, 1, 3, 4, high=200)
    check(
        "Resize",
        x,
        None,
        None,
        sizes(1, 1, 6, 8),
        expect="cpu" if dtype is np.uint8 else "reference",
        mode="linear",
        rtol=None if dtype is np.uint8 else 2e-3,
    )


def test_wide_integers_are_not_interpolated(reasons: Callable[..., list[str]], draw: Draw) -> None:
    assert "int64" in reasons("Resize", draw(np.int64, 1, 1, 2, 2), None, None, sizes(1, 1, 4, 4), mode="linear")[0]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_older_forms(check: Check, draw: Draw, mode: str) -> None:
    x, scales = draw(np.float32, 1, 2, 3, 4), np.array([1, 1, 2, 1.5], np.float32)
    check("Resize", x, scales, opset=10, mode=mode)
    check("Upsample", x, scales, opset=9, mode=mode)
    check("Upsample", x, opset=7, mode=mode, scales=scales.tolist())


def test_older_downsampling(check: Check, draw: Draw) -> None:
    check("Resize", draw(np.float32, 1, 1, 5, 6), np.array([1, 1, 0.6, 0.5], np.float32), opset=10)


def test_of_nothing(check: Check) -> None:
    x = np.zeros((0, 2, 3, 4), np.float32)
    for mode in ("nearest", "linear"):
        check("Resize", x, None, None, sizes(0, 2, 6, 8), expect=np.zeros((0, 2, 6, 8), np.float32), mode=mode)
