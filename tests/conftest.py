"""Settings that must stand before anything imports MLX."""

from __future__ import annotations

import os

# MLX reads it once, at its first product on a GPU; what is compared with float32 results must not round to TF32.
os.environ["MLX_ENABLE_TF32"] = "0"
