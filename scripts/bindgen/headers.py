"""From given headers to the committed model they belong to, checked against what is known of each generation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bindgen.diff import differences
from bindgen.model import Api, BindgenError, Function, load, save
from bindgen.parse import parse_mlx_c, parse_ort


def read_any(path: Path) -> Api:
    """An API from a model file, an mlx-c include directory, or a directory of ORT headers."""
    if path.is_file():
        return load(path)
    if (path / "onnxruntime_c_api.h").is_file():
        return parse_ort(path)
    return parse_mlx_c(path, path.name)


def generation_of(api: Api) -> str:
    """Which mlx-c generation these headers declare, by the functions that each one introduced."""
    if "mlx_stream_thread_local_new" in api.by_name:
        return "0.7"
    if "mlx_compile_cache_new" in api.by_name:
        return "0.7-pre"
    return "0.6" if "mlx_fft_fftfreq" in api.by_name else "0.6.0"


def update_mlx_c(directory: Path, models: Path, accept: bool) -> str:
    """Read mlx-c headers into the model of their generation; a difference is an error unless accepted."""
    found = parse_mlx_c(directory, "")
    generation = generation_of(found)
    if generation == "0.7-pre":
        raise BindgenError(f"{directory} is a commit between 0.6 and 0.7.0; no model is kept of it")
    target = models / f"mlx_c-{'0.6' if generation == '0.6.0' else generation}.json"
    known = load(target)
    if generation == "0.6.0":
        expected = {f.name: f for f in known.functions if f.since == "<=0.6.0"} | {f.name: f for f in known.older}
        stale = [f.name for f in found.functions if f.name not in expected or expected[f.name].abi != f.abi]
        stale += [n for n in expected if n not in found.by_name]
        if stale:
            raise BindgenError(f"{target.name} does not describe these 0.6.0 headers: {', '.join(stale)}")
        return f"{target.name}: its account of 0.6.0 fits {directory}"
    functions = tuple(_annotated(f, known.by_name.get(f.name), known.api) for f in found.functions)
    return _store(replace(found, api=known.api, functions=functions, older=known.older), known, target, accept)


def update_ort(directory: Path, models: Path, accept: bool) -> str:
    """Read ONNX Runtime's headers into the model; a difference is an error unless accepted."""
    target = models / "ort_c.json"
    return _store(parse_ort(directory), load(target), target, accept)


def _annotated(found: Function, known: Function | None, api: str) -> Function:
    """Headers do not say since when a function exists; the committed model does."""
    if known is None:
        return replace(found, since=api)
    return replace(found, since=known.since, changed_in=known.changed_in)


def _store(found: Api, known: Api, target: Path, accept: bool) -> str:
    lines = differences(known, found)
    if found == known:
        return f"{target.name}: the headers give the committed model"
    if not accept:
        raise BindgenError("\n".join([f"the headers differ from {target.name} (--accept takes them):", *lines]))
    save(found, target)
    return "\n".join([f"{target.name}: updated", *lines])
