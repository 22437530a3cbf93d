"""What is said about checkpoints, and which one counts. Pure.

A checkpoint's key is fresh and split among the brokers of every owner whose data key
was released: all shares are needed to open it. It counts as soon as one broker has
committed it, which is only asked for when all of them hold their share; from then on no
broker gives out a share of an earlier one (rule H14).
Source: spec/checkpoint.md.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sealift.crypto.keys import KEY_BYTES, TOKEN, SecretKey
from sealift.errors import (
    IntegrityError,
    MalformedError,
    PeerError,
    StaleError,
    UsageError,
)
from sealift.ids import Digest, check_name
from sealift.release.grant import EXPIRY_S, check_challenge
from sealift.release.log.entries import CheckpointEntry, Logged

MAX_OWNERS: Final = 256


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """Which checkpoint of a job.

    Attributes:
        number: From 1; it only grows, over all runs of a job under one agreement.
        sealed: Digest of its file.
        split: Owners among whose brokers its key is split, in order, each once.
    """

    number: int
    sealed: Digest
    split: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.number < 1:
            raise MalformedError("checkpoints are counted from 1", field="number")
        if not 0 < len(self.split) <= MAX_OWNERS or not _rising(self.split):
            raise MalformedError("owners are named in order, once", field="split")


@dataclass(frozen=True, slots=True)
class Deposit:
    """Keep this share; the checkpoint does not count yet."""

    mark: CheckpointMark
    share: bytes

    def __post_init__(self) -> None:
        if len(self.share) != KEY_BYTES:
            raise MalformedError(f"a share has {KEY_BYTES} bytes", field="share")


@dataclass(frozen=True, slots=True)
class Fetch:
    """Release the share of the checkpoint that counts."""

    mark: CheckpointMark
    challenge: bytes

    def __post_init__(self) -> None:
        check_challenge(self.challenge)

    def grant_info(
        self, agreement: Digest, job: str, owner: str, recipient: bytes
    ) -> ShareInfo:
        """What the answer to it is bound to, on both sides."""
        return ShareInfo(
            agreement=agreement,
            job=job,
            mark=self.mark,
            owner=owner,
            recipient=recipient,
            challenge=self.challenge,
            expiry_s=EXPIRY_S,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """One request about one job. Exactly one of the last five fields is set.

    Attributes:
        claim: This instance works on the job from now on; what is known of it?
        commit: Let the deposited checkpoint count.
        finish: The job needs no checkpoint any more.
    """

    job: str
    claim: bool = False
    deposit: Deposit | None = None
    commit: CheckpointMark | None = None
    fetch: Fetch | None = None
    finish: bool = False

    def __post_init__(self) -> None:
        check_name(self.job, what="job name")
        asked = [self.deposit, self.commit, self.fetch, self.claim or None]
        if sum(each is not None for each in (*asked, self.finish or None)) != 1:
            raise MalformedError("a broker is asked one thing at a time")

    @property
    def mark(self) -> CheckpointMark | None:
        """The checkpoint that it is about, if it names one."""
        if self.deposit is not None:
            return self.deposit.mark
        return self.fetch.mark if self.fetch is not None else self.commit


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """What a broker knows of a job's checkpoints.

    Attributes:
        committed: The one that counts, or the last that did.
        pending: One whose share it holds, and which does not count here yet.
        finished: Whether the job has finished since ``committed``.
    """

    committed: CheckpointMark | None = None
    pending: CheckpointMark | None = None
    finished: bool = False

    @property
    def last(self) -> int:
        """Number of the last one that counted; 0 if none did."""
        return self.committed.number if self.committed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareInfo:
    """What a released share is bound to (rule C9); like ``ReleaseInfo``."""

    agreement: Digest
    job: str
    mark: CheckpointMark
    owner: str
    recipient: bytes
    challenge: bytes
    expiry_s: int


@dataclass(frozen=True, slots=True)
class ShareRelease:
    """A share, sealed to one session's recipient, signed by its owner, and logged."""

    info: ShareInfo
    sealed: bytes
    signature: bytes
    logged: Logged


def mark_of(entry: CheckpointEntry) -> CheckpointMark | None:
    """The checkpoint that an entry is about."""
    if entry.sealed is None:
        return None
    return CheckpointMark(entry.number, entry.sealed, entry.split)


def deposit_of(mark: CheckpointMark, share: SecretKey) -> Deposit:
    """A share on its way to its broker, for the session to seal."""
    return Deposit(mark, share.reveal(TOKEN))


def split_key(key: SecretKey, owners: Sequence[str]) -> dict[str, SecretKey]:
    """One share per owner; all of them together are the key, fewer are nothing."""
    if not owners:
        raise UsageError("a key is split among at least one owner")
    rest = key.reveal(TOKEN)
    shares = {}
    for owner in owners[:-1]:
        share = secrets.token_bytes(len(rest))
        shares[owner] = SecretKey(share)
        rest = _xor(rest, share)
    shares[owners[-1]] = SecretKey(rest)
    return shares


def join_key(shares: Iterable[SecretKey]) -> SecretKey:
    """The key of which these are all shares; they are wiped."""
    joined = bytes(KEY_BYTES)
    for share in shares:
        joined = _xor(joined, share.reveal(TOKEN))
        share.wipe()
    return SecretKey(joined)


def last_number(statuses: Mapping[str, CheckpointStatus]) -> int:
    """The largest number that any broker has committed."""
    return max((status.last for status in statuses.values()), default=0)


def find_latest(statuses: Mapping[str, CheckpointStatus]) -> CheckpointMark | None:
    """The checkpoint that a job goes on from; None: from its beginning.

    Args:
        statuses: By owner, from every broker that released a key.

    Raises:
        IntegrityError: ``checkpoint-forked``: two checkpoints of one number count.
        StaleError: ``checkpoint-rolled-back``: a broker does not know it.
        PeerError: ``checkpoint-broker-missing``: a part of its key is elsewhere.
    """
    last = last_number(statuses)
    tops = [status for status in statuses.values() if status.last == last]
    if last == 0 or any(status.finished for status in tops):
        return None
    marks = {status.committed for status in tops if status.committed}
    if len(marks) != 1:
        raise IntegrityError(
            f"two checkpoints have the number {last}",
            why="runs of this job with different owners went on side by side",
            code="checkpoint-forked",
        )
    (mark,) = marks
    for owner in mark.split:
        if owner not in statuses:
            raise PeerError(
                f"checkpoint {mark.number} needs the broker of {owner}",
                why="it holds a share of the key and released nothing to us",
                code="checkpoint-broker-missing",
            )
        if mark not in (statuses[owner].committed, statuses[owner].pending):
            raise rolled_back(mark.number, f"the broker of {owner}")
    return mark


def rolled_back(number: int, who: str) -> StaleError:
    """The error for a memory that lost a checkpoint."""
    return StaleError(
        f"{who} does not know checkpoint {number}",
        why="its files are older than that, or another copy",
        code="checkpoint-rolled-back",
    )


def _rising(names: Sequence[str]) -> bool:
    return all(a < b for a, b in itertools.pairwise(names))


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
