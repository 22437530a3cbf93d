"""The accelerator's side of a release: ask an owner's broker, verify, hold the key.

One release is collected from each owner's broker (rule C10). Nothing that a broker or
anybody between says is believed: the key must be sealed to this session, signed by the
owner in the agreement, in the owner's log, and be the one that the agreement commits to.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, TypeVar

from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey
from sealift.errors import MalformedError, PolicyError, StaleError
from sealift.ids import Role
from sealift.release.agreement import Party, Resource
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.messages import (
    BrokerAnswer,
    BrokerRequest,
    ConsistencyRequest,
    Refusal,
)
from sealift.release.grant import (
    CHALLENGE_BYTES,
    EXPIRY_S,
    KeyRelease,
    ReleaseInfo,
    ReleaseRequest,
    open_release,
)
from sealift.release.log.entries import SignedTreeHead, verify_head
from sealift.release.log.heads import HeadStore
from sealift.release.rollback import Sighting, read_sighting
from sealift.release.visible import visible
from sealift.session.session import Session

T = TypeVar("T")
RELEASE_TIMEOUT_S: Final = 30.0
MAX_REASON_CHARACTERS: Final = 300


def collect_release(
    session: Session,
    verified: VerifiedAgreement,
    resource: str,
    *,
    clock: Callable[[], float],
    timeout_s: float = RELEASE_TIMEOUT_S,
) -> tuple[SecretKey, SignedTreeHead]:
    """Collect the data key of one resource from its owner's broker.

    Args:
        session: A session with that broker.
        verified: The agreement.
        resource: Its name in the agreement.
        clock: Monotonic seconds.
        timeout_s: Longest wait for the answer.

    Returns:
        The key, and the head of the owner's log that covers its release.

    Raises:
        PolicyError: ``release-refused`` with the broker's reason, ``not-the-owner``,
            or ``owner-unsigned``: under this agreement its key is nobody's to ask for.
        RefusedError: the answer is not what was asked for, or not by the owner.
        PeerError: no answer in time.
    """
    wanted = verified.resource(resource)
    owner = verified.require_owner_signed(wanted.owner)
    owner = require_owners_broker(session, owner, verified)
    challenge, asked_at = secrets.token_bytes(CHALLENGE_BYTES), clock()
    request = ReleaseRequest(wanted.name, wanted.part, challenge)
    expected = _expected_info(request, session, wanted, verified)
    answer = ask_broker(session, BrokerRequest(release=request), timeout_s)
    if clock() - asked_at > EXPIRY_S:
        raise StaleError("the release came too late", code="expired")
    release = require_answer(answer.release, answer)
    return _open(release, session, expected, owner, wanted), release.head


def request_head(
    session: Session, timeout_s: float = RELEASE_TIMEOUT_S
) -> SignedTreeHead:
    """The latest head of the broker's log, its signature verified."""
    answer = ask_broker(session, BrokerRequest(head=True), timeout_s)
    signed = require_answer(answer.head, answer)
    verify_head(signed)
    return signed


def request_sighting(
    session: Session,
    owner: str,
    verified: VerifiedAgreement,
    timeout_s: float = RELEASE_TIMEOUT_S,
    *,
    heads: HeadStore | None = None,
) -> Sighting:
    """Which agreement another owner's broker serves, shown by its log.

    Args:
        session: With that broker.
        owner: Whose it is.
        verified: The agreement.
        timeout_s: Longest wait for each answer.
        heads: What this side remembers of logs: the one that is shown must continue
            what was seen of it before, and is remembered.

    Raises:
        IntegrityError, MalformedError: as ``read_sighting`` and ``HeadStore.admit``.
    """
    party = require_owners_broker(session, verified.party(owner), verified)
    answer = ask_broker(session, BrokerRequest(sighting=True), timeout_s)
    served = require_answer(answer.served, answer)
    found = read_sighting(
        served.entry,
        served.inclusion,
        served.head,
        owner=party,
        agreement=verified.agreement,
    )
    if heads is not None:
        _remember(session, party, served.head, heads, timeout_s)
    return found


