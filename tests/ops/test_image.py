from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


def encoded(image: Any, kind: str) -> np.ndarray[Any, Any]:
    stream = io.BytesIO()
    image.save(stream, kind)
    return np.frombuffer(stream.getvalue(), np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_files_give_their_pixels(check: Callable[..., None], kind: str) -> None:
    file = encoded(Image.fromarray(PIXELS), kind)
    check("ImageDecoder", file, expect=[PIXELS])
    check("ImageDecoder", file, expect=[PIXELS[..., ::-1]], pixel_format="BGR")


def test_grayscale_has_one_channel(check: Callable[..., None]) -> None:
    gray = np.array(Image.fromarray(PIXELS).convert("L"))
    file = encoded(Image.fromarray(PIXELS), "PNG")
    check("ImageDecoder", file, expect=[gray[..., None]], pixel_format="Grayscale")


def test_a_palette_and_transparency_become_the_wanted_channels(check: Callable[..., None]) -> None:
    palette = Image.fromarray(PIXELS).quantize(16)
    check("ImageDecoder", encoded(palette, "PNG"), expect=[np.array(palette.convert("RGB"))])


def test_no_image_and_no_format_are_refused(check: Callable[..., None], reasons: Callable[..., list[str]]) -> None:
    file = encoded(Image.fromarray(PIXELS), "PNG")
    with pytest.raises(RuntimeError, match="cannot identify image file"):
        check("ImageDecoder", file[5:], expect=[PIXELS])
    assert "'CMYK' is not one of RGB" in reasons("ImageDecoder", file, pixel_format="CMYK")[0]
