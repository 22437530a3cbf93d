"""A broker's work on enrolment: whose TPM does an attestation key live in?

A host without an enrolment of this owner connects without evidence and gets only a
challenge: a credential that only the agreed TPM can open, and only for the key that the
host names. A correct answer leads to the enrolment. It is logged, and no key of the owner
depends on it alone, because evidence is appraised completely in every session.
Source: spec/evidence-tpm.md section Enrolment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from sealift.attest.reference import require_references
from sealift.attest.tpm.enrolment import (
    Enrolment,
    EnrolmentRequest,
    SignedEnrolment,
    check_answer,
    make_challenge,
    require_pair,
    sign_enrolment,
    verify_endorsement,
)
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import Signer
from sealift.crypto.tpmcredential import Credential
from sealift.errors import EvidenceError, PolicyError
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.endpoint import VerifiedPeer

MAX_OPEN: Final = 64


# Writes an enrolment into the log and syncs it, or raises UnavailableError.
RecordEnrolment = Callable[[VerifiedPeer, Enrolment], None]


class Enroller:
    """Enrols hosts for one owner under one agreement.

    Args:
        verified: Equipped; says which hosts, roots and enrollers count.
        signer: The owner's identity.
        record: Logs an enrolment.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        verified: VerifiedAgreement,
        signer: Signer,
        *,
        record: RecordEnrolment,
        clock: Callable[[], float],
    ) -> None:
        self._verified = verified
        self._signer = signer
        self._record = record
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[bytes, tuple[Enrolment, SecretKey]] = {}

    def begin(self, request: EnrolmentRequest, session: bytes) -> Credential:
        """Challenge a host; one challenge a session.

        Raises:
            EvidenceError: the keys are not what they must be, or of no agreed maker.
            PolicyError: not one of the agreed hosts, or no TPM was agreed on.
        """
        ek, ak = require_pair(request)
        appraiser = self._verified.appraiser()
        tpm = require_references(appraiser.references.tpm, "TPM evidence")
        if self._signer.public_key not in appraiser.references.enrollers:
            raise PolicyError(
                "the agreement does not name this owner as an enroller",
                code="not-an-enroller",
            )
        _, root = verify_endorsement(
            request.certificates,
            tpm,
            collateral=appraiser.collateral,
            at_s=int(appraiser.clock()),
            max_age_s=appraiser.references.collateral_max_age_s,
        )
        if ek.spki_digest not in tpm.endorsement_keys:
            raise PolicyError(
                "the host is not one that the agreement names",
                why=ek.spki_digest.to_text(),
                code="tpm-other-host",
            )
        enrolment = Enrolment(
            attestation_key=ak.name,
            endorsement_key=ek.spki_digest,
            root=root.key,
            at_s=int(self._clock()),
        )
        credential, secret = make_challenge(ek, ak.name)
        with self._lock:
            if len(self._open) >= MAX_OPEN:
                self._open.clear()  # whoever was slow begins again
            self._open[session] = (enrolment, secret)
        return credential

    def finish(
        self, answer: bytes, peer: VerifiedPeer, session: bytes
    ) -> SignedEnrolment:
        """Check the answer, log and sign the enrolment.

        Raises:
            EvidenceError: ``tpm-not-activated``; the challenge is spent either way.
        """
        with self._lock:
            enrolment, secret = self._open.pop(session, (None, None))
        if enrolment is None or secret is None:
            raise EvidenceError(
                "this session has no open enrolment challenge", code="tpm-not-activated"
            )
        try:
            check_answer(secret, answer)
        finally:
            secret.wipe()
        self._record(peer, enrolment)
        return sign_enrolment(enrolment, self._signer)
