"""Revocation lists of hardware vendors (RFC 5280 section 5), judged at a given time."""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealift.crypto.certificate import (
    HASHES,
    Certificate,
    require_whole_bytes,
    say_time,
)
from sealift.crypto.library import reading
from sealift.errors import EvidenceError, MalformedError

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
