"""The audit log's vocabulary: entries, signed tree heads, proofs, and how they verify.

A Merkle log in the manner of RFC 9162 of every release and every refusal of one owner's
broker (rule H6). One owner key signs one log. Pure: the database is in
``release/log/auditlog.py``, what a party remembers in ``release/log/heads.py``.
Source: spec/release.md section Log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sealift.codec import from_plain, parse
from sealift.crypto import merkle
from sealift.crypto.keys import Label
from sealift.crypto.sign import Form, PublicKey, SignedDocument
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    PolicyError,
)
from sealift.ids import Digest

EntryKind = Literal["agreement", "release", "refusal", "revocation", "enrolment"]
CheckpointKind = Literal[
    "checkpoint", "checkpoint-release", "checkpoint-finish", "checkpoint-refusal"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _BrokerEntry:
    """What every entry says.

    Attributes:
        at_s: Seconds since 1970 by the broker's clock, for people only.
        agreement: Digest of the agreement.
        role: The peer's role, or empty.
        peer: The peer's name, or empty.
        instance: The peer's instance key.
        session: th2 of the session.
        level: Level that its evidence proved, or empty.
        evidence: Digest of its evidence.
        rule: Refusals and revocations: stable name of the rule that failed.
        info: Releases: digest of the HPKE info. Enrolments: digest of the enrolment.
    """

    at_s: int
    agreement: Digest
    role: str = ""
    peer: str = ""
    instance: PublicKey | None = None
    session: bytes = b""
    level: str = ""
    evidence: Digest | None = None
    rule: str = ""
    info: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry(_BrokerEntry):
    """One thing that a broker did.

    Attributes:
        kind: A broker began to serve an agreement, released a key, or did not; an
            instance lost its lease, or a host was enrolled.
        resource: Which resource, or empty.
        purpose: What for, or empty.
        use: Releases: which use of the key it was, from 1.
        epoch: Key epoch of this log's owner: how many instances were revoked before.
    """

    kind: EntryKind
    resource: str = ""
    purpose: str = ""
    use: int = 0
    epoch: int = 0

    @property
    def subject(self) -> str:
        """What it is about, for people."""
        return " ".join(word for word in (self.resource, self.purpose) if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry(_BrokerEntry):
    """One thing that a broker did about a job's checkpoint (rule H14).

    Attributes:
        kind: A checkpoint counts from here on, the share of its key was released, the
            job needs none any more, or a request was refused.
        job: Name of the job.
        number: Of the checkpoint; 0 where none is meant.
        sealed: Digest of the checkpoint's file.
        split: Owners among whom its key is split.
    """

    kind: CheckpointKind
    job: str
    number: int = 0
    sealed: Digest | None = None
    split: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What it is about, for people."""
        return f"{self.job} number {self.number}" if self.number else self.job


Entry = LogEntry | CheckpointEntry


def read_entry(raw: bytes) -> Entry:
    """Parse an entry of a log.

    Raises:
        MalformedError: if it is none.
    """
    plain = parse(raw)
    kind = plain.get("kind") if isinstance(plain, dict) else None
    about_checkpoint = isinstance(kind, str) and kind.startswith("checkpoint")
    entry: Entry = from_plain(CheckpointEntry if about_checkpoint else LogEntry, plain)
    return entry


@dataclass(frozen=True, slots=True)
class TreeHead:
    """What is signed: the log's owner key, its size and its root."""

    FORM: ClassVar = Form(Label.TREE_HEAD, "head")

    log: PublicKey
    size: int
    root: Digest
    at_s: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise MalformedError("the size of a log cannot be negative", field="size")


SignedTreeHead = SignedDocument[TreeHead]


@dataclass(frozen=True, slots=True)
class Inclusion:
    """Shows that an entry is in the log that a head covers."""

    index: int
    path: tuple[bytes, ...]


def verify_head(signed: SignedTreeHead) -> TreeHead:
    """Return the head if the key that it names signed it.

    Raises:
        IntegrityError: ``head-unsigned``, if it did not.
    """
    try:
        return signed.verify(signed.body.log)
    except AuthenticationError:
        raise IntegrityError(
            "a log head is not signed by the log's owner", code="head-unsigned"
        ) from None


def verify_entry(entry: bytes, inclusion: Inclusion, head: TreeHead) -> None:
    """Check that the log which ``head`` covers holds ``entry``.

    Raises:
        IntegrityError: ``entry-not-in-log``.
    """
    leaf = merkle.leaf_hash(entry)
    try:
        merkle.verify_inclusion(
            leaf, inclusion.index, head.size, inclusion.path, head.root.raw
        )
    except IntegrityError as error:
        raise IntegrityError(
            "the entry is not in the log", why=error, code="entry-not-in-log"
        ) from None


def verify_growth(earlier: TreeHead, later: TreeHead, proof: Sequence[bytes]) -> None:
    """Check that the log which ``later`` covers continues the one of ``earlier``.

    Raises:
        IntegrityError: ``log-forked``, if its past is another one.
    """
    if earlier.log != later.log:
        raise IntegrityError(
            "the two heads belong to different logs", code="log-forked"
        )
    try:
        merkle.verify_consistency(
            earlier.size, later.size, earlier.root.raw, later.root.raw, proof
        )
    except IntegrityError as error:
        raise IntegrityError(
            "the log does not continue the log that was seen before",
            why=error,
            code="log-forked",
        ) from None


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry of a broker's log, and the head that covers it.

    Attributes:
        entry: Canonical bytes of the entry.
        inclusion: Shows that the log holds it.
        head: Of the log; shown to every holder.
    """

    entry: bytes
    inclusion: Inclusion
    head: SignedTreeHead

    def verify(self, owner: PublicKey, what: str = "the entry") -> Entry:
        """The entry, if the log of that owner holds it.

        Raises:
            PolicyError: ``other-log``.
            IntegrityError: ``head-unsigned`` or ``entry-not-in-log``.
            MalformedError: if it is no entry.
        """
        head = verify_head(self.head)
        if head.log != owner:
            raise PolicyError(
                f"{what} is in the log of another owner", code="other-log"
            )
        verify_entry(self.entry, self.inclusion, head)
        return read_entry(self.entry)
