"""Seal rows for an agreement in the making."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sealift.channel.commitment import key_commitment
from sealift.channel.sealedfile import RawSealedFile, write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.release.agreement import Resource
from sealift.travel.holder import HeldResource


def seal_resource(
    resource: Resource,
    plain: bytes,
    *,
    key: SecretKey,
    folder: Path,
    row_bytes: int,
    record_bytes: int,
    schema: dict[str, Any],
) -> HeldResource:
    """The resource as its file makes it, and the file as its holder has it."""
    card = write_sealed_file(
        folder / f"{resource.name}.sealed",
        [plain],
        key=key,
        total_bytes=len(plain),
        record_bytes=record_bytes,
    )
    sealed = replace(
        resource,
        rows=len(plain) // row_bytes,
        row_bytes=row_bytes,
        total_bytes=len(plain),
        record_bytes=record_bytes,
        schema=schema,
        content=card.content.digest,
        key=key_commitment(key, resource.name),
    )
    return HeldResource(sealed, RawSealedFile(card.path), card.leaves)
