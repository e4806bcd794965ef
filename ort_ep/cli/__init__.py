"""The command line: `python -m ort_ep {demo,run,doctor}`."""

from __future__ import annotations

from ort_ep.cli.app import app, main

__all__ = ["app", "main"]
