"""Where a session's nodes run, and why some stay on CPU."""

from __future__ import annotations
