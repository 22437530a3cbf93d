"""Commit to content in a way that binds whoever holds the key (rule C5).

AEAD tags, and roots over them, do not: the key's holder can change a record and keep its
tag. A leaf is a keyed hash of a record's plaintext and its index; the commitment is a
hash over the key's check value, the sizes and the Merkle root of the leaves. Nobody
without the key can confirm a guess of the content.
Not here: signatures over commitments (``release/``).
Source: spec/record.md section 7; RFC 9162 for the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sealift.channel.record.layout import count_records
from sealift.crypto.hash import keyed_hash, labelled, sha256, verify_equal
from sealift.crypto.keys import Label, SecretKey, derive, derive_bytes
from sealift.crypto.merkle import leaf_hash, root
from sealift.errors import AuthenticationError, IntegrityError, UsageError
from sealift.ids import Buffer, Digest

LEAF_BYTES = 32
DESCRIPTION_BYTES = 16
_COMMITMENT_LABEL = "sealift content commitment"


@dataclass(frozen=True, slots=True)
class ContentCommitment:
    """What an agreement says about a sealed file's content.

    Attributes:
        digest: The commitment.
        total_bytes: Plaintext bytes.
        record_bytes: Plaintext bytes of every record but the last.
    """

    digest: Digest
    total_bytes: int
    record_bytes: int


class LeafHasher:
    """Makes the leaves of one data key."""

    def __init__(self, data_key: SecretKey) -> None:
        self._key = derive(data_key, Label.CONTENT_COMMITMENT)
        self.key_check = derive_bytes(self._key, Label.CONTENT_COMMITMENT, b"check")

    def leaf(self, index: int, chunk: Buffer) -> bytes:
        """Keyed BLAKE3 of the record's index (u64) and its plaintext."""
        return keyed_hash(self._key, index.to_bytes(8, "big"), chunk)

    def commit(
        self, leaves: Sequence[bytes], *, total_bytes: int, record_bytes: int
    ) -> ContentCommitment:
        """The commitment over all leaves of a file.

        Raises:
            IntegrityError: if their number does not fit the sizes.
        """
        expected = count_records(total_bytes, record_bytes)
        if len(leaves) != expected:
            raise IntegrityError(
                f"there are {len(leaves)} content leaves, and {expected} are expected",
                code="content-mismatch",
            )
        raw = labelled(
            _COMMITMENT_LABEL,
            self.key_check,
            total_bytes.to_bytes(8, "big"),
            record_bytes.to_bytes(8, "big"),
            root([leaf_hash(leaf) for leaf in leaves]),
        )
        return ContentCommitment(Digest(raw), total_bytes, record_bytes)


class CommitmentBuilder:
    """Collects the leaves of a file while its records are sealed, in order."""

    def __init__(
        self, data_key: SecretKey, *, total_bytes: int, record_bytes: int
    ) -> None:
        self._hasher = LeafHasher(data_key)
        self._total_bytes = total_bytes
        self._record_bytes = record_bytes
        self._leaves: list[bytes] = []

    @property
    def leaves(self) -> tuple[bytes, ...]:
        """The leaves so far."""
        return tuple(self._leaves)

    def add(self, chunk: Buffer) -> None:
        """Add the plaintext of the next record."""
        self._leaves.append(self._hasher.leaf(len(self._leaves), chunk))

    def commitment(self) -> ContentCommitment:
        """The commitment, once every record was added."""
        return self._hasher.commit(
            self._leaves, total_bytes=self._total_bytes, record_bytes=self._record_bytes
        )


class VerifiedLeaves:
    """Leaves that hash to a commitment; made by ``verify_leaves`` only."""

    def __init__(
        self, commitment: ContentCommitment, leaves: Sequence[bytes], hasher: LeafHasher
    ) -> None:
        self.commitment = commitment
        self._leaves = tuple(leaves)
        self._hasher = hasher

    def __len__(self) -> int:
        return len(self._leaves)

    def verify(self, index: int, chunk: Buffer) -> None:
        """Check the opened plaintext of record ``index``; ``chunk`` is private memory.

        Raises:
            IntegrityError: if it is not the content that was committed to.
        """
        if not 0 <= index < len(self._leaves):
            raise UsageError(f"there is no record {index}", code="no-such-record")
        computed = self._hasher.leaf(index, chunk)
        _require_equal(computed, self._leaves[index], f"record {index}")


def verify_leaves(
    leaves: Sequence[bytes], commitment: ContentCommitment, *, data_key: SecretKey
) -> VerifiedLeaves:
    """Check leaves from anywhere against a commitment from the agreement.

    Raises:
        IntegrityError: if they are not the leaves that were committed to.
    """
    hasher = LeafHasher(data_key)
    computed = hasher.commit(
        leaves, total_bytes=commitment.total_bytes, record_bytes=commitment.record_bytes
    )
    _require_equal(computed.digest.raw, commitment.digest.raw, "the list of leaves")
    return VerifiedLeaves(commitment, leaves, hasher)


def key_commitment(data_key: SecretKey, resource: str) -> Digest:
    """What an agreement says about a resource's data key (rule C9)."""
    return Digest(derive_bytes(data_key, Label.RESOURCE_KEY, resource.encode()))


def description_id(data_key: SecretKey, salt: bytes, description: bytes) -> bytes:
    """The stream id that commits a sealed file to what its content is said to be.

    Args:
        data_key: The data key; without it no guess is confirmed, and none is forged.
        salt: Of the file's header, so that no two files have one id.
        description: For tables, the columns (spec/table.md).
    """
    key = derive(data_key, Label.CONTENT_COMMITMENT)
    context = b"description" + salt + sha256(description)
    label = Label.CONTENT_COMMITMENT
    return derive_bytes(key, label, context, length=DESCRIPTION_BYTES)


def _require_equal(computed: bytes, expected: bytes, what: str) -> None:
    try:
        verify_equal(computed, expected)
    except AuthenticationError:
        raise IntegrityError(
            f"{what} does not match its commitment", code="content-mismatch"
        ) from None
