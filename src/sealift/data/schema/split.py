"""A table in two parts, by a keyed hash of each row: to train on, and held out to measure on.

Guarantees: a row falls on the same side whenever its owner splits with the same share, in
whatever place it stands, and rows with the same content fall together; without the owner's
key nobody can tell on which side a row is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sealift.crypto.hash import keyed_hash
from sealift.crypto.keys import SecretKey

_DRAWN_BYTES = 8


@dataclass(frozen=True, slots=True)
class Split:
    """One side of a table.

    Attributes:
        key: The owner's, of 32 bytes.
        percent: Of the rows that are held out, nearly: 1 to 99.
        heldout: Whether this is the held-out side.
    """

    key: SecretKey
    percent: int
    heldout: bool

    def of_block(self, block: bytes, row_bytes: int) -> bytes:
        """The rows of this side, in their order.

        Args:
            block: Whole rows.
            row_bytes: Bytes of a row.
        """
        return b"".join(self._rows(block, row_bytes))

    def _rows(self, block: bytes, row_bytes: int) -> Iterator[bytes]:
        below = self.percent * (1 << 8 * _DRAWN_BYTES) // 100
        for start in range(0, len(block), row_bytes):
            row = block[start : start + row_bytes]
            drawn = int.from_bytes(keyed_hash(self.key, row)[:_DRAWN_BYTES], "big")
            if (drawn < below) is self.heldout:
                yield row
