"""Kinds of sources that can be sealed: one file each, and one line here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sealift.data.sources import arrow as parquet
from sealift.data.sources import (
    csvtable,
    huggingface,
    imagefolder,
    mapstyle,
    npy,
    npz,
    safetensorsfile,
)
from sealift.data.sources.source import Source
from sealift.errors import UnavailableError, UsageError

# The first that claims a place gets it: folders with files of their own before images.
SOURCES: Final[tuple[Source, ...]] = (
    csvtable.SOURCE,
    npy.SOURCE,
    npz.SOURCE,
    safetensorsfile.SOURCE,
    parquet.SOURCE,
    huggingface.SOURCE,
    imagefolder.SOURCE,
    mapstyle.SOURCE,
)


def source_of(place: str) -> Source:
    """The kind of source that a place is.

    Raises:
        UsageError: code ``unknown-source``, if it is none.
        UnavailableError: if there is nothing of that name.
    """
    for source in SOURCES:
        if source.claims(place):
            return source
    if not Path(place).exists():
        raise UnavailableError(
            f"cannot read {place}",
            why="there is no such file, and it is no MODULE:ATTRIBUTE",
            code="cannot-read",
        )
    raise UsageError(
        f"{place} is not a table that can be sealed",
        fix=f"Use one of: {'; '.join(source.name for source in SOURCES)}",
        code="unknown-source",
    )
