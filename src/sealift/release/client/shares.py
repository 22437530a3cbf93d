"""The accelerator's side of checkpoints: claim, deposit, commit, fetch, finish.

Each asks one owner's broker in one session. As with keys (``release/client/broker.py``),
nothing that comes is believed: what counts must stand in the owner's log, and a share
must be sealed to this session and signed by the owner.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from sealift.codec import encode
from sealift.crypto.kdf import Label
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    IntegrityError,
    MalformedError,
    PolicyError,
    StaleError,
)
from sealift.ids import Digest
from sealift.release.agreement import Party
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.checkpoints import mark_of, signed_bytes
from sealift.release.broker.messages import BrokerAnswer, BrokerRequest
from sealift.release.checkpoint import (
    CheckpointMark,
    CheckpointRequest,
    CheckpointStatus,
    Fetch,
    Logged,
    ShareInfo,
    ShareRelease,
    deposit_of,
)
from sealift.release.client.broker import (
    RELEASE_TIMEOUT_S,
    BrokerRefusedError,
    require_answer,
    require_owners_broker,
)
from sealift.release.grant import CHALLENGE_BYTES, EXPIRY_S, verify_owner
from sealift.release.log.entries import (
    CheckpointEntry,
    CheckpointKind,
    SignedTreeHead,
    read_entry,
    verify_entry,
    verify_head,
)
from sealift.session.session import Session

SUPERSEDED: Final = "instance-superseded"
# Refusals that end a run; after any other one training goes on without the checkpoint.
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
        return require_answer(answer.status, answer)

    def deposit(self, mark: CheckpointMark, share: SecretKey) -> None:
        """Have a share kept; the checkpoint does not count by that."""
        deposit = deposit_of(mark, share)
        answer = self._ask(CheckpointRequest(job=self._job, deposit=deposit))
        if require_answer(answer.status, answer).pending != mark:
            raise MalformedError("the broker kept something else", code="bad-answer")

    def commit(self, mark: CheckpointMark) -> SignedTreeHead:
        """Let a checkpoint count; the head that covers the entry.

        Raises:
            IntegrityError: ``checkpoint-unlogged``: it does not stand in the log.
        """
        answer = self._ask(CheckpointRequest(job=self._job, commit=mark))
        logged = require_answer(answer.logged, answer)
        self._verify_logged(logged, "checkpoint", mark)
        return logged.head

    def finish(self) -> SignedTreeHead:
        """The job needs no checkpoint any more; the head that covers the entry."""
        answer = self._ask(CheckpointRequest(job=self._job, finish=True))
        logged = require_answer(answer.logged, answer)
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
            raise StaleError("the release came too late", code="expired")
        release = require_answer(answer.share, answer)
        share = self._open(release, self._expected(fetch))
        return share, release.logged.head

    def _expected(self, fetch: Fetch) -> ShareInfo:
        return ShareInfo(
            agreement=self._agreement,
            job=self._job,
            mark=fetch.mark,
            owner=self._owner.name,
            recipient=self._session.th2,
            challenge=fetch.challenge,
            expiry_s=EXPIRY_S,
        )

    def _open(self, release: ShareRelease, expected: ShareInfo) -> SecretKey:
        if release.info != expected:
            raise StaleError(
                "the share was released for something else",
                why="another job, checkpoint, session or challenge",
                code="release-foreign",
            )
        message = signed_bytes(release.sealed, release.info)
        verify_owner(Label.CHECKPOINT_SHARE, message, release.signature, self._owner)
        entry = self._verify_logged(release.logged, "checkpoint-release", expected.mark)
        if entry.info != Digest.of(encode(expected)):
            raise _unlogged(self._owner)
        private = self._session.established.hpke
        return private.open(encode(expected), release.sealed)

    def _verify_logged(
        self, logged: Logged, kind: CheckpointKind, mark: CheckpointMark | None
    ) -> CheckpointEntry:
        head = verify_head(logged.head)
        if head.log != self._owner.sign:
            raise PolicyError("the entry is in another owner's log", code="other-log")
        verify_entry(logged.entry, logged.inclusion, head)
        entry = read_entry(logged.entry)
        if not isinstance(entry, CheckpointEntry) or mark not in (None, mark_of(entry)):
            raise _unlogged(self._owner)
        about = (entry.kind, entry.agreement, entry.job)
        if about != (kind, self._agreement, self._job):
            raise _unlogged(self._owner)
        return entry

    def _ask(self, request: CheckpointRequest) -> BrokerAnswer:
        self._session.send_message(BrokerRequest(checkpoint=request))
        answer = self._session.receive_message(BrokerAnswer, RELEASE_TIMEOUT_S)
        if answer.refusal is not None:
            error: PolicyError = BrokerRefusedError(answer.refusal)
            if answer.refusal.rule in FINAL_RULES:
                error.code = answer.refusal.rule
            raise error
        return answer


def _unlogged(owner: Party) -> IntegrityError:
    return IntegrityError(
        f"the log entry of {owner.name} is about something else",
        code="checkpoint-unlogged",
    )
