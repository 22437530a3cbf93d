"""What rows were used for, counted as their receipts are signed: the run's own account.

Sums for each table and purpose, and the digest of every receipt, so that an owner finds its
own ones in the account of the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest

from sealift.codec import encode
from sealift.ids import DIGEST_BYTES, Digest, cut_names
from sealift.release.agreement import Purpose
from sealift.release.receipt import SignedReceipt


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """One table's rows for one purpose.

    Attributes:
        visits: How often some of its rows were used.
        rows: Of all these times together.
        cargo_bytes: Plaintext that was placed in a buffer.
        sealed_bytes: Ciphertext that crossed to it; 0 where the files are the reader's own.
        scrubbed_bytes: Memory that was overwritten and read back.
        nonzero_bytes: Of these, what was not zero when it was read back.
    """

    resource: str
    purpose: Purpose
    visits: int = 0
    rows: int = 0
    cargo_bytes: int = 0
    sealed_bytes: int = 0
    scrubbed_bytes: int = 0
    nonzero_bytes: int = 0

    def plus(self, other: TableUse) -> TableUse:
        """Both together; of the same table and purpose."""
        counted = [each.name for each in fields(self)][2:]
        sums = {name: getattr(self, name) + getattr(other, name) for name in counted}
        return TableUse(resource=self.resource, purpose=self.purpose, **sums)


@dataclass(frozen=True, slots=True)
class Uses:
    """Of all tables.

    Attributes:
        tables: Sorted, each table and purpose once.
        receipts: Digest of every signed receipt, in the order of their signing.
    """

    tables: tuple[TableUse, ...] = ()
    receipts: tuple[Digest, ...] = ()

    @classmethod
    def of(cls, signed: SignedReceipt) -> Uses:
        """One receipt's."""
        receipt = signed.body
        use = TableUse(
            resource=receipt.resource,
            purpose=receipt.purpose,
            visits=1,
            rows=receipt.rows,
            cargo_bytes=receipt.cargo_bytes,
            sealed_bytes=receipt.sealed_bytes,
            scrubbed_bytes=receipt.scrub.scrubbed_bytes,
            nonzero_bytes=receipt.scrub.nonzero_bytes,
        )
        return cls((use,), (receipt_digest(signed),))


@dataclass(frozen=True, slots=True)
class PackedUses:
    """The same in a checkpoint, of which every receipt of the run is a part.

    Attributes:
        tables: As in ``Uses``.
        receipts: Their digests, end to end: text of each would be most of a checkpoint.
    """

    tables: tuple[TableUse, ...]
    receipts: bytes

    @classmethod
    def of(cls, uses: Uses) -> PackedUses:
        """Packed."""
        return cls(uses.tables, b"".join(each.raw for each in uses.receipts))

    def unpack(self) -> Uses:
        """As they were.

        Raises:
            MalformedError: the receipts are no digests.
        """
        digests = cut_names(self.receipts, DIGEST_BYTES)
        return Uses(self.tables, tuple(map(Digest, digests)))


def wrong_uses(told: Sequence[TableUse], planned: Sequence[TableUse]) -> str:
    """What of a rank's account cannot be; empty if it fits the plan.

    How much memory was scrubbed is at least the plan's: what of a GPU's memory stands in
    a receipt besides is not everybody's to compute.
    """
    for use, own in zip_longest(told, planned):
        if use is None or own is None or use.resource != own.resource:
            return "it reports rows of other tables than the plan has"
        if replace(use, scrubbed_bytes=own.scrubbed_bytes) != own:
            return f"it reports {use.rows:,} rows of {own.resource} in {use.visits:,} uses; the plan has {own.rows:,} in {own.visits:,}"
        if use.scrubbed_bytes < own.scrubbed_bytes:
            return (
                f"it reports less overwritten memory than the rows of {own.resource} "
                "take"
            )
    return ""


def receipt_digest(signed: SignedReceipt) -> Digest:
    """What a run's account names a receipt by."""
    return Digest.of(encode(signed))


def join_uses(found: Iterable[Uses]) -> Uses:
    """All of them together."""
    tables: dict[tuple[str, str], TableUse] = {}
    receipts: list[Digest] = []
    for each in found:
        receipts += each.receipts
        for use in each.tables:
            place = (use.resource, use.purpose)
            tables[place] = tables[place].plus(use) if place in tables else use
    return Uses(tuple(tables[place] for place in sorted(tables)), tuple(receipts))
