"""Asking an owner's broker: for a key, a head, a lease, an enrolment, statements.

No broker, and nobody on the connection, is trusted without proof: a key must be sealed to
this session, signed by the owner in the agreement, recorded in the owner's log, and match
the agreement's commitment. One key comes from each owner's broker (rule C10).

An accelerator that holds keys under a lease renews its session with fresh evidence and
reports that to the broker. A holder asks its own broker whether the accelerator's instance
is still accepted, and stops sending rows when it is not. Nobody is forced to pass on a
statement, and whoever receives one obeys it (rule S4).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol, TypeVar, runtime_checkable

from sealift.attest.tpm.enrolment import (
    EnrolmentRequest,
    SignedEnrolment,
    verify_enrolment,
)
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey
from sealift.crypto.tpmcredential import Credential
from sealift.errors import (
    MalformedError,
    PolicyError,
    RefusedError,
    StaleError,
    visible,
)
from sealift.ids import Role
from sealift.release.agreement import Party, RunTerms
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import SignedStatement
from sealift.release.agreement.successors import find_speaker
from sealift.release.broker.messages import (
    BrokerAnswer,
    BrokerRequest,
    ConsistencyRequest,
    EnrolRequest,
    LeaseRequest,
    LeaseStatus,
    PassRequest,
    Refusal,
)
from sealift.release.facts import Sighting, read_sighting
from sealift.release.grant import (
    CHALLENGE_BYTES,
    EXPIRY_S,
    ReleaseRequest,
    open_release,
)
from sealift.release.log.entries import Logged, SignedTreeHead, verify_head
from sealift.release.log.heads import HeadStore
from sealift.session.session import Session

T = TypeVar("T")
RELEASE_TIMEOUT_S: Final = 30.0
ANSWER_S: Final = 10.0
MAX_REASON_CHARACTERS: Final = 300


class BrokerRefusedError(PolicyError):
    """A broker's refusal; its text is escaped for a terminal.

    Attributes:
        rule: The name of the rule that failed, as the broker tells it.
    """

    default_code = "release-refused"

    def __init__(self, refusal: Refusal) -> None:
        line = visible(refusal.line)[:MAX_REASON_CHARACTERS]
        super().__init__(
            "the broker refused the request",
            why=f"{line} [{visible(refusal.rule)[:60]}]",
        )
        self.rule = refusal.rule


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


def require_answer(field: T | None) -> T:
    """The part of an answer that was asked for; raises ``bad-answer`` without it."""
    if field is None:
        raise MalformedError(
            "the broker's answer does not belong to the request", code="bad-answer"
        )
    return field


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
        raise PolicyError("the broker uses another agreement", code="other-agreement")
    return owner


def _not_the_owner(owner: Party) -> PolicyError:
    return PolicyError(f"the peer is not {owner.name}'s broker", code="not-the-owner")


def collect_release(
    session: Session,
    verified: VerifiedAgreement,
    resource: str,
    *,
    clock: Callable[[], float],
    run: RunTerms | None = None,
    timeout_s: float = RELEASE_TIMEOUT_S,
) -> tuple[SecretKey, Logged]:
    """Collect the data key of one resource from its owner's broker.

    Args:
        session: A session with that broker.
        verified: The agreement.
        resource: Its name in the agreement.
        clock: Monotonic seconds.
        run: What the job sets that it is for; None for a model's key.
        timeout_s: Longest wait for the answer.

    Returns:
        The key, and what the owner's log says of its release.

    Raises:
        PolicyError: ``release-refused`` with the broker's reason, ``not-the-owner``,
            or ``owner-unsigned``: under this agreement its key is nobody's to ask for.
        RefusedError: the answer is not what was asked for, or not by the owner.
        PeerError: no answer in time.
    """
    wanted = verified.resource(resource)
    owner = verified.require_owner_signed(wanted.owner)
    require_owners_broker(session, owner, verified)
    challenge, asked_at = secrets.token_bytes(CHALLENGE_BYTES), clock()
    request = ReleaseRequest(wanted.name, wanted.part, challenge, run)
    expected = request.grant_info(verified.digest, owner.name, session.th2)
    answer = ask_broker(session, BrokerRequest(release=request), timeout_s)
    if clock() - asked_at > EXPIRY_S:
        raise StaleError("the broker's answer arrived too late", code="expired")
    release = require_answer(answer.release)
    data_key = open_release(
        release,
        expected=expected,
        owner=owner,
        resource=wanted,
        private=session.established.hpke,
    )
    return data_key, Logged(release.entry, release.inclusion, release.head)


def request_pass(session: Session, request: PassRequest) -> None:
    """Have an owner's broker count a pass over its rows, before it begins.

    Raises:
        PolicyError: ``release-refused``, with the rule and line of the broker.
        PeerError: no answer in time: it may have been counted.
    """
    answer = ask_broker(session, BrokerRequest(rows=request), ANSWER_S)
    require_answer(answer.visits)


def request_head(
    session: Session, timeout_s: float = RELEASE_TIMEOUT_S
) -> SignedTreeHead:
    """The latest head of the broker's log, its signature verified."""
    answer = ask_broker(session, BrokerRequest(head=True), timeout_s)
    signed = require_answer(answer.head)
    verify_head(signed)
    return signed


