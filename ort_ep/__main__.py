"""`python -m ort_ep`: the command line."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from ort_ep.cli import main

        sys.exit(main())
    except KeyboardInterrupt:
        # Ctrl-C while modules were still being imported
        sys.exit(130)
