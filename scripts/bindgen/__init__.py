"""Bindings generator: headers -> API models (scripts/api) -> every generated file of the project."""

from __future__ import annotations
