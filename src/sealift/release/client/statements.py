"""What brokers know of an agreement, and what follows from it for whoever asked.

Nobody is forced to show a statement; whoever was shown one obeys it (rule S4).
"""

from __future__ import annotations

from typing import Final

from sealift.errors import RefusedError
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import SignedStatement
from sealift.release.agreement.successors import find_speaker
from sealift.release.broker.messages import BrokerRequest
from sealift.release.client.broker import ask_broker, require_answer
from sealift.session.session import Session

ANSWER_S: Final = 10.0


def hear_statements(session: Session, verified: VerifiedAgreement) -> VerifiedAgreement:
    """The agreement, with what this broker knows of it besides.

    Raises:
        PolicyError: ``agreement-vetoed`` or ``agreement-cancelled``.
        PeerError: no answer in time.
    """
    answer = ask_broker(session, BrokerRequest(statements=True), ANSWER_S)
    return obey(verified, require_answer(answer.statements, answer))


def tell_statement(
    session: Session, statement: SignedStatement
) -> tuple[SignedStatement, ...]:
    """Have a broker obey a statement; what it knows then.

    Raises:
        PolicyError: ``release-refused``.
        PeerError: no answer in time.
    """
    answer = ask_broker(session, BrokerRequest(statement=statement), ANSWER_S)
    return require_answer(answer.statements, answer)


def obey(
    verified: VerifiedAgreement, told: tuple[SignedStatement, ...]
) -> VerifiedAgreement:
    """The agreement with these statements as well, as far as they count.

    Raises:
        PolicyError: ``agreement-vetoed`` or ``agreement-cancelled``.
    """
    genuine = [each for each in told if _is_signed(each, verified)]
    fresh = [each for each in genuine if each not in verified.statements]
    return verified.under((*verified.statements, *fresh)) if fresh else verified


def _is_signed(signed: SignedStatement, verified: VerifiedAgreement) -> bool:
    try:
        find_speaker(signed, verified.line)
    except RefusedError:
        return False
    return True
