"""Revocation as vendors tell it: lists (RFC 5280 section 5), and answers (OCSP, RFC 6960).

Both are kept and judged offline, at the time that the caller names, so a nonce plays no
part: ``thisUpdate`` and ``nextUpdate`` say how long an answer is good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp

from sealift.crypto.certificate import (
    HASHES,
    Certificate,
    require_whole_bytes,
    say_time,
)
from sealift.crypto.hash import HashName, digest
from sealift.crypto.signatures import EcdsaKey, reading
from sealift.errors import AuthenticationError, EvidenceError, MalformedError

MAX_CRL_BYTES: Final = 1 << 20


class RevocationList:
    """A parsed CRL; ``verify_fresh`` before ``revokes``."""

    def __init__(self, raw: bytes) -> None:
        if len(raw) > MAX_CRL_BYTES:
            raise MalformedError("a revocation list is too large")
        load = x509.load_pem_x509_crl if raw[:5] == b"-----" else x509.load_der_x509_crl
        with reading("a revocation list"):
            self._parsed = load(raw)
            self.issuer = self._parsed.issuer.rfc4514_string()
            _ = self._parsed.signature_hash_algorithm
            self.this_update_s = int(self._parsed.last_update_utc.timestamp())
            due = self._parsed.next_update_utc
            self.next_update_s = int(due.timestamp()) if due else 0  # 0: does not say
            self._serials = {each.serial_number for each in self._parsed}
            der = self._parsed.public_bytes(Encoding.DER)
            require_whole_bytes(der, self._parsed.signature)
            partial = any(each.critical for each in self._parsed.extensions)
        if partial:  # of some reasons, of others' certificates, or since another list
            raise MalformedError("a revocation list that is not a whole one")

    def verify_fresh(self, issuer: Certificate, *, at_s: int) -> None:
        """Check who signed it and that ``at_s`` lies in its time.

        Raises:
            EvidenceError: ``crl-not-genuine`` or ``crl-expired``.
        """
        if not self._is_signed_by(issuer):
            raise EvidenceError(
                f"the revocation list of {issuer.subject} is not genuine",
                code="crl-not-genuine",
            )
        if not self.this_update_s <= at_s <= self.next_update_s:
            raise EvidenceError(
                f"the revocation list of {issuer.subject} is not of this time",
                why=f"it holds from {say_time(self.this_update_s)} "
                f"to {say_time(self.next_update_s)}",
                code="crl-expired",
            )

    def _is_signed_by(self, issuer: Certificate) -> bool:
        algorithm = self._parsed.signature_hash_algorithm
        if algorithm is None or algorithm.name not in HASHES:
            return False
        if self._parsed.issuer != issuer.parsed.subject or not issuer.signs_lists:
            return False
        try:
            issuer.key()  # its modulus or curve, before the library computes with it
            with reading("a signature of that issuer"):
                public = issuer.parsed.public_key()
                return self._parsed.is_signature_valid(public)  # type: ignore[arg-type]
        except MalformedError:
            return False

    def revokes(self, certificate: Certificate) -> bool:
        """Whether it names the certificate's serial number."""
        return certificate.serial in self._serials


MAX_ANSWER_BYTES: Final = 32 << 10
_SIGNING_DER: Final = bytes.fromhex("06082b06010505070309")  # 1.3.6.1.5.5.7.3.9
_KEY_USES: Final = "2.5.29.37"
_HASHES: Final[dict[str, HashName]] = {  # of names and keys: they identify, no more
    "sha1": "sha1",
    "sha256": "sha256",
    "sha384": "sha384",
    "sha512": "sha512",
}


