"""X.509 certificates and revocation lists of hardware vendors (RFC 5280).

Written for device chains, which web validation does not fit: any root that the caller
names, no host names, time as an argument, offline. Every issuer must be a CA that may
sign certificates, with a path length that allows what is below it.
"""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from sealift.crypto.ecdsa import EcdsaKey
from sealift.crypto.hash import sha256
from sealift.crypto.rsa import RsaKey
from sealift.errors import EvidenceError, MalformedError
from sealift.ids import Digest

# AMD's certificates of chips all have the serial number 0.
warnings.filterwarnings(
    "ignore", message="Parsed a serial number which wasn't positive"
)

E = TypeVar("E", bound=x509.ExtensionType)
MAX_CHAIN: Final = 8
MAX_CERTIFICATE_BYTES: Final = 16 << 10
MAX_CRL_BYTES: Final = 1 << 20
# Where warnings are errors, what the library only warns of is refused too.
_UNREADABLE: Final = (
    ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, Warning,
)  # fmt: skip
_HASHES: Final = {"sha256", "sha384", "sha512"}


@dataclass(frozen=True)
class Certificate:
    """One parsed certificate; nothing about it is verified yet."""

    der: bytes

    def __post_init__(self) -> None:
        if len(self.der) > MAX_CERTIFICATE_BYTES:
            raise MalformedError("a certificate is too large")
        self._check_parts()

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

    @property
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

    @property
    def not_after_s(self) -> int:
        """End of validity, seconds since 1970."""
        return int(self.parsed.not_valid_after_utc.timestamp())

    @property
    def not_before_s(self) -> int:
        """Start of validity, seconds since 1970."""
        return int(self.parsed.not_valid_before_utc.timestamp())

    @property
    def is_ca(self) -> bool:
        """Whether it may sign certificates: basicConstraints, and keyUsage if there."""
        basic = self._extension(x509.BasicConstraints)
        usage = self._extension(x509.KeyUsage)
        return bool(basic and basic.ca and (usage is None or usage.key_cert_sign))

    @property
    def signs_lists(self) -> bool:
        """Whether it may sign revocation lists: keyUsage, if there."""
        usage = self._extension(x509.KeyUsage)
        return usage is None or usage.crl_sign

    @property
    def path_length(self) -> int | None:
        """CA certificates that may stand between it and a leaf, or None for any."""
        basic = self._extension(x509.BasicConstraints)
        return basic.path_length if basic else None

    def key(self) -> EcdsaKey | RsaKey:
        """The public key.

        Raises:
            MalformedError: for a kind of key that no evidence uses.
        """
        public = self.parsed.public_key()
        if isinstance(public, ec.EllipticCurvePublicKey):
            return EcdsaKey.from_spki(self.spki)
        if isinstance(public, rsa.RSAPublicKey):
            return RsaKey.from_spki(self.spki)
        raise MalformedError("a certificate of an unexpected kind of key")

    def extension(self, oid: str) -> bytes | None:
        """DER value of the extension ``oid`` (dotted), or None.

        Raises:
            MalformedError: if the extensions do not parse, or one stands twice.
        """
        try:
            entries = self.parsed.extensions
            found = entries.get_extension_for_oid(x509.ObjectIdentifier(oid)).value
        except x509.ExtensionNotFound:
            return None
        except (ValueError, x509.DuplicateExtension):
            raise MalformedError("a certificate's extensions do not parse") from None
        return found.public_bytes()

    def directory_names(self) -> dict[str, str]:
        """Attributes of the directory names among the alternative names, by OID.

        Raises:
            MalformedError: if one stands twice, or the extensions do not parse.
        """
        found = self._extension(x509.SubjectAlternativeName)
        names = found.get_values_for_type(x509.DirectoryName) if found else []
        attributes = [each for name in names for each in name]
        texts = {each.oid.dotted_string: str(each.value) for each in attributes}
        if len(texts) != len(attributes):
            raise MalformedError("a certificate names the same attribute twice")
        return texts

    def is_issued_by(self, issuer: Certificate) -> bool:
        """Whether names fit and the issuer's key made the signature, not over SHA-1."""
        try:
            self.parsed.verify_directly_issued_by(issuer.parsed)
            return self.parsed.signature_hash_algorithm is not None and (
                self.parsed.signature_hash_algorithm.name in _HASHES
            )
        except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
            return False

    def _extension(self, kind: type[E]) -> E | None:
        try:
            return self.parsed.extensions.get_extension_for_class(kind).value
        except x509.ExtensionNotFound:
            return None
        except (ValueError, x509.DuplicateExtension):
            raise MalformedError("a certificate's extensions do not parse") from None

    def _check_parts(self) -> None:
        try:
            with warnings.catch_warnings():  # names of odd length are not refused
                warnings.simplefilter("ignore")
                _ = (self.subject, self.issuer, self.serial, self.spki)
            _require_whole_bytes(self.der, self.parsed.signature)
        except _UNREADABLE:
            raise MalformedError("not a certificate") from None

    @cached_property
    def parsed(self) -> x509.Certificate:
        """The library's object, for this room only."""
        return x509.load_der_x509_certificate(self.der)


