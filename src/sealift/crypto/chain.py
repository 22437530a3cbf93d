"""The path from a device's certificate to a trusted root, every link verified.

Written for device chains, which web validation does not fit: any root that the caller
names, no host names, time as an argument, offline. Every issuer must be a CA that may
sign certificates, with a path length that allows what is below it. Revocation is judged
as vendors tell it, by lists (RFC 5280 section 5) and answers (OCSP, RFC 6960) that were
kept: ``thisUpdate`` and ``nextUpdate`` say how long one is good, so a nonce plays no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp

from sealift.crypto.certificate import (
    MAX_CHAIN,
    Certificate,
    require_whole_bytes,
    say_time,
)
from sealift.crypto.hash import HASHES, STRONG_HASHES, HashName, digest
from sealift.crypto.vendorkeys import EcdsaKey, reading
from sealift.errors import AuthenticationError, EvidenceError, MalformedError
from sealift.ids import Digest

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
            raise MalformedError("a revocation list is not complete")

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
        what = f"the revocation list of {issuer.subject}"
        _require_time(self, at_s, what, code="crl-expired")

    def _is_signed_by(self, issuer: Certificate) -> bool:
        algorithm = self._parsed.signature_hash_algorithm
        if algorithm is None or algorithm.name not in STRONG_HASHES:
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
                why="neither the issuer nor its delegate signed it",
                code="ocsp-not-genuine",
            )
        what = f"an OCSP answer for {issuer.subject}"
        _require_time(self, at_s, what, code="ocsp-expired")

    @property
    def revokes(self) -> bool:
        """Whether it says anything else than good; on hold or unknown count too."""
        return self._status is not ocsp.OCSPCertStatus.GOOD

    def _read(self) -> None:
        found = self._parsed
        if found.response_status is not ocsp.OCSPResponseStatus.SUCCESSFUL:
            raise ValueError
        self._serial = found.serial_number
        self._hash = HASHES[found.hash_algorithm.name]  # of names: it identifies
        self._issuer = (found.issuer_name_hash, found.issuer_key_hash)
        self._status = found.certificate_status
        self.this_update_s = int(found.this_update_utc.timestamp())
        until = found.next_update_utc
        self.next_update_s = int(until.timestamp()) if until else 0  # 0: does not say
        algorithm = found.signature_hash_algorithm
        if algorithm is None or algorithm.name not in STRONG_HASHES:
            raise ValueError
        self._signed_by = HASHES[algorithm.name]
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
        signed, signature = self._parsed.tbs_response_bytes, self._parsed.signature
        try:
            signer.key().verify(signed, signature, self._signed_by)
        except AuthenticationError:
            return False
        return True


def _require_time(
    told: RevocationList | StatusAnswer, at_s: int, what: str, *, code: str
) -> None:
    if not told.this_update_s <= at_s <= told.next_update_s:
        raise EvidenceError(
            f"{what} is not valid at this time",
            why=f"it is valid from {say_time(told.this_update_s)} to "
            f"{say_time(told.next_update_s)}",
            code=code,
        )


def _name_issuer(issuer: Certificate, name: HashName) -> tuple[bytes, bytes]:
    """RFC 6960 section 4.1.1: hashes of the issuer's name and of its key's bits."""
    key = issuer.key()
    with reading("the name of an issuer"):
        bits = b"\x04" + key.point if isinstance(key, EcdsaKey) else key.to_pkcs1()
        subject = issuer.parsed.subject.public_bytes()
    return digest(name, subject), digest(name, bits)


@dataclass(frozen=True, slots=True)
class Revocations:
    """Everything that this side knows about revoked certificates of one vendor."""

    lists: tuple[RevocationList, ...] = ()
    answers: tuple[StatusAnswer, ...] = ()

    def require_unrevoked(self, path: Sequence[Certificate], *, at_s: int) -> None:
        """Refuse a path with a certificate that an answer does not call good.

        Lists are heeded while ``verify_chain`` looks for a path.

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
                        why="its issuer does not confirm that it is good",
                        code="chain-revoked",
                    )

    def know(self, certificate: Certificate, issuer: Certificate) -> bool:
        """Whether a list or an answer is about it."""
        listed = any(each.issuer == issuer.subject for each in self.lists)
        return listed or any(
            each.is_about(certificate, issuer) for each in self.answers
        )


MAX_LINKS: Final = 64
"""Signatures tried on the way up: twins of issuers multiply the ways."""

# What this module or its callers look at: basicConstraints, keyUsage, extKeyUsage,
# subjectAltName. Any other critical extension says something that nobody here heeds.
UNDERSTOOD: Final = frozenset({"2.5.29.19", "2.5.29.15", "2.5.29.37", "2.5.29.17"})


