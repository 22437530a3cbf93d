"""Leases from the other side: an accelerator proves itself, a holder asks about it.

Whoever holds keys under a lease renews its session with the owner's broker, which
carries fresh evidence, and has that counted. Whoever gives rows asks its own broker
whether the instance still stands well, and stops as soon as it does not.
"""

from __future__ import annotations

from typing import Final

from sealift.crypto.sign import PublicKey
from sealift.release.broker.messages import BrokerRequest, LeaseRequest
from sealift.release.broker.standing import Standing
from sealift.release.client.broker import ask_broker, require_answer
from sealift.session.session import Session

ANSWER_S: Final = 10.0


def prove_lease(session: Session, timeout_s: float = ANSWER_S) -> Standing:
    """Renew the session with fresh evidence and have it counted.

    Raises:
        PeerError: no answer in time, or the renewal was refused (``peer-refused``).
        PolicyError: ``release-refused``: the instance was revoked.
    """
    session.rekey(timeout_s)
    return _ask(session, LeaseRequest(action="prove"), timeout_s)


def give_back_lease(session: Session, timeout_s: float = ANSWER_S) -> Standing:
    """Say that the keys are needed no more; raises like ``prove_lease``."""
    return _ask(session, LeaseRequest(action="give-back"), timeout_s)


def ask_standing(
    session: Session,
    instance: PublicKey,
    *,
    wait_s: float = 0.0,
    timeout_s: float = ANSWER_S,
) -> Standing:
    """Where an instance stands, as its owner's broker sees it.

    Args:
        session: With the own broker, under the party's identity.
        instance: Whom it is about.
        wait_s: The answer comes when it stands badly, or after this time.
        timeout_s: Longest wait beyond that.
    """
    request = LeaseRequest(action="ask", instance=instance, wait_s=wait_s)
    return _ask(session, request, wait_s + timeout_s)


def _ask(session: Session, request: LeaseRequest, timeout_s: float) -> Standing:
    answer = ask_broker(session, BrokerRequest(lease=request), timeout_s)
    return require_answer(answer.standing, answer)
