"""``sealift`` with pipes that seal nothing: a control shows what would cross in plain."""

from __future__ import annotations

import sys

from sealift.cli.main import main
from tests.sim.hostrank import seal_nothing

if __name__ == "__main__":
    seal_nothing()
    sys.exit(main())