def _require_whole_bytes(der: bytes, signature: bytes) -> None:
    """The count of unused bits before a signature is covered by nothing, so it is 0."""
    if not der.endswith(b"\0" + signature):
        raise ValueError("a signature that is no whole number of bytes")


def certificates_from_pem(pem: bytes) -> tuple[Certificate, ...]:
    """Every certificate of a PEM text, in its order; at least one.

    Raises:
        MalformedError: if there is none, too many, or one does not parse.
    """
    try:
        parsed = x509.load_pem_x509_certificates(pem.rstrip(b"\0"))
    except _UNREADABLE:
        raise MalformedError("not certificates in PEM") from None
    if len(parsed) > 4 * MAX_CHAIN:
        raise MalformedError(f"{len(parsed)} certificates", why="too many")
    return tuple(Certificate(each.public_bytes(Encoding.DER)) for each in parsed)


class RevocationList:
    """A parsed CRL; ``verify_fresh`` before ``revokes``."""

    def __init__(self, raw: bytes) -> None:
        if len(raw) > MAX_CRL_BYTES:
            raise MalformedError("a revocation list is too large")
        load = x509.load_pem_x509_crl if raw[:5] == b"-----" else x509.load_der_x509_crl
        try:
            self._parsed = load(raw)
            self.issuer = self._parsed.issuer.rfc4514_string()
            _ = self._parsed.signature_hash_algorithm
            der = self._parsed.public_bytes(Encoding.DER)
            _require_whole_bytes(der, self._parsed.signature)
        except _UNREADABLE:
            raise MalformedError("not a revocation list") from None

    @property
    def this_update_s(self) -> int:
        """When it was made, seconds since 1970."""
        return int(self._parsed.last_update_utc.timestamp())

    @property
    def next_update_s(self) -> int:
        """When the next one is due; 0 if it does not say."""
        due = self._parsed.next_update_utc
        return int(due.timestamp()) if due else 0

    def verify_fresh(self, issuer: Certificate, *, at_s: int) -> None:
        """Check who signed it and that ``at_s`` lies in its time.

        Raises:
            EvidenceError: ``crl-not-genuine`` or ``crl-expired``.
        """
        if not self._is_signed_by(issuer):
            raise EvidenceError(
                f"the revocation list of {issuer.subject} is not genuine",
                fix="Fetch the collateral again",
                code="crl-not-genuine",
            )
        if not self.this_update_s <= at_s <= self.next_update_s:
            raise EvidenceError(
                f"the revocation list of {issuer.subject} is not of this time",
                why=f"it holds from {say_time(self.this_update_s)} "
                f"to {say_time(self.next_update_s)}",
                fix="Fetch the collateral again",
                code="crl-expired",
            )

    def _is_signed_by(self, issuer: Certificate) -> bool:
        algorithm = self._parsed.signature_hash_algorithm
        if algorithm is None or algorithm.name not in _HASHES:
            return False
        if self._parsed.issuer != issuer.parsed.subject or not issuer.signs_lists:
            return False
        try:
            return self._parsed.is_signature_valid(issuer.parsed.public_key())  # type: ignore[arg-type]
        except (ValueError, TypeError):
            return False

    def revokes(self, certificate: Certificate) -> bool:
        """Whether it names the certificate's serial number."""
        serial = certificate.serial
        return self._parsed.get_revoked_certificate_by_serial_number(serial) is not None


