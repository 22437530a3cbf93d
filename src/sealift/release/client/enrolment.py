"""A host's side of enrolment: show the keys, answer the credential, keep the result."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from sealift.attest.tpm.enrolment import (
    EnrolmentRequest,
    SignedEnrolment,
    verify_enrolment,
)
from sealift.crypto.sign import PublicKey
from sealift.crypto.tpmcredential import Credential
from sealift.errors import PolicyError
from sealift.release.broker.messages import BrokerRequest, EnrolRequest
from sealift.release.client.broker import ask_broker, require_answer
from sealift.session.session import Session

ANSWER_S: Final = 30.0


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
    answer = ask_broker(session, begin, ANSWER_S)
    credential = require_answer(answer.credential, answer)
    finish = BrokerRequest(enrol=EnrolRequest(answer=host.answer(credential)))
    answer = ask_broker(session, finish, ANSWER_S)
    signed = require_answer(answer.enrolment, answer)
    verify_enrolment(signed)
    if signed.enroller != enroller:
        raise PolicyError("another party signed the enrolment", code="other-key")
    host.keep_enrolment(signed)
    return signed
