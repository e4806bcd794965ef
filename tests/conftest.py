"""Settings that must stand before anything imports MLX."""

from __future__ import annotations

import os
import signal

# MLX reads it once, at its first product on a GPU; what is compared with float32 results must not round to TF32.
os.environ["MLX_ENABLE_TF32"] = "0"

# A job started in the background has SIGINT ignored, and hands that on to the programs that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