def verify_chain(
    leaf: Certificate,
    others: Iterable[Certificate],
    roots: Sequence[Digest],
    *,
    at_s: int,
    revocations: Revocations | None = None,
    pins_issuers: bool = False,
) -> tuple[Certificate, ...]:
    """The first path from ``leaf`` to a root of which every link holds at ``at_s``.

    An issuer may stand there twice, expired, or signed by somebody else: the other one
    is then tried as well.

    Args:
        leaf: The certificate to trust.
        others: Intermediates and the root itself, in any order.
        roots: SHA-256 of the SubjectPublicKeyInfo of every trusted root.
        at_s: Seconds since 1970.
        revocations: What is known, fresh or refused, of issuers and certificates here.
        pins_issuers: Whether a root may have an issuer; nothing then covers its time.

    Returns:
        Leaf first, root last.

    Raises:
        EvidenceError: what is wrong with the first path: ``chain-broken``,
            ``chain-root``, ``chain-critical``, ``chain-expired``, ``chain-revoked``,
            ``crl-not-genuine`` or ``crl-expired``; or of the path that was found, what
            ``Revocations.require_unrevoked`` says.
    """
    refusal, known = None, revocations or Revocations()
    others = tuple(dict.fromkeys(others))
    for path in _paths(leaf, others, roots):
        try:
            if path[-1].spki_digest not in roots:
                raise _no_root(leaf, path[-1], others)
            _verify_path(path, known.lists, at_s, pins_issuers)
        except EvidenceError as error:
            refusal = refusal or error
        else:
            known.require_unrevoked(path, at_s=at_s)
            return path
    raise refusal or _no_root(leaf, leaf, others)


def _paths(
    leaf: Certificate, others: tuple[Certificate, ...], roots: Sequence[Digest]
) -> Iterator[tuple[Certificate, ...]]:
    """Every way up, to a root or to where nobody is known to have issued the last."""
    waiting: list[tuple[Certificate, ...]] = [(leaf,)]
    left = MAX_LINKS
    while waiting and left >= 0:
        path = waiting.pop()
        above = []
        if path[-1].spki_digest not in roots and len(path) < MAX_CHAIN:
            named = [
                e for e in others if path[-1].issuer == e.subject and e not in path
            ]
            left -= len(named)
            above = [e for e in named[:MAX_LINKS] if path[-1].is_issued_by(e)]
        if not above:
            yield path
        waiting += [(*path, each) for each in reversed(above)]


def _verify_path(
    path: tuple[Certificate, ...],
    lists: tuple[RevocationList, ...],
    at_s: int,
    pins_issuers: bool,
) -> None:
    _require_own_signature(path[-1], pins_issuers)
    for depth, each in enumerate(path):
        if not each.not_before_s <= at_s <= each.not_after_s:
            raise EvidenceError(
                f"the certificate of {each.subject} is not valid at this time",
                why=f"it is valid from {say_time(each.not_before_s)} to "
                f"{say_time(each.not_after_s)}; checked at {say_time(at_s)}",
                code="chain-expired",
            )
        if unknown := sorted(each.critical - UNDERSTOOD):
            raise EvidenceError(
                f"the certificate of {each.subject} has an unknown critical extension",
                why=f"the extension is {unknown[0]}",
                code="chain-critical",
            )
        limit = each.path_length
        if depth and (not each.is_ca or (limit is not None and depth - 1 > limit)):
            raise EvidenceError(
                f"{each.subject} may not issue certificates",
                why="it is not a CA, or its path length is exceeded",
                code="chain-broken",
            )
    for certificate, issuer in pairwise(path):
        for known in (each for each in lists if each.issuer == issuer.subject):
            known.verify_fresh(issuer, at_s=at_s)
            if known.revokes(certificate):
                raise EvidenceError(
                    f"the certificate of {certificate.subject} was revoked",
                    code="chain-revoked",
                )


def _no_root(
    leaf: Certificate, last: Certificate, others: Sequence[Certificate]
) -> EvidenceError:
    what = f"there is no chain from {leaf.subject} to a trusted root"
    if _self_issued(last):
        why = f"it ends at {last.subject}, which is not a trusted root"
        return EvidenceError(what, why=why, code="chain-root")
    why = f"the certificate of {last.issuer}, which issued {last.subject}, is missing"
    fix = "Add that certificate to the evidence, or to the bundle of collateral"
    named = [each for each in others if each.subject == last.issuer]
    if any(last.is_issued_by(each) for each in named):
        why, fix = "more certificates are between them than any device's chain has", ""
    elif named:
        why = f"the certificate of {last.issuer} that was given did not sign {last.subject}"
        fix = "Collect the evidence again: a certificate was changed, or belongs to another chain"
    return EvidenceError(what, why=why, fix=fix, code="chain-broken")


@lru_cache(maxsize=64)  # of trusted keys only, so the same few over and over
def _require_own_signature(root: Certificate, pins_issuers: bool) -> None:
    """Roots are named by key; what else theirs say is covered by their own signature."""
    if not (pins_issuers and not _self_issued(root)) and not root.is_issued_by(root):
        raise EvidenceError(
            f"the certificate of {root.subject} was changed",
            why="its own signature does not verify",
            fix="Fetch the vendor's root certificate again",
            code="chain-broken",
        )


def _self_issued(certificate: Certificate) -> bool:
    return certificate.issuer == certificate.subject
