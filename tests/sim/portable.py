"""`sealift` without numba: NumPy's kernels, bit for bit the same, and nothing to compile."""

from __future__ import annotations

import sys

sys.modules["numba"] = None  # type: ignore[assignment]

from sealift.cli.main import main  # noqa: E402 - whoever imports it later finds none

if __name__ == "__main__":
    sys.exit(main())
