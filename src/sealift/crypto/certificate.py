"""X.509 certificates of hardware vendors (RFC 5280), parsed; nothing is verified here.

Chains are verified in ``chain``, where revocation lists are read.
"""

from __future__ import annotations

import datetime as dt
import warnings
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import AuthorityInformationAccessOID, NameOID

from sealift.crypto.hash import STRONG_HASHES, sha256
from sealift.crypto.vendorkeys import EcdsaKey, RsaKey, read_key, reading
from sealift.errors import MalformedError
from sealift.ids import Digest

# AMD's certificates of chips all have the serial number 0.
warnings.filterwarnings(
    "ignore", message="Parsed a serial number which wasn't positive"
)

E = TypeVar("E", bound=x509.ExtensionType)
MAX_CHAIN: Final = 8
MAX_CERTIFICATE_BYTES: Final = 16 << 10
_REMEMBERED: Final = 128  # certificates, and pairs of them


@dataclass(frozen=True)
class Certificate:
    """One parsed certificate; nothing about it is verified yet.

    Everything that the library makes of it is made on construction, so no later
    question can raise what the library raises.
    """

    der: bytes

    def __post_init__(self) -> None:
        if len(self.der) > MAX_CERTIFICATE_BYTES:
            raise MalformedError("a certificate is too large")
        with warnings.catch_warnings(), reading("a certificate"):
            warnings.simplefilter("ignore")  # names of odd length are not refused
            _ = (self.subject, self.issuer, self.spki, self.not_before_s)
            _ = (self.not_after_s, self.subject_name, self._extensions)
            require_whole_bytes(self.der, self.parsed.signature)

    @classmethod
    def from_pem(cls, pem: bytes) -> Certificate:
        """The first certificate of a PEM text."""
        return certificates_from_pem(pem)[0]

    @cached_property
    def subject(self) -> str:
        """RFC 4514 text of the subject."""
        return self.parsed.subject.rfc4514_string()

    @cached_property
    def issuer(self) -> str:
        """RFC 4514 text of the issuer."""
        return self.parsed.issuer.rfc4514_string()

    @cached_property
    def subject_name(self) -> str:
        """The subject's common name; empty if it has none, or several."""
        found = self.parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(found[0].value) if len(found) == 1 else ""

    @property
    def serial(self) -> int:
        """Serial number."""
        return self.parsed.serial_number

    @cached_property
    def spki(self) -> bytes:
        """The key, as SubjectPublicKeyInfo."""
        return self.parsed.public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )

    @property
    def spki_digest(self) -> Digest:
        """SHA-256 of the key: how roots and devices are named."""
        return Digest(sha256(self.spki))

    @cached_property
    def not_after_s(self) -> int:
        """End of validity, seconds since 1970."""
        return int(self.parsed.not_valid_after_utc.timestamp())

    @cached_property
    def not_before_s(self) -> int:
        """Start of validity, seconds since 1970."""
        return int(self.parsed.not_valid_before_utc.timestamp())

    @property
    def is_ca(self) -> bool:
        """Whether it may sign certificates: basicConstraints, and keyUsage if there."""
        basic, usage = self._find(x509.BasicConstraints), self._find(x509.KeyUsage)
        return bool(basic and basic.ca and (usage is None or usage.key_cert_sign))

    @property
    def signs_lists(self) -> bool:
        """Whether it may sign revocation lists: keyUsage, if there."""
        usage = self._find(x509.KeyUsage)
        return usage is None or usage.crl_sign

    @property
    def path_length(self) -> int | None:
        """CA certificates that may stand between it and a leaf, or None for any."""
        basic = self._find(x509.BasicConstraints)
        return basic.path_length if basic else None

    @property
    def critical(self) -> frozenset[str]:
        """OIDs of extensions that whoever does not understand them must not ignore."""
        return frozenset(oid for oid, each in self._extensions.items() if each.critical)

    @property
    def names_revocation(self) -> bool:
        """Whether it says who tells that it was revoked: a list's place, or OCSP."""
        access = self._find(x509.AuthorityInformationAccess) or ()
        ocsp = AuthorityInformationAccessOID.OCSP
        listed = self._find(x509.CRLDistributionPoints) is not None
        return listed or any(each.access_method == ocsp for each in access)

    def key(self) -> EcdsaKey | RsaKey:
        """The public key.

        Raises:
            MalformedError: for a kind of key that no evidence uses, or a weak one.
        """
        return read_key(self.spki)

    def extension(self, oid: str) -> bytes | None:
        """DER value of the extension ``oid`` (dotted), or None.

        Raises:
            MalformedError: if it cannot be written.
        """
        found = self._extensions.get(oid)
        with reading("an extension of a certificate"):
            return found.value.public_bytes() if found else None

    def directory_names(self) -> dict[str, str]:
        """Attributes of the directory names among the alternative names, by OID.

        Raises:
            MalformedError: if one stands twice.
        """
        found = self._find(x509.SubjectAlternativeName)
        names = found.get_values_for_type(x509.DirectoryName) if found else []
        attributes = [each for name in names for each in name]
        texts = {each.oid.dotted_string: str(each.value) for each in attributes}
        if len(texts) != len(attributes):
            raise MalformedError("a certificate names the same attribute twice")
        return texts

    def is_issued_by(self, issuer: Certificate) -> bool:
        """Whether names fit and the issuer's key made the signature, not over SHA-1."""
        return _is_issued_by(self, issuer)

    def _find(self, kind: type[E]) -> E | None:
        found = self._extensions.get(kind.oid.dotted_string)
        return found.value if found and isinstance(found.value, kind) else None

    @cached_property
    def _extensions(self) -> dict[str, x509.Extension[x509.ExtensionType]]:
        return {each.oid.dotted_string: each for each in self.parsed.extensions}

    @cached_property
    def parsed(self) -> x509.Certificate:
        """The library's object, for this room only."""
        return x509.load_der_x509_certificate(self.der)


