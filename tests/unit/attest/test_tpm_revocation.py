"""Whose TPM was revoked: looked up where its certificate says so, refused where nobody would know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import AuthorityInformationAccessOID

from sealift.attest.collateral import Collateral
from sealift.attest.reference import TpmReferences, TpmRoot
from sealift.attest.tpm.enrolment import verify_endorsement
from sealift.crypto.certificate import Certificate
from sealift.errors import PolicyError, RefusedError
from tests.sim.made_chain import AT_S, DAY_S, Issuer, MadeList, make, moment
from tests.sim.ocsp_answers import GOOD, REVOKED, answer

URL = x509.UniformResourceIdentifier("http://maker.example/it")
LISTED = x509.CRLDistributionPoints([x509.DistributionPoint([URL], None, None, None)])


def access(method: x509.ObjectIdentifier) -> x509.AuthorityInformationAccess:
    return x509.AuthorityInformationAccess([x509.AccessDescription(method, URL)])


ASKED = access(AuthorityInformationAccessOID.OCSP)
FETCHED = access(AuthorityInformationAccessOID.CA_ISSUERS)  # no place for revocation
ROOT = make("root", key=rsa.generate_private_key(65537, 2048), usage=(True, True))
MIDDLE = make("middle", ROOT, usage=(True, True), extensions=(LISTED,))


def leaf(*extensions: x509.ExtensionType) -> Issuer:
    return make("ek", MIDDLE, ca=False, extensions=extensions)


def collateral(
    *lists: MadeList, answers: tuple[bytes, ...] = (), age_s: int = 60
) -> Collateral:
    items = {f"tpm/crl/{n}": each.der for n, each in enumerate(lists)}
    items |= {f"tpm/ocsp/{n}": each for n, each in enumerate(answers)}
    return Collateral(as_of_s=AT_S - age_s, items=items)


def says(about: Issuer, issuer: Issuer, status: Any = GOOD) -> bytes:
    """What the issuer answers about a certificate."""
    parts = (
        SimpleNamespace(certificate=each.certificate.parsed, key=each.key)
        for each in (about, issuer)
    )
    return answer(*parts, status=status, made=moment(AT_S - DAY_S))  # type: ignore[arg-type]


def verify(ek: Issuer, known: Collateral, revocation: Any = "required") -> Certificate:
    root = TpmRoot(name="maker", key=ROOT.certificate.spki_digest, operator="hardware")
    references = TpmReferences(
        roots=(root,), endorsement_keys=(), pcrs={}, revocation=revocation
    )
    chain = (ek, MIDDLE, ROOT)
    found, _ = verify_endorsement(
        tuple(each.certificate.der for each in chain),
        references,
        collateral=known,
        at_s=AT_S,
        max_age_s=DAY_S,
    )
    return found


def refusal(*args: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        verify(*args)
    return caught.value.code


def test_a_certificate_whose_lists_are_at_hand_is_taken() -> None:
    ek = leaf(LISTED)
    assert verify(ek, collateral(ROOT.revoke(), MIDDLE.revoke())) == ek.certificate


@pytest.mark.parametrize("revocation", ["required", "none"])
def test_a_named_source_must_be_at_hand_whatever_was_agreed(revocation: str) -> None:
    ek = leaf(LISTED)
    for known in (collateral(ROOT.revoke()), collateral(MIDDLE.revoke()), Collateral()):
        assert refusal(ek, known, revocation) == "revocation-unknown"


def test_revoked_or_not_of_the_time_is_refused() -> None:
    ek, top = leaf(LISTED), ROOT.revoke()
    revoked = MIDDLE.revoke(ek.certificate.serial)
    assert refusal(ek, collateral(top, revoked)) == "chain-revoked"
    middle = ROOT.revoke(MIDDLE.certificate.serial)
    assert refusal(ek, collateral(middle, MIDDLE.revoke())) == "chain-revoked"
    over = MIDDLE.revoke(until_s=AT_S - 1)
    assert refusal(ek, collateral(top, over)) == "crl-expired"


@pytest.mark.parametrize("age_s", [DAY_S + 1, -1])
def test_the_age_of_what_is_known_has_a_bound(age_s: int) -> None:
    ek, lists = leaf(LISTED), (ROOT.revoke(), MIDDLE.revoke())
    assert verify(ek, collateral(*lists, age_s=DAY_S))
    assert refusal(ek, collateral(*lists, age_s=age_s)) == "collateral-stale"


@pytest.mark.parametrize("extensions", [(), (FETCHED,)])
def test_without_a_source_only_if_the_agreement_says_so(
    extensions: tuple[x509.ExtensionType, ...],
) -> None:
    ek, known = leaf(*extensions), collateral(ROOT.revoke())
    assert refusal(ek, known, "required") == "revocation-nowhere"
    assert verify(ek, known, "none") == ek.certificate


def test_a_list_that_is_there_counts_although_nothing_names_it() -> None:
    ek = leaf()
    lists = (ROOT.revoke(), MIDDLE.revoke())
    assert verify(ek, collateral(*lists), "required") == ek.certificate
    revoked = (ROOT.revoke(), MIDDLE.revoke(ek.certificate.serial))
    assert refusal(ek, collateral(*revoked), "none") == "chain-revoked"


@pytest.mark.parametrize("status", [GOOD, REVOKED])
def test_answers_count_like_lists_also_of_rsa_keys(status: Any) -> None:
    ek = leaf(ASKED)
    known = (says(ek, MIDDLE, status), says(MIDDLE, ROOT))
    assert refusal(ek, collateral(answers=known[:1], age_s=1)) in (
        "revocation-unknown",
        "chain-revoked",
    )
    found = collateral(answers=known)
    if status is GOOD:
        assert verify(ek, found) == ek.certificate
        forged = known[1][:-1] + bytes([known[1][-1] ^ 1])
        known = (known[0], forged)
        assert refusal(ek, collateral(answers=known)) == "ocsp-not-genuine"
    else:
        assert refusal(ek, found) == "chain-revoked"


def test_the_refusals_are_decisions() -> None:
    with pytest.raises(PolicyError, match="not checked"):
        verify(leaf(LISTED), Collateral())
