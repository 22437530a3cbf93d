"""`python -m sealift` is the same as the `sealift` command."""

from __future__ import annotations

import sys

from sealift.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
