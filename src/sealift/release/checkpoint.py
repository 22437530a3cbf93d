"""Messages about checkpoints, and which checkpoint is the valid one. Pure.

A checkpoint has a fresh key, split among the brokers of every owner whose data key was
released: all shares are needed to open it. It becomes valid as soon as one broker has
committed it, which is requested only when all of them hold their share. From then on no
broker releases a share of an earlier one (rule H14).
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
        sorted_once = all(a < b for a, b in itertools.pairwise(self.split))
        if not 0 < len(self.split) <= MAX_OWNERS or not sorted_once:
            raise MalformedError(
                "owners must be sorted, without repetition", field="split"
            )


@dataclass(frozen=True, slots=True)
class Deposit:
    """Asks to store this share; the checkpoint is not valid yet."""

    mark: CheckpointMark
    share: bytes

    def __post_init__(self) -> None:
        if len(self.share) != KEY_BYTES:
            raise MalformedError(
                f"a key share must have {KEY_BYTES} bytes", field="share"
            )


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks for the share of the valid checkpoint."""

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
            raise MalformedError("a request asks exactly one thing")

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
        raise UsageError("a key must be split among at least one owner")
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
            f"two different checkpoints have number {last}",
            why="the job ran twice in parallel with different owners",
            code="checkpoint-forked",
        )
    (mark,) = marks
    for owner in mark.split:
        if owner not in statuses:
            raise PeerError(
                f"checkpoint {mark.number} needs the broker of {owner}",
                why="it holds a share of the checkpoint's key, and released no key to this accelerator",
                code="checkpoint-broker-missing",
            )
        if mark not in (statuses[owner].committed, statuses[owner].pending):
            raise rolled_back(mark.number, f"the broker of {owner}")
    return mark


def rolled_back(number: int, who: str) -> StaleError:
    """The error for a vault or log that lost a checkpoint."""
    return StaleError(
        f"{who} does not know checkpoint {number}",
        why="its files are an older copy, or a copy of another log",
        code="checkpoint-rolled-back",
    )


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
