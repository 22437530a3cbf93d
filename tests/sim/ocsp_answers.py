"""OCSP answers of authorities of our own."""

from __future__ import annotations

import datetime as dt

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp

from tests.sim.nvidia_device import AT, Authority

GOOD = ocsp.OCSPCertStatus.GOOD
REVOKED = ocsp.OCSPCertStatus.REVOKED
UNKNOWN = ocsp.OCSPCertStatus.UNKNOWN


def answer(
    about: Authority,
    issuer: Authority,
    *,
    status: ocsp.OCSPCertStatus = GOOD,
    signer: Authority | None = None,
    made: dt.datetime = AT - dt.timedelta(days=1),
    days: int | None = 7,
    name: hashes.HashAlgorithm | None = None,
) -> bytes:
    """What ``issuer``, or its delegate ``signer``, says about a certificate."""
    builder = ocsp.OCSPResponseBuilder().add_response(
        cert=about.certificate,
        issuer=issuer.certificate,
        algorithm=name or hashes.SHA384(),
        cert_status=status,
        this_update=made,
        next_update=made + dt.timedelta(days=days) if days else None,
        revocation_time=made if status is REVOKED else None,
        revocation_reason=None,
    )
    by = signer or issuer
    builder = builder.responder_id(ocsp.OCSPResponderEncoding.HASH, by.certificate)
    if signer:
        builder = builder.certificates([signer.certificate])
    made_answer = builder.sign(by.key, hashes.SHA384())
    return made_answer.public_bytes(Encoding.DER)
