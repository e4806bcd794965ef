#!/usr/bin/env python3
"""Regenerate the bindings from the committed API models, after re-reading headers when they are given."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

import bindgen
from bindgen import headers, mlx_cpp
from bindgen.diff import differences
from bindgen.model import RENDERERS, ROOT, BindgenError, Models, load_models
from bindgen.seals import is_intact, seal


def register_renderers() -> None:
    """Import every module of the package, which registers what it renders."""
    for module in pkgutil.iter_modules(bindgen.__path__):
        importlib.import_module(f"bindgen.{module.name}")


def render_all(models: Models) -> dict[str, str]:
    """Every generated file: path relative to the repository root -> whole text."""
    register_renderers()
    return {path: seal(path, render(models)) for path, render in sorted(RENDERERS, key=lambda r: r[0])}


def check(root: Path) -> list[str]:
    """What is wrong with the generated files below `root`: missing, edited by hand, or out of date."""
    problems = []
    for path, wanted in render_all(load_models(root / "scripts" / "api")).items():
        file = root / path
        if not file.is_file():
            problems.append(f"{path}: missing")
            continue
        text = file.read_text(encoding="utf-8")
        if not is_intact(text):
            problems.append(f"{path}: edited by hand (its seal is broken)")
        elif text != wanted:
            problems.append(f"{path}: differs from what the API models give")
    return problems


def write(root: Path) -> list[str]:
    """Write the generated files that changed; returns their paths."""
    changed = []
    for path, text in render_all(load_models(root / "scripts" / "api")).items():
        file = root / path
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mlx-c", type=Path, metavar="DIR", help="include directory of mlx-c to read first")
    parser.add_argument("--ort", type=Path, metavar="DIR", help="directory of onnxruntime_c_api.h to read first")
    parser.add_argument("--mlx-cpp", type=Path, metavar="DIR", help="include directory of the mlx wheel to read first")
    parser.add_argument("--accept", action="store_true", help="let given headers change a committed API model")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a generated file is not current")
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help="compare two header directories or model files")
    parser.add_argument("--root", type=Path, default=ROOT, help="repository to work on (default: this one)")
    args = parser.parse_args(argv)
    try:
        if args.diff:
            print("\n".join(differences(*(headers.read_any(Path(p)) for p in args.diff))) or "no difference")
            return 0
        if args.check:
            problems = check(args.root)
            for problem in problems:
                print(problem, file=sys.stderr)
            if problems:
                print("run: python scripts/gen_bindings.py", file=sys.stderr)
            return 1 if problems else 0
        updates = ((args.mlx_c, headers.update_mlx_c), (args.ort, headers.update_ort), (args.mlx_cpp, mlx_cpp.update))
        for directory, update in updates:
            if directory:
                print(update(directory, args.root / "scripts" / "api", accept=args.accept))
        for path in write(args.root):
            print(f"wrote {path}")
    except BindgenError as e:
        print(f"gen_bindings: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
