"""Decoding of image files, by Pillow where it is installed: a host step, as the size is known only to the file."""

from __future__ import annotations

import importlib.util
import io
from types import MappingProxyType

import numpy as np

from ort_ep.graph import Node
from ort_ep.registry import op

# how Pillow calls what ONNX asks for, and in which order its channels are wanted
FORMATS = MappingProxyType({"RGB": ("RGB", 1), "BGR": ("RGB", -1), "Grayscale": ("L", 1)})


def decodable(node: Node) -> str | None:
    """pixel_format RGB, BGR or Grayscale; needs Pillow."""
    if importlib.util.find_spec("PIL") is None:
        return "needs Pillow, which is not installed: pip install pillow"
    wanted = node.attributes.get("pixel_format", "RGB")
    return None if wanted in FORMATS else f"pixel_format {wanted!r} is not one of {', '.join(FORMATS)}"


@op("ImageDecoder", since=20, host_step=True, dtypes={"encoded_stream": frozenset({"uint8"})}, claim=decodable)
def image_decoder(encoded_stream: np.ndarray, *, pixel_format: str = "RGB") -> np.ndarray:
    from PIL import Image

    mode, order = FORMATS[pixel_format]
    with Image.open(io.BytesIO(encoded_stream.tobytes())) as image:
        pixels = np.array(image.convert(mode))
    return pixels.reshape(*pixels.shape[:2], -1)[..., ::order]