def require_whole_bytes(der: bytes, signature: bytes) -> None:
    """The count of unused bits before a signature is covered by nothing, so it is 0."""
    if not der.endswith(b"\0" + signature):
        raise ValueError("a signature is not a whole number of bytes")


def certificates_from_pem(pem: bytes) -> tuple[Certificate, ...]:
    """Every certificate of a PEM text, in its order; at least one.

    Raises:
        MalformedError: if there is none, too many, or one does not parse.
    """
    with reading("certificates in PEM"):
        parsed = x509.load_pem_x509_certificates(pem.rstrip(b"\0"))
    if len(parsed) > 4 * MAX_CHAIN:
        raise MalformedError(f"{len(parsed)} certificates", why="too many")
    return tuple(read_certificate(each.public_bytes(Encoding.DER)) for each in parsed)


@lru_cache(_REMEMBERED)
def read_certificate(der: bytes) -> Certificate:
    """A certificate that is likely to come again; the same object then.

    Vendors' issuers come with every piece of evidence, and a host's own with each of
    its renewals. Nothing is remembered of bytes that do not parse.

    Raises:
        MalformedError: if it does not parse.
    """
    return Certificate(der)


@lru_cache(_REMEMBERED)
def _is_issued_by(certificate: Certificate, issuer: Certificate) -> bool:
    """By their bytes: whatever is said about time and revocation is asked each time."""
    try:
        issuer.key()  # its modulus or curve, before the library computes with it
        with reading("a signature of that issuer"):
            algorithm = certificate.parsed.signature_hash_algorithm
            certificate.parsed.verify_directly_issued_by(issuer.parsed)
    except MalformedError:
        return False
    return algorithm is not None and algorithm.name in STRONG_HASHES


def say_time(at_s: int) -> str:
    """A time for people: ``2025-06-01 00:00 UTC``."""
    return dt.datetime.fromtimestamp(at_s, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