class StatusAnswer:
    """A parsed answer about one certificate; ``verify_fresh`` before ``revokes``."""

    def __init__(self, raw: bytes) -> None:
        if len(raw) > MAX_ANSWER_BYTES:
            raise MalformedError("an OCSP answer is too large")
        with reading("an OCSP answer about one certificate"):
            self._parsed = ocsp.load_der_ocsp_response(raw)
            if b"\0" + self._parsed.signature not in raw:
                raise ValueError  # a bit string of broken bytes: another writing of it
            self._read()

    def is_about(self, certificate: Certificate, issuer: Certificate) -> bool:
        """Whether it answers for ``certificate``, named by serial number and issuer."""
        return self._serial == certificate.serial and self._issuer == _name_issuer(
            issuer, self._hash
        )

    def verify_fresh(self, issuer: Certificate, *, at_s: int) -> None:
        """Check that the issuer or its delegate signed it, and that it is of the time.

        Raises:
            EvidenceError: ``ocsp-not-genuine`` or ``ocsp-expired``.
        """
        if not any(self._is_signed_by(each) for each in self._signers(issuer, at_s)):
            raise EvidenceError(
                f"an OCSP answer for {issuer.subject} is not genuine",
                why="neither it nor its delegate signed it",
                code="ocsp-not-genuine",
            )
        if not self.this_update_s <= at_s <= self.next_update_s:
            raise EvidenceError(
                f"an OCSP answer for {issuer.subject} is not of this time",
                why=f"it holds from {say_time(self.this_update_s)} "
                f"to {say_time(self.next_update_s)}",
                code="ocsp-expired",
            )

    @property
    def revokes(self) -> bool:
        """Whether it says anything else than good; on hold or unknown count too."""
        return self._status is not ocsp.OCSPCertStatus.GOOD

    def _read(self) -> None:
        found = self._parsed
        if found.response_status is not ocsp.OCSPResponseStatus.SUCCESSFUL:
            raise ValueError
        self._serial = found.serial_number
        self._hash = _HASHES[found.hash_algorithm.name]
        self._issuer = (found.issuer_name_hash, found.issuer_key_hash)
        self._status = found.certificate_status
        self.this_update_s = int(found.this_update_utc.timestamp())
        until = found.next_update_utc
        self.next_update_s = int(until.timestamp()) if until else 0  # 0: does not say
        algorithm = found.signature_hash_algorithm
        name = _HASHES.get(algorithm.name) if algorithm else None
        if name is None or name == "sha1":
            raise ValueError
        self._signed_by: HashName = name
        self._certificates = tuple(
            Certificate(each.public_bytes(Encoding.DER)) for each in found.certificates
        )

    def _signers(self, issuer: Certificate, at_s: int) -> list[Certificate]:
        delegates = [
            each
            for each in self._certificates
            if each.is_issued_by(issuer)
            and _SIGNING_DER in (each.extension(_KEY_USES) or b"")
            and each.not_before_s <= at_s <= each.not_after_s
        ]
        return [issuer, *delegates]

    def _is_signed_by(self, signer: Certificate) -> bool:
        key, signed = signer.key(), self._parsed.tbs_response_bytes
        verify = key.verify_der if isinstance(key, EcdsaKey) else key.verify_pkcs1
        try:
            verify(signed, self._parsed.signature, self._signed_by)
        except AuthenticationError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Revocations:
    """Everything that this side knows about revoked certificates of one vendor."""

    lists: tuple[RevocationList, ...] = ()
    answers: tuple[StatusAnswer, ...] = ()

    def require_unrevoked(self, path: Sequence[Certificate], *, at_s: int) -> None:
        """Refuse a path with a certificate that an answer does not call good.

        Lists are for ``verify_chain``.

        Raises:
            EvidenceError: ``chain-revoked``, ``ocsp-not-genuine`` or ``ocsp-expired``.
        """
        for certificate, issuer in pairwise(path):
            for answer in self.answers:
                if not answer.is_about(certificate, issuer):
                    continue
                answer.verify_fresh(issuer, at_s=at_s)
                if answer.revokes:
                    raise EvidenceError(
                        f"the certificate of {certificate.subject} was revoked",
                        why="its issuer does not answer that it is good",
                        code="chain-revoked",
                    )

    def know(self, certificate: Certificate, issuer: Certificate) -> bool:
        """Whether a list or an answer is about it."""
        listed = any(each.issuer == issuer.subject for each in self.lists)
        return listed or any(
            each.is_about(certificate, issuer) for each in self.answers
        )


def _name_issuer(issuer: Certificate, name: HashName) -> tuple[bytes, bytes]:
    """RFC 6960 section 4.1.1: hashes of the issuer's name and of its key's bits."""
    key = issuer.key()
    with reading("the name of an issuer"):
        bits = b"\x04" + key.point if isinstance(key, EcdsaKey) else key.to_pkcs1()
        subject = issuer.parsed.subject.public_bytes()
    return digest(name, subject), digest(name, bits)
