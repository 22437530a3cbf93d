"""Real evidence of real hardware: read where it lies, never copied in.

``SEALIFT_VECTORS`` names the folder; by default it is ``shared/vectors`` beside the
repository. Tests that read it carry ``pytest.mark.vectors``.
"""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT = Path(__file__).parents[3] / "shared" / "vectors"


def vectors_folder() -> Path:
    """Where the vectors lie, or would."""
    return Path(os.environ.get("SEALIFT_VECTORS") or DEFAULT)


def vector(name: str) -> bytes:
    """The bytes of one vector, by its path inside the folder."""
    return (vectors_folder() / name).read_bytes()
