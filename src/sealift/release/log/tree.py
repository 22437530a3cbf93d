"""The log's Merkle tree with every complete subtree kept, so that proofs are quick.

Roots and proofs are those of ``crypto/merkle.py`` (RFC 9162 section 2.1), which is the
oracle in the tests; here they take O(log^2 n) steps instead of O(n). Memory: about 64
bytes and Python's overhead per entry.
"""

from __future__ import annotations

from collections.abc import Iterable

from sealift.crypto.hash import sha256
from sealift.crypto.merkle import node_hash
from sealift.errors import UsageError


class LogTree:
    """Leaf hashes and the roots of all complete subtrees over them."""

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        # _levels[k][i] is the root of leaves i * 2^k .. (i + 1) * 2^k - 1
        self._levels: list[list[bytes]] = [[]]
        for leaf in leaves:
            self.append(leaf)

    def __len__(self) -> int:
        return len(self._levels[0])

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        level, node = 0, leaf
        self._levels[0].append(node)
        while len(self._levels[level]) % 2 == 0:
            left, right = self._levels[level][-2:]
            node, level = node_hash(left, right), level + 1
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(node)

    def root(self, size: int | None = None) -> bytes:
        """The tree head over the first ``size`` leaves, all by default."""
        size = len(self) if size is None else size
        if not 0 <= size <= len(self):
            raise UsageError(f"the log has {len(self)} entries, not {size}")
        return self._range(0, size) if size else sha256(b"")

    def truncate(self, size: int) -> None:
        """Take back the leaves from ``size`` on."""
        for level, nodes in enumerate(self._levels):
            del nodes[size >> level :]

    def inclusion_proof(self, index: int, size: int) -> tuple[bytes, ...]:
        """PATH(index, D[size]), leaf side first."""
        if not 0 <= index < size <= len(self):
            raise UsageError(f"no entry {index} in a log of {size}")
        return self._path(index, 0, size)

    def consistency_proof(self, first: int, second: int) -> tuple[bytes, ...]:
        """PROOF(first, D[second])."""
        if not 0 < first <= second <= len(self):
            raise UsageError(f"no consistency proof from {first} to {second}")
        return self._subproof(first, 0, second, complete=True)

    def _path(self, index: int, low: int, high: int) -> tuple[bytes, ...]:
        if high - low == 1:
            return ()
        middle = low + _split(high - low)
        if index < middle:
            return (*self._path(index, low, middle), self._range(middle, high))
        return (*self._path(index, middle, high), self._range(low, middle))

    def _subproof(
        self, first: int, low: int, high: int, *, complete: bool
    ) -> tuple[bytes, ...]:
        if first == high:
            return () if complete else (self._range(low, high),)
        middle = low + _split(high - low)
        if first <= middle:
            left = self._subproof(first, low, middle, complete=complete)
            return (*left, self._range(middle, high))
        right = self._subproof(first, middle, high, complete=False)
        return (*right, self._range(low, middle))

    def _range(self, low: int, high: int) -> bytes:
        """Root over leaves low .. high - 1; ``low`` is a multiple of a subtree's size."""
        length = high - low
        if length & (length - 1) == 0:
            level = length.bit_length() - 1
            return self._levels[level][low >> level]
        middle = low + _split(length)
        return node_hash(self._range(low, middle), self._range(middle, high))


def _split(length: int) -> int:
    """The largest power of two below ``length``."""
    return 1 << (length - 1).bit_length() - 1