def _remember(
    session: Session,
    owner: Party,
    served: SignedTreeHead,
    heads: HeadStore,
    timeout_s: float,
) -> None:
    """The log as it is now, and that it continues the one which was shown.

    What was served stands at the log's place of then: that part is the same in a log that
    was written anew from there.
    """

    def prove(log: PublicKey, first: int, second: int) -> tuple[bytes, ...]:
        return request_consistency(session, first, second, timeout_s)

    latest = request_head(session, timeout_s)
    for head in (latest, served):
        if head.log != owner.sign:
            raise _not_the_owner(owner)
        heads.admit(head, prove)


def request_consistency(
    session: Session,
    first: int,
    second: int,
    timeout_s: float = RELEASE_TIMEOUT_S,
) -> tuple[bytes, ...]:
    """The proof that the broker's log only grew; the caller verifies it."""
    wanted = ConsistencyRequest(first, second)
    answer = ask_broker(session, BrokerRequest(consistency=wanted), timeout_s)
    return require_answer(answer.proof, answer)


def ask_broker(
    session: Session, request: BrokerRequest, timeout_s: float
) -> BrokerAnswer:
    """One question and its answer.

    Raises:
        PolicyError: ``release-refused``, with the rule and line of the broker.
        PeerError: no answer in time.
    """
    session.send_message(request)
    answer = session.receive_message(BrokerAnswer, timeout_s)
    if answer.refusal is not None:
        raise BrokerRefusedError(answer.refusal)
    return answer


def _open(
    release: KeyRelease,
    session: Session,
    expected: ReleaseInfo,
    owner: Party,
    resource: Resource,
) -> SecretKey:
    return open_release(
        release,
        expected=expected,
        owner=owner,
        resource=resource,
        private=session.established.hpke,
    )


def _expected_info(
    request: ReleaseRequest,
    session: Session,
    resource: Resource,
    verified: VerifiedAgreement,
) -> ReleaseInfo:
    return ReleaseInfo(
        agreement=verified.digest,
        resource=resource.name,
        purpose=request.purpose,
        owner=resource.owner,
        recipient=session.th2,
        challenge=request.challenge,
        expiry_s=EXPIRY_S,
    )


def require_owners_broker(
    session: Session, owner: Party, verified: VerifiedAgreement
) -> Party:
    """The owner, if its broker is at the other end.

    Raises:
        PolicyError: ``not-the-owner`` or ``other-agreement``.
    """
    peer = session.peer
    if peer.role is not Role.BROKER or peer.identity != owner.sign:
        raise _not_the_owner(owner)
    if peer.agreement != verified.digest:
        raise PolicyError(
            "the broker works under another agreement", code="other-agreement"
        )
    return owner


def _not_the_owner(owner: Party) -> PolicyError:
    return PolicyError(
        f"the peer is not the broker of {owner.name}",
        fix="Ask the broker that runs with the owner's identity",
        code="not-the-owner",
    )


def require_answer(field: T | None, answer: BrokerAnswer) -> T:
    """The part of an answer that was asked for; raises ``bad-answer`` without it."""
    if field is None:
        raise MalformedError("the broker answered something else", code="bad-answer")
    return field


class BrokerRefusedError(PolicyError):
    """What a broker said no to; its own text is made harmless to print.

    Attributes:
        rule: The name of the rule that failed, as the broker tells it.
    """

    default_code = "release-refused"

    def __init__(self, refusal: Refusal) -> None:
        line = visible(refusal.line)[:MAX_REASON_CHARACTERS]
        super().__init__(
            "the broker refused",
            why=f"{line} [{visible(refusal.rule)[:60]}]",
        )
        self.rule = refusal.rule
