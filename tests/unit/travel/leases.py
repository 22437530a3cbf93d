"""A lease to change in tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sealift.crypto.sign import SigningKey
from sealift.ids import Digest, Handle, VisitId
from sealift.travel.visit.lease import Lease, LeaseTerms
from tests.worlds.consortium import RUN

OPERATOR = SigningKey.generate()
INSTANCE = SigningKey.generate()
ROW_BYTES = 40
LEASE = Lease(
    job="job",
    visit=VisitId.generate(),
    agreement=Digest.of(b"agreement"),
    accelerator=INSTANCE.public_key,
    holder="ada",
    resource="ada-train",
    purpose="train",
    handle=Handle.generate(),
    offset=0,
    max_bytes=10 * ROW_BYTES,
    dtype="uint8",
    shape=(10, ROW_BYTES),
    first_row=0,
    mode="write-only",
    lease_s=30.0,
    content=Digest.of(b"content"),
    run=RUN,
)
TERMS = LeaseTerms(
    orchestrator=OPERATOR.public_key,
    agreement=LEASE.agreement,
    accelerator=INSTANCE.public_key,
    longest_s=60.0,
    run=RUN,
)


def lease_for(first_row: int, rows: int, *, offset: int = 0, **changes: Any) -> Lease:
    """A lease of these rows."""
    return replace(
        LEASE,
        first_row=first_row,
        shape=(rows, ROW_BYTES),
        offset=offset,
        max_bytes=rows * ROW_BYTES,
        **changes,
    )
