"""The arrays a run is fed: from .npy files, or seeded random ones that fit the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import onnx

from ort_ep.cli.console import CommandError
from ort_ep.cli.model import InputSpec, existing_file, index_limit

FREE_AXIS = 16  # a free dimension's size, except for the first (the batch) and an image's sides
IMAGE_SIDE = 224
SAMPLE_RATE = 16000


@dataclass
class Dims:
    """Sizes of symbolic dimensions: given by --dim, read off input files, or chosen here."""

    given: dict[str, int]
    chosen: dict[str, int] = field(default_factory=dict)

    def size(self, spec: InputSpec, axis: int) -> int:
        assert spec.dims is not None
        dim = spec.dims[axis]
        if isinstance(dim, int):
            return dim
        place = f"{spec.name}:{axis}"
        for key in (place, dim):
            if key is not None and key in self.given:
                return self.given[key]
        return self.chosen.setdefault(dim or place, _free_size(spec, axis))

    def check_names(self, specs: list[InputSpec]) -> None:
        """Every --dim must name a symbol of the model, or INPUT:AXIS of a free dimension."""
        known = [dim for spec in specs for dim in spec.dims or () if isinstance(dim, str)]
        places = [f"{s.name}:{i}" for s in specs for i, dim in enumerate(s.dims or ()) if not isinstance(dim, int)]
        for name in self.given:
            if name not in known and name not in places:
                names = ", ".join(sorted({*known, *places})) or "none: every dimension of its inputs is fixed"
                raise CommandError(
                    f"the model has no free dimension {name!r}{_near(name, [*known, *places])}",
                    f"Its free dimensions: {names}.",
                )


def _free_size(spec: InputSpec, axis: int) -> int:
    assert spec.dims is not None
    if axis == 0:
        return 1
    if len(spec.dims) == 4 and axis >= 2 and np.issubdtype(spec.dtype, np.floating):
        return IMAGE_SIDE
    return FREE_AXIS


def split_files(given: list[str] | None, specs: list[InputSpec]) -> dict[str, Path]:
    """`NAME=FILE.npy` items as a dict; the name may hold `=` itself, and may be left out when there is one input."""
    names = [spec.name for spec in specs]
    files: dict[str, Path] = {}
    for item in given or ():
        # the longest name that fits wins: names may contain "="
        name = max((n for n in names if item.startswith(f"{n}=")), key=len, default=None)
        if name is None and "=" not in item and len(names) == 1:
            name, item = names[0], f"{names[0]}={item}"
        if name is None:
            asked = item.split("=", 1)[0]
            if "=" not in item:
                raise CommandError(f"--input {item!r} names no input", "Write --input NAME=FILE.npy.")
            raise CommandError(
                f"the model has no input {asked!r}{_near(asked, names)}", f"Its inputs: {listing(specs)}."
            )
        if name in files:
            raise CommandError(f"input {name!r} is given twice", "Give each input one file.")
        files[name] = Path(item[len(name) + 1 :])
    return files


def listing(specs: list[InputSpec]) -> str:
    return "; ".join(f"{spec.name}: {spec}" for spec in specs) or "none"


def _near(name: str, known: list[str]) -> str:
    match = get_close_matches(name, known, n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def read_array(spec: InputSpec, path: Path) -> np.ndarray:
    """The array in `path`, checked against the input's dtype, rank and fixed dimensions."""
    existing_file(path, f"the file for input {spec.name!r},")
    try:
        array = np.load(path, allow_pickle=spec.dtype.kind == "O")
    except OSError as error:
        raise CommandError(
            f"{path} can't be read: {error.strerror or error}", "Check the file's permissions."
        ) from error
    except (ValueError, EOFError) as error:
        raise CommandError(f"{path} is not a .npy file", "Write it with numpy.save(path, array).") from error
    if not isinstance(array, np.ndarray):
        raise CommandError(f"{path} is an .npz archive", "Give one .npy file per input, written with numpy.save.")
    # numpy.save keeps only the bytes of dtypes it does not know (bfloat16 and the like)
    if array.dtype.kind == "V" and array.dtype.itemsize == spec.dtype.itemsize and spec.dtype.isbuiltin == 2:
        array = array.view(spec.dtype)
    if array.dtype != spec.dtype and not (spec.dtype.kind == "O" and array.dtype.kind in "US"):
        raise CommandError(
            f"input {spec.name!r} takes {spec.dtype.name}, but {path} holds {array.dtype.name}",
            f"Save it again with array.astype({spec.dtype.name!r}).",
        )
    if spec.dims is not None and not _fits(array.shape, spec.dims):
        raise CommandError(
            f"input {spec.name!r} takes {spec}, but {path} holds shape {list(array.shape)}",
            "Reshape it, or give another file.",
        )
    return np.ascontiguousarray(array).reshape(array.shape)


def _fits(shape: tuple[int, ...], dims: tuple[int | str | None, ...]) -> bool:
    return len(shape) == len(dims) and all(not isinstance(d, int) or d == n for n, d in zip(shape, dims, strict=True))


def make_feeds(
    model: onnx.ModelProto, specs: list[InputSpec], files: dict[str, Path], dims: Dims, seed: int
) -> dict[str, np.ndarray]:
    """One array per input: files as they are, the rest random from (seed, input number)."""
    feeds = {spec.name: read_array(spec, files[spec.name]) for spec in specs if spec.name in files}
    for spec in specs:
        for axis, dim in enumerate(spec.dims or ()):
            if spec.name in feeds and isinstance(dim, str):
                dims.given.setdefault(dim, feeds[spec.name].shape[axis])
    for number, spec in enumerate(specs):
        if spec.name not in feeds:
            if spec.dims is None:
                raise CommandError(
                    f"input {spec.name!r} has no known rank", f"Give it a file: --input {spec.name}=FILE.npy."
                )
            shape = tuple(dims.size(spec, axis) for axis in range(len(spec.dims)))
            feeds[spec.name] = random_array(spec, shape, np.random.default_rng([seed, number]), model.graph)
    return {spec.name: feeds[spec.name] for spec in specs}


def random_array(
    spec: InputSpec, shape: tuple[int, ...], rng: np.random.Generator, graph: onnx.GraphProto
) -> np.ndarray:
    """Normal floats, integers within what they index, ones for masks, words for strings."""
    name, dtype = spec.name.lower(), spec.dtype
    if dtype.kind == "O":
        return rng.choice(np.array(["alpha", "beta", "gamma"], object), shape)
    if dtype == np.bool_:
        return np.ones(shape, np.bool_) if "mask" in name else rng.random(shape) < 0.5
    if np.issubdtype(dtype, np.integer):
        return np.asarray(_integers(name, shape, dtype, rng, graph, spec.name), dtype)
    if np.issubdtype(dtype, np.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    # the rest are floats, and the small types of ml_dtypes, which saturate
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _integers(
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    rng: np.random.Generator,
    graph: onnx.GraphProto,
    input_name: str,
) -> np.ndarray:
    if "mask" in name:
        return np.ones(shape, dtype)
    if "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]), shape)
    if name in ("sr", "sample_rate", "sampling_rate"):
        return np.full(shape, SAMPLE_RATE)
    limit = index_limit(graph, input_name)
    if limit is None and dtype.itemsize == 1:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, endpoint=True)
    return rng.integers(0, max(1, min(limit or 10, int(np.iinfo(dtype).max))), shape)
