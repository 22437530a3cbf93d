"""The digest of the code that this installation runs: what a shared broker proves."""

from __future__ import annotations

from pathlib import Path

import sealift
from sealift.ids import Digest
from sealift.release.bundle import measure_bundle, read_bundle


def own_code() -> Digest:
    """Of every file of the package, as a bundle with the package's first file as entry.

    Raises:
        UnavailableError, MalformedError: if it cannot be read as one.
    """
    return measure_bundle(
        read_bundle(Path(sealift.__file__).parent), "__init__.py"
    ).digest
