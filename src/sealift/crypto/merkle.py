"""The Merkle tree of RFC 9162 section 2.1: roots, inclusion and consistency proofs.

Functions take lists of leaf hashes (``leaf_hash`` of each entry) and are pure. Verify
functions raise; they return nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from sealift.crypto.hash import sha256, verify_equal
from sealift.errors import AuthenticationError, IntegrityError, UsageError


def leaf_hash(entry: bytes) -> bytes:
    """RFC 9162: SHA-256(0x00 || entry)."""
    return sha256(b"\x00", entry)


def node_hash(left: bytes, right: bytes) -> bytes:
    """RFC 9162: SHA-256(0x01 || left || right)."""
    return sha256(b"\x01", left, right)


def root(leaves: Sequence[bytes]) -> bytes:
    """The tree head of ``leaves``; the empty tree hashes the empty string."""
    if not leaves:
        return sha256(b"")
    # A stack of complete subtrees, as in RFC 9162 section 2.1.2: linear time.
    stack: list[bytes] = []
    for index, leaf in enumerate(leaves):
        stack.append(leaf)
        for _ in range(_trailing_ones(index)):
            right = stack.pop()
            stack[-1] = node_hash(stack[-1], right)
    head = stack.pop()
    while stack:
        head = node_hash(stack.pop(), head)
    return head


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """PATH(index, D[n]) of RFC 9162 section 2.1.3.1, leaf side first."""
    if not 0 <= index < len(leaves):
        raise UsageError(f"there is no leaf {index} in a tree of {len(leaves)}")
    if len(leaves) == 1:
        return ()
    split = _split(len(leaves))
    if index < split:
        return (*inclusion_proof(leaves[:split], index), root(leaves[split:]))
    return (*inclusion_proof(leaves[split:], index - split), root(leaves[:split]))


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], head: bytes
) -> None:
    """RFC 9162 section 2.1.3.2.

    Raises:
        IntegrityError: if the proof does not lead from ``leaf`` to ``head``.
    """
    if not 0 <= index < size:
        raise IntegrityError("the inclusion proof is for an entry outside the log")
    fn, sn, computed = index, size - 1, leaf
    for step in proof:
        if sn == 0:
            raise IntegrityError("the inclusion proof is too long")
        if fn & 1 or fn == sn:
            computed = node_hash(step, computed)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            computed = node_hash(computed, step)
        fn, sn = fn >> 1, sn >> 1
    if sn:
        raise IntegrityError("the inclusion proof is too short")
    _require_equal(computed, head, "the inclusion proof does not fit the head")


def consistency_proof(leaves: Sequence[bytes], first: int) -> tuple[bytes, ...]:
    """PROOF(first, D[n]) of RFC 9162 section 2.1.4.1."""
    if not 0 < first <= len(leaves):
        raise UsageError(f"no consistency proof from {first} to {len(leaves)}")
    return _subproof(first, leaves, complete=True)


def verify_consistency(
    first: int,
    second: int,
    first_root: bytes,
    second_root: bytes,
    proof: Sequence[bytes],
) -> None:
    """RFC 9162 section 2.1.4.2: the first log is a prefix of the second.

    Raises:
        IntegrityError: if the second log is not a continuation of the first.
    """
    if not 0 <= first <= second:
        raise IntegrityError("the log shrank", why=f"from {first} to {second} entries")
    if first in (0, second):
        if proof:
            raise IntegrityError("the consistency proof is too long")
        if first == second:
            _require_equal(first_root, second_root, "two heads of the same size differ")
        return
    _walk_consistency(first, second, first_root, second_root, list(proof))


def _walk_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, path: list[bytes]
) -> None:
    if first & (first - 1) == 0:
        path.insert(0, first_root)
    if not path:
        raise IntegrityError("the consistency proof is too short")
    fn, sn = first - 1, second - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    old = head = path[0]
    for step in path[1:]:
        if sn == 0:
            raise IntegrityError("the consistency proof is too long")
        if fn & 1 or fn == sn:
            old, head = node_hash(step, old), node_hash(step, head)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            head = node_hash(head, step)
        fn, sn = fn >> 1, sn >> 1
    if sn:
        raise IntegrityError("the consistency proof is too short")
    _require_equal(old, first_root, "the log's past was rewritten")
    _require_equal(head, second_root, "the consistency proof does not fit the head")


def _subproof(
    first: int, leaves: Sequence[bytes], *, complete: bool
) -> tuple[bytes, ...]:
    size = len(leaves)
    if first == size:
        return () if complete else (root(leaves),)
    split = _split(size)
    if first <= split:
        left = _subproof(first, leaves[:split], complete=complete)
        return (*left, root(leaves[split:]))
    right = _subproof(first - split, leaves[split:], complete=False)
    return (*right, root(leaves[:split]))


def _split(size: int) -> int:
    """The largest power of two below ``size``."""
    return 1 << (size - 1).bit_length() - 1


def _trailing_ones(value: int) -> int:
    return ((value ^ (value + 1)) >> 1).bit_length()


def _require_equal(computed: bytes, expected: bytes, what: str) -> None:
    try:
        verify_equal(computed, expected)
    except AuthenticationError:
        raise IntegrityError(what, code="log-inconsistent") from None
