"""`python -m ort_ep`: the command line."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    for name in ("stdout", "stderr"):  # started with a closed one, as by `>&-`
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  lasts as long as the process
    try:
        from ort_ep.cli import main

        sys.exit(main())
    except KeyboardInterrupt:
        # Ctrl-C while modules were still being imported
        sys.exit(130)
