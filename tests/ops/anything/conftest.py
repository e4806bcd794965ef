"""How many examples are drawn: the same few in every run; many new ones with --hypothesis-profile=deep."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("few", max_examples=25, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "deep", max_examples=400, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("few")
