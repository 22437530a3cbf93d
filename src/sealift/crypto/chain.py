"""The path from a device's certificate to a trusted root, every link verified.

Written for device chains, which web validation does not fit: any root that the caller
names, no host names, time as an argument, offline. Every issuer must be a CA that may
sign certificates, with a path length that allows what is below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from sealift.crypto.certificate import MAX_CHAIN, Certificate, say_time
from sealift.crypto.revocation import RevocationList
from sealift.errors import EvidenceError
from sealift.ids import Digest

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
    revocation_lists: Iterable[RevocationList] = (),
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
        revocation_lists: Checked, fresh or refused, for every issuer that has one here.
        pins_issuers: Whether a root may have an issuer; nothing then covers its time.

    Returns:
        Leaf first, root last.

    Raises:
        EvidenceError: what is wrong with the first path: ``chain-broken``,
            ``chain-root``, ``chain-critical``, ``chain-expired``, ``chain-revoked``,
            ``crl-not-genuine`` or ``crl-expired``.
    """
    refusal, lists = None, tuple(revocation_lists)
    for path in _paths(leaf, tuple(dict.fromkeys(others)), roots):
        try:
            if path[-1].spki_digest not in roots:
                raise _no_root(leaf, path[-1])
            _verify_path(path, lists, at_s, pins_issuers)
        except EvidenceError as error:
            refusal = refusal or error
        else:
            return path
    raise refusal or _no_root(leaf, leaf)


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
    for depth, certificate in enumerate(path):
        _require_time(certificate, at_s)
        _require_understood(certificate)
        if depth:
            _require_ca(certificate, below=depth - 1)
    for certificate, issuer in pairwise(path):
        for each in lists:
            if each.issuer == issuer.subject:
                _require_unrevoked(certificate, issuer, each, at_s)


def _no_root(leaf: Certificate, last: Certificate) -> EvidenceError:
    return EvidenceError(
        f"no chain from {leaf.subject} to a trusted root",
        why=f"nothing here issued {last.subject}",
        fix="Add its issuers to the evidence, or its root to the references",
        code="chain-root" if _self_issued(last) else "chain-broken",
    )


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


def _require_understood(certificate: Certificate) -> None:
    if unknown := sorted(certificate.critical - UNDERSTOOD):
        raise EvidenceError(
            f"the certificate of {certificate.subject} says what nobody here understands",
            why=f"extension {unknown[0]} is critical",
            code="chain-critical",
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
            code="chain-revoked",
        )