def verify_chain(
    leaf: Certificate,
    others: Iterable[Certificate],
    roots: Sequence[Digest],
    *,
    at_s: int,
    revocation_lists: Iterable[RevocationList] = (),
    pins_issuers: bool = False,
) -> tuple[Certificate, ...]:
    """The path from ``leaf`` to a root, every link verified at ``at_s``.

    Args:
        leaf: The certificate to trust.
        others: Intermediates and the root itself, in any order.
        roots: SHA-256 of the SubjectPublicKeyInfo of every trusted root.
        at_s: Seconds since 1970.
        revocation_lists: Checked, fresh or refused, for every issuer that has one here.
        pins_issuers: Whether a root may have an issuer; nothing then covers its time.

    Returns:
        Leaf first, root last.

    Raises:
        EvidenceError: ``chain-broken``, ``chain-root``, ``chain-expired``,
            ``chain-revoked``, ``crl-not-genuine`` or ``crl-expired``.
    """
    path = _build_path(leaf, tuple(others), roots)
    _require_own_signature(path[-1], pins_issuers)
    lists = tuple(revocation_lists)
    for depth, certificate in enumerate(path):
        _require_time(certificate, at_s)
        if depth:
            _require_ca(certificate, below=depth - 1)
    for certificate, issuer in pairwise(path):
        for each in lists:
            if each.issuer == issuer.subject:
                _require_unrevoked(certificate, issuer, each, at_s)
    return path


def say_time(at_s: int) -> str:
    """A time for people: ``2025-06-01 00:00 UTC``."""
    return dt.datetime.fromtimestamp(at_s, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _build_path(
    leaf: Certificate, others: tuple[Certificate, ...], roots: Sequence[Digest]
) -> tuple[Certificate, ...]:
    path = [leaf]
    while path[-1].spki_digest not in roots:
        issuer = next((each for each in others if _issued(path[-1], each)), None)
        if issuer is None or issuer in path or len(path) == MAX_CHAIN:
            raise EvidenceError(
                f"no chain from {leaf.subject} to a trusted root",
                why=f"nothing here issued {path[-1].subject}",
                fix="Add its issuers to the evidence, or its root to the references",
                code="chain-root" if _self_issued(path[-1]) else "chain-broken",
            )
        path.append(issuer)
    return tuple(path)


@lru_cache(maxsize=64)  # of trusted keys only, so the same few over and over
def _require_own_signature(root: Certificate, pins_issuers: bool) -> None:
    """Roots are named by key; what else theirs say is covered by their own signature."""
    if not (pins_issuers and not _self_issued(root)) and not root.is_issued_by(root):
        raise EvidenceError(
            f"the certificate of {root.subject} was altered",
            why="its own signature does not fit",
            fix="Fetch the vendor's root certificate again",
            code="chain-broken",
        )


def _issued(certificate: Certificate, issuer: Certificate) -> bool:
    named = certificate.issuer == issuer.subject
    return named and certificate != issuer and certificate.is_issued_by(issuer)


def _self_issued(certificate: Certificate) -> bool:
    return certificate.issuer == certificate.subject


def _require_time(certificate: Certificate, at_s: int) -> None:
    if not certificate.not_before_s <= at_s <= certificate.not_after_s:
        raise EvidenceError(
            f"the certificate of {certificate.subject} is not valid at this time",
            why=f"it holds from {say_time(certificate.not_before_s)} to "
            f"{say_time(certificate.not_after_s)}, asked for {say_time(at_s)}",
            code="chain-expired",
        )


def _require_ca(certificate: Certificate, *, below: int) -> None:
    limit = certificate.path_length
    if not certificate.is_ca or (limit is not None and below > limit):
        raise EvidenceError(
            f"{certificate.subject} may not issue certificates here",
            why="it is no CA, or its path length is exceeded",
            code="chain-broken",
        )


def _require_unrevoked(
    certificate: Certificate,
    issuer: Certificate,
    revocation_list: RevocationList,
    at_s: int,
) -> None:
    revocation_list.verify_fresh(issuer, at_s=at_s)
    if revocation_list.revokes(certificate):
        raise EvidenceError(
            f"the certificate of {certificate.subject} was revoked",
            fix="Do not use this device",
            code="chain-revoked",
        )
