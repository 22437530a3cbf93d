"""Seal rows for an agreement in the making."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sealift.channel.record.commitment import key_commitment
from sealift.channel.record.sealedfile import RawSealedFile, write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.release.agreement import Resource
from sealift.travel.holder.visit import HeldResource


def seal_resource(
    resource: Resource,
    plain: bytes,
    *,
    key: SecretKey,
    folder: Path,
    files: ExitStack,
    row_bytes: int,
    record_bytes: int,
    schema: dict[str, Any],
    description: bytes | None = None,
) -> HeldResource:
    """The resource as its file makes it, and the file as its holder has it.

    `files` closes that file.
    """
    card = write_sealed_file(
        folder / f"{resource.name}.sealed",
        [plain],
        key=key,
        total_bytes=len(plain),
        record_bytes=record_bytes,
        description=description,
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
    source = files.enter_context(RawSealedFile(card.path))
    return HeldResource(sealed, source, card.leaves)
