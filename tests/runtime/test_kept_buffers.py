"""Freed buffers that MLX keeps for the next arrays of their size: libmlxc lets it keep what arrays have needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mlxc_py as mx
from mlxc_py import cpu_primitives

pytestmark = pytest.mark.skipif(
    cpu_primitives.isa() is None or mx.cuda.is_available(), reason="only for libmlxc's own allocator on the host"
)
PRELUDE = """
import gc, resource
import mlxc_py as mx
MIB = 1 << 20

def make(mib):
    array, memory = mx.uninitialized((mib * MIB,), mx.uint8)
    memory[:] = 1
    return array

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
"""


def run(code: str) -> None:
    """In a process of its own: limits and peaks are the process's."""
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_large_buffer_is_used_again_without_page_faults() -> None:
    run("""
make(64)
assert mx.get_cache_memory() >= 64 * MIB
before = faults()
make(64)
assert faults() - before < 64 * MIB / 4096 / 4
mx.clear_cache()
assert mx.get_cache_memory() == 0
""")


def test_what_is_kept_is_bounded_by_what_was_needed() -> None:
    run("""
for mib in range(33, 73):  # no two of one size
    make(mib)
    assert mx.get_cache_memory() <= 2 * mx.get_peak_memory() + 4 * mib * MIB
make(72)
make(72)
before = faults()
make(72)
assert faults() - before < 72 * MIB / 4096 / 4  # the latest are kept
""")


def test_a_limit_that_was_set_stays() -> None:
    run("""
mx.set_cache_limit(8 * MIB)
make(64)
assert mx.get_cache_memory() <= 8 * MIB
assert mx.set_cache_limit(0) == 8 * MIB
""")
