"""The path from a device's certificate to a trusted root, every link verified.

Written for device chains, which web validation does not fit: any root that the caller
names, no host names, time as an argument, offline. Every issuer must be a CA that may
sign certificates, with a path length that allows what is below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from sealift.crypto.certificate import MAX_CHAIN, Certificate, say_time
from sealift.crypto.revocation import RevocationList
from sealift.errors import EvidenceError
from sealift.ids import Digest


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