def request_consistency(
    session: Session, first: int, second: int, timeout_s: float = RELEASE_TIMEOUT_S
) -> tuple[bytes, ...]:
    """The proof that the broker's log only grew; the caller verifies it."""
    request = BrokerRequest(consistency=ConsistencyRequest(first, second))
    return require_answer(ask_broker(session, request, timeout_s).proof)


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
    served = require_answer(answer.served)
    found = read_sighting(served, owner=party, agreement=verified.agreement)
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
        if head.body.log != owner.sign:
            raise _not_the_owner(owner)
        heads.admit(head, prove)


def prove_lease(session: Session, timeout_s: float = ANSWER_S) -> LeaseStatus:
    """Renew the session with fresh evidence and have it counted.

    Raises:
        PeerError: no answer in time, or the renewal was refused (``peer-refused``).
        PolicyError: ``release-refused``: the instance was revoked.
    """
    session.rekey(timeout_s)
    return _about_lease(session, LeaseRequest(action="prove"), timeout_s)


def give_back_lease(session: Session, timeout_s: float = ANSWER_S) -> LeaseStatus:
    """Say that the keys are needed no more; raises like ``prove_lease``."""
    return _about_lease(session, LeaseRequest(action="give-back"), timeout_s)


def ask_lease(
    session: Session,
    instance: PublicKey,
    *,
    wait_s: float = 0.0,
    timeout_s: float = ANSWER_S,
) -> LeaseStatus:
    """Where an instance stands, as its owner's broker sees it.

    Args:
        session: With the own broker, under the party's identity.
        instance: Whom it is about.
        wait_s: The answer comes when it stands badly, or after this time.
        timeout_s: Longest wait beyond that.
    """
    request = LeaseRequest(action="ask", instance=instance, wait_s=wait_s)
    return _about_lease(session, request, wait_s + timeout_s)


def _about_lease(
    session: Session, request: LeaseRequest, timeout_s: float
) -> LeaseStatus:
    answer = ask_broker(session, BrokerRequest(lease=request), timeout_s)
    return require_answer(answer.standing)


@runtime_checkable
class EnrollingHost(Protocol):
    """An attester of a TPM, or of an agent that asks one: enrolled, it shows it."""

    def enrolments(self) -> tuple[SignedEnrolment, ...]:
        """Every enrolment of its present attestation key."""
        ...

    def enrolment_request(self) -> EnrolmentRequest:
        """What a broker needs."""
        ...

    def answer(self, credential: Credential) -> bytes:
        """The secret of a credential for this host."""
        ...

    def keep_enrolment(self, signed: SignedEnrolment) -> None:
        """Show it in evidence from now on."""
        ...


def enrol(
    session: Session, host: EnrollingHost, enroller: PublicKey
) -> SignedEnrolment:
    """Have an owner's broker enrol this host.

    Args:
        session: With that broker; no evidence is needed.
        host: Ours.
        enroller: The owner's key.

    Raises:
        PolicyError: ``release-refused`` with the broker's reason.
        AuthenticationError: if the enrolment is not signed by the owner.
        UnavailableError: if the TPM does not open the credential.
    """
    begin = BrokerRequest(enrol=EnrolRequest(begin=host.enrolment_request()))
    answer = ask_broker(session, begin, RELEASE_TIMEOUT_S)
    opened = host.answer(require_answer(answer.credential))
    finish = BrokerRequest(enrol=EnrolRequest(answer=opened))
    answer = ask_broker(session, finish, RELEASE_TIMEOUT_S)
    signed = require_answer(answer.enrolment)
    verify_enrolment(signed)
    if signed.enroller != enroller:
        raise PolicyError("the enrolment is signed by another party", code="other-key")
    host.keep_enrolment(signed)
    return signed


def request_statements(
    session: Session, verified: VerifiedAgreement
) -> VerifiedAgreement:
    """The agreement, with what this broker knows of it besides.

    Raises:
        PolicyError: ``agreement-vetoed`` or ``agreement-cancelled``.
        PeerError: no answer in time.
    """
    answer = ask_broker(session, BrokerRequest(statements=True), ANSWER_S)
    return obey(verified, require_answer(answer.statements))


def tell_statement(
    session: Session, statement: SignedStatement
) -> tuple[SignedStatement, ...]:
    """Have a broker obey a statement; what it knows then.

    Raises:
        PolicyError: ``release-refused``.
        PeerError: no answer in time.
    """
    answer = ask_broker(session, BrokerRequest(statement=statement), ANSWER_S)
    return require_answer(answer.statements)


def obey(
    verified: VerifiedAgreement, told: Iterable[SignedStatement]
) -> VerifiedAgreement:
    """The agreement with these statements as well, as far as they count.

    Raises:
        PolicyError: ``agreement-vetoed`` or ``agreement-cancelled``.
    """
    fresh = []
    for each in told:
        with suppress(RefusedError):  # not signed by whom it names
            find_speaker(each, verified.line)
            if each not in verified.statements:
                fresh.append(each)
    return verified.under((*verified.statements, *fresh)) if fresh else verified
