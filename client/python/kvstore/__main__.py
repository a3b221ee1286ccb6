"""``python -m kvstore``: doctor, size, bench and status, without the C++ tools."""

from __future__ import annotations

import sys

from .tools import main

if __name__ == "__main__":
    sys.exit(main())
