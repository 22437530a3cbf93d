"""The accelerator's side of checkpoints: one owner's broker, and all of them together.

As with keys (``release/client.py``), no answer is trusted without proof: a commit must be
in the owner's log, and a share must be sealed to this session and signed by the owner.

There are two phases: every broker stores its share before any broker commits the
checkpoint. So if one broker committed, all shares of the new checkpoint exist; if none
did, all shares of the checkpoint before exist. A crash between two steps leaves one of
these two cases.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

from sealift.crypto.keys import Label, SecretKey
from sealift.errors import (
    IntegrityError,
    MalformedError,
    PeerError,
    PolicyError,
    SealiftError,
    StaleError,
    UsageError,
    require_value,
)
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.messages import BrokerAnswer, BrokerRequest
from sealift.release.checkpoint import (
    CheckpointMark,
    CheckpointRequest,
    CheckpointStatus,
    Fetch,
    deposit_of,
    find_latest,
    join_key,
    last_number,
    mark_of,
    split_key,
)
from sealift.release.client import (
    RELEASE_TIMEOUT_S,
    BrokerRefusedError,
    ask_broker,
    require_answer,
    require_owners_broker,
)
from sealift.release.grant import (
    CHALLENGE_BYTES,
    EXPIRY_S,
    info_digest,
    open_grant,
    verify_owner,
)
from sealift.release.log.entries import (
    CheckpointEntry,
    CheckpointKind,
    Logged,
    SignedTreeHead,
)
from sealift.session.session import Session

SUPERSEDED: Final = "instance-superseded"
# Refusals that end a run; after any other one training continues without the checkpoint.
FINAL_RULES: Final = frozenset(
    {SUPERSEDED, "checkpoint-number", "checkpoint-rolled-back", "agreement-superseded"}
)


class Shares:
    """One owner's broker, asked about one job's checkpoints.

    Args:
        session: With that broker.
        verified: The agreement.
        owner: Whose broker it is.
        job: Name of the job.
        clock: Monotonic seconds.

    Every method raises ``PolicyError`` with the broker's rule if that is one of
    ``FINAL_RULES`` and ``release-refused`` otherwise, and ``PeerError`` without answer.
    """

    def __init__(
        self,
        session: Session,
        verified: VerifiedAgreement,
        owner: str,
        *,
        job: str,
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._agreement = verified.digest
        self._job = job
        self._clock = clock
        party = verified.party(owner)
        self._owner = require_owners_broker(session, party, verified)

    def claim(self) -> CheckpointStatus:
        """Take the job over from any instance before; what the broker knows of it."""
        answer = self._ask(CheckpointRequest(job=self._job, claim=True))
        return require_answer(answer.status)

    def deposit(self, mark: CheckpointMark, share: SecretKey) -> None:
        """Have a share kept; the checkpoint does not count by that."""
        deposit = deposit_of(mark, share)
        answer = self._ask(CheckpointRequest(job=self._job, deposit=deposit))
        if require_answer(answer.status).pending != mark:
            raise MalformedError(
                "the broker stored a share that differs from the one it was sent",
                code="bad-answer",
            )

    def commit(self, mark: CheckpointMark) -> SignedTreeHead:
        """Let a checkpoint count; the head that covers the entry.

        Raises:
            IntegrityError: ``checkpoint-unlogged``: it does not stand in the log.
        """
        answer = self._ask(CheckpointRequest(job=self._job, commit=mark))
        logged = require_answer(answer.logged)
        self._verify_logged(logged, "checkpoint", mark)
        return logged.head

    def finish(self) -> SignedTreeHead:
        """The job needs no checkpoint any more; the head that covers the entry."""
        answer = self._ask(CheckpointRequest(job=self._job, finish=True))
        logged = require_answer(answer.logged)
        self._verify_logged(logged, "checkpoint-finish", None)
        return logged.head

    def fetch(self, mark: CheckpointMark) -> tuple[SecretKey, SignedTreeHead]:
        """The owner's share of the checkpoint that counts, and the head that covers it.

        Raises:
            StaleError: ``release-foreign`` or ``expired``.
            RefusedError: ``release-unsigned``: the owner did not sign it.
            IntegrityError: ``checkpoint-unlogged``.
            AuthenticationError: if it does not open.
        """
        challenge, asked_at = secrets.token_bytes(CHALLENGE_BYTES), self._clock()
        fetch = Fetch(mark, challenge)
        answer = self._ask(CheckpointRequest(job=self._job, fetch=fetch))
        if self._clock() - asked_at > EXPIRY_S:
            raise StaleError("the broker's answer arrived too late", code="expired")
        release = require_answer(answer.share)
        expected = fetch.grant_info(
            self._agreement, self._job, self._owner.name, self._session.th2
        )
        if release.info != expected:
            raise StaleError(
                "the released share belongs to another request",
                why="its job, checkpoint, session or challenge differs",
                code="release-foreign",
            )
        sealed, label = release.sealed, Label.CHECKPOINT_SHARE
        verify_owner(label, expected, sealed, release.signature, self._owner)
        entry = self._verify_logged(release.logged, "checkpoint-release", mark)
        if entry.info != info_digest(expected):
            raise self._unlogged()
        share = open_grant(expected, sealed, self._session.established.hpke)
        return share, release.logged.head

    def _verify_logged(
        self, logged: Logged, kind: CheckpointKind, mark: CheckpointMark | None
    ) -> CheckpointEntry:
        entry = logged.verify(self._owner.sign)
        if not isinstance(entry, CheckpointEntry) or mark not in (None, mark_of(entry)):
            raise self._unlogged()
        about = (entry.kind, entry.agreement, entry.job)
        if about != (kind, self._agreement, self._job):
            raise self._unlogged()
        return entry

    def _unlogged(self) -> IntegrityError:
        return IntegrityError(
            f"the log entry of {self._owner.name} is not about this request",
            code="checkpoint-unlogged",
        )

    def _ask(self, request: CheckpointRequest) -> BrokerAnswer:
        question = BrokerRequest(checkpoint=request)
        try:
            return ask_broker(self._session, question, RELEASE_TIMEOUT_S)
        except BrokerRefusedError as error:
            if error.rule in FINAL_RULES:
                error.code = error.rule
            raise


Reach = Callable[[str], AbstractContextManager[Shares]]


class CheckpointLedger:
    """What counts of one job's checkpoints.

    Args:
        owners: Whose brokers released a key to this process.
        reach: A fresh session with an owner's broker.
        show: Takes the heads that cover what brokers did for us.
    """

    def __init__(
        self,
        owners: Iterable[str],
        reach: Reach,
        show: Callable[[SignedTreeHead], None],
    ) -> None:
        self._owners = tuple(sorted(owners))
        self._reach = reach
        self._last = 0
        self._mark: CheckpointMark | None = None
        self._behind: set[str] = set()
        self._show = show

    @property
    def next_number(self) -> int:
        """Number of the checkpoint that is recorded next."""
        return self._last + 1

    def may_count(self, sealed: Digest) -> bool:
        """Whether this file is the last one that all brokers hold a share for."""
        return self._mark is not None and self._mark.sealed == sealed

    def claim(self) -> CheckpointMark | None:
        """Take the job over at every broker; the checkpoint to go on from, if any.

        Raises:
            RefusedError: as ``find_latest``, or a broker's refusal.
            PeerError: if a broker that holds a share does not answer.
        """
        statuses = {owner: self._claim(owner) for owner in self._owners}
        latest = find_latest(statuses)
        self._last, self._mark = last_number(statuses), latest
        for owner, status in statuses.items():
            if latest is None and status.committed and not status.finished:
                self._finish(owner)
            elif latest and owner in latest.split and status.committed != latest:
                self._behind.add(owner)
        self._catch_up()
        return latest

    def open_key(self, mark: CheckpointMark) -> SecretKey:
        """The key of the checkpoint that counts, from all brokers that hold a share.

        Raises:
            RefusedError: as ``Shares.fetch``.
            PeerError: if a broker does not answer.
        """
        shares = []
        for owner in mark.split:
            with self._reach(owner) as broker:
                share, head = broker.fetch(mark)
            self._show(head)
            shares.append(share)
        return join_key(shares)

    def record(self, sealed: Digest, key: SecretKey) -> CheckpointMark:
        """Let a sealed file count as the next checkpoint.

        Returns when at least one broker let it count. One that did not is asked again
        before the next checkpoint.

        Args:
            sealed: Digest of the file, which is on the disk.
            key: Its key; not kept.

        Raises:
            PeerError: if a broker does not answer; the checkpoint before counts, or
                this one does, and which of them stands with the brokers.
            PolicyError: if a broker refuses; its ``code`` is in ``FINAL_RULES`` if
                this process cannot go on.
        """
        if not self._owners:
            raise UsageError("no broker released a key, so none holds a share")
        self._catch_up()
        mark = CheckpointMark(self.next_number, sealed, self._owners)
        for owner, share in split_key(key, self._owners).items():
            with self._reach(owner) as broker:
                broker.deposit(mark, share)
            share.wipe()
        # From here on it may count, whatever answers get lost.
        self._last, self._mark, self._behind = mark.number, mark, set(self._owners)
        failure = self._commit_where_possible(mark)
        if len(self._behind) == len(self._owners) and failure is not None:
            raise failure
        return mark

    def finish(self) -> None:
        """No broker needs to keep anything of this job any more; all are told.

        Raises:
            SealiftError: the first refusal, or that one is gone, once all were asked.
        """
        failures: list[SealiftError] = []
        for owner in self._owners:
            try:
                self._finish(owner)
            except SealiftError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        self._mark, self._behind = None, set()

    def _claim(self, owner: str) -> CheckpointStatus:
        with self._reach(owner) as broker:
            return broker.claim()

    def _finish(self, owner: str) -> None:
        with self._reach(owner) as broker:
            self._show(broker.finish())

    def _commit(self, owner: str, mark: CheckpointMark) -> None:
        with self._reach(owner) as broker:
            self._show(broker.commit(mark))
        self._behind.discard(owner)

    def _catch_up(self) -> None:
        """A broker takes no deposit before the checkpoint before counts there too."""
        for owner in sorted(self._behind):
            self._commit(
                owner, require_value(self._mark, "somebody is behind something")
            )

    def _commit_where_possible(self, mark: CheckpointMark) -> SealiftError | None:
        failure: SealiftError | None = None
        for owner in self._owners:
            try:
                self._commit(owner, mark)
            except (PeerError, PolicyError) as error:
                if error.code in FINAL_RULES:
                    raise
                failure = error
        return failure
