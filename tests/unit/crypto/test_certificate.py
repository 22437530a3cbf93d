"""Chains and revocation lists of vendors: what is taken, and every way to be refused."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from sealift.crypto.certificate import (
    MAX_CERTIFICATE_BYTES,
    Certificate,
    _is_issued_by,
    certificates_from_pem,
    read_certificate,
)
from sealift.crypto.chain import (
    MAX_CRL_BYTES,
    MAX_LINKS,
    RevocationList,
    Revocations,
    verify_chain,
)
from sealift.crypto.vendorkeys import EcdsaKey, RsaKey
from sealift.errors import EvidenceError, MalformedError
from tests.sim.made_chain import AT_S, DAY_S, Issuer, make

ROOT = make("root", usage=(True, True))
MIDDLE = make("middle", ROOT, path_length=0, usage=(True, True))
LEAF = make("leaf", MIDDLE, ca=False)


def chain(
    leaf: Issuer = LEAF,
    *others: Issuer,
    root: Issuer = ROOT,
    at_s: int = AT_S,
    lists: tuple[RevocationList, ...] = (),
) -> tuple[Certificate, ...]:
    return verify_chain(
        leaf.certificate,
        [each.certificate for each in others or (ROOT, MIDDLE)],
        [root.certificate.spki_digest],
        at_s=at_s,
        revocations=Revocations(lists),
    )


def refused(code: str, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(EvidenceError) as caught:
        chain(*args, **kwargs)
    assert caught.value.code == code


def test_good_chain_with_lists_is_taken_leaf_first() -> None:
    path = chain(lists=(ROOT.revoke(1), MIDDLE.revoke(2)))
    assert [each.subject_name for each in path] == ["leaf", "middle", "root"]


def test_a_refusal_names_the_certificate_that_is_missing_or_did_not_sign() -> None:
    def why(*issuers: Issuer, leaf: Issuer = LEAF, root: Issuer = ROOT) -> str:
        with pytest.raises(EvidenceError) as caught:
            chain(leaf, *issuers, root=root)
        return f"{caught.value.why}. {caught.value.fix}"

    lost = why(ROOT)
    assert "CN=middle" in lost
    assert "is missing" in lost
    assert "CN=root" in why(MIDDLE)
    changed = why(make("middle", ROOT), ROOT)
    assert "did not sign CN=leaf" in changed
    assert "missing" not in changed
    assert "not a trusted root" in why(MIDDLE, ROOT, root=make("root"))
    line = [ROOT]
    for place in range(9):
        line.append(make(f"ca-{place}", line[-1]))
    assert "more certificates" in why(*line, leaf=line[-1])


def test_a_leaf_that_is_the_root_is_its_own_path() -> None:
    assert chain(ROOT) == (ROOT.certificate,)


def test_another_root_of_the_same_name_is_refused() -> None:
    refused("chain-broken", LEAF, MIDDLE, make("root"))


def test_a_root_that_nobody_trusts_is_refused() -> None:
    refused("chain-root", root=make("root"))


def test_a_missing_link_is_refused() -> None:
    refused("chain-broken", LEAF, ROOT)


@pytest.mark.parametrize("at_s", [AT_S - 11 * DAY_S, AT_S + 11 * DAY_S, 0])
def test_outside_its_time_is_refused(at_s: int) -> None:
    refused("chain-expired", at_s=at_s)


def test_an_expired_issuer_is_refused() -> None:
    middle = make("middle", ROOT, until_s=AT_S - 1)
    refused("chain-expired", make("leaf", middle, ca=False), ROOT, middle)


def test_an_issuer_that_is_no_ca_is_refused() -> None:
    middle = make("middle", ROOT, ca=False)
    refused("chain-broken", make("leaf", middle), ROOT, middle)


def test_an_issuer_that_may_not_sign_certificates_is_refused() -> None:
    middle = make("middle", ROOT, usage=(False, True))
    refused("chain-broken", make("leaf", middle), ROOT, middle)


def test_path_length_counts_the_cas_below() -> None:
    lower = make("lower", MIDDLE)
    refused("chain-broken", make("leaf", lower, ca=False), ROOT, MIDDLE, lower)
    roomy = make("roomy", ROOT, path_length=1)
    lower = make("lower", roomy)
    assert len(chain(make("leaf", lower, ca=False), ROOT, roomy, lower)) == 4


def test_chains_have_a_limit() -> None:
    line = [ROOT]
    for place in range(9):
        line.append(make(f"ca-{place}", line[-1]))
    refused("chain-broken", line[-1], *line)


def test_cross_signing_in_a_circle_ends() -> None:
    first = make("first")
    second = make("second", first)
    crossed = make("first", second, key=first.key)
    refused("chain-broken", make("leaf", first), crossed, second)


def test_sha1_signatures_are_refused() -> None:
    """As made by a library that still can; the control is the same link over SHA-256."""
    key = rsa.generate_private_key(65537, 2048)
    root = make("old", key=key)
    assert chain(make("leaf", root), root, root=root)
    refused("chain-broken", make("leaf", root, weak=True), root, root=root)


def test_an_altered_root_is_refused_though_its_key_is_trusted() -> None:
    longer = make("root", until_s=AT_S + 99 * DAY_S, key=ROOT.key)
    der = bytearray(ROOT.certificate.der)
    until = dt.datetime.fromtimestamp(ROOT.certificate.not_after_s, dt.UTC)
    der[der.rindex(until.strftime("%y%m%d%H%M%SZ").encode())] ^= 1
    altered = Issuer(ROOT.key, Certificate(bytes(der)))
    assert altered.certificate.spki_digest == ROOT.certificate.spki_digest
    refused("chain-broken", LEAF, MIDDLE, altered)
    assert chain(LEAF, MIDDLE, longer)


def test_a_root_that_names_another_issuer_is_not_believed_about_its_time() -> None:
    """Anybody can write a certificate of the root's key: only its own key covers it."""
    old = make("old", until_s=AT_S - 1)
    middle = make("middle", old)
    leaf = make("leaf", middle, ca=False)
    refused("chain-expired", leaf, middle, old, root=old)
    named = old.certificate.parsed.subject
    written = written_over(old, named, make("anybody"))
    assert written.certificate.spki_digest == old.certificate.spki_digest
    refused("chain-broken", leaf, middle, written, root=old)
    pinned = verify_chain(
        leaf.certificate,
        [middle.certificate, written.certificate],
        [old.certificate.spki_digest],
        at_s=AT_S,
        pins_issuers=True,
    )
    assert len(pinned) == 3


def written_over(root: Issuer, name: x509.Name, by: Issuer) -> Issuer:
    """A certificate of the root's name and key, by somebody else."""
    day = dt.timedelta(days=1)
    now = dt.datetime.fromtimestamp(AT_S, dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(by.certificate.parsed.subject)
        .public_key(root.key.public_key())
        .serial_number(1)
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .sign(by.key, hashes.SHA256())
    )
    return Issuer(root.key, Certificate(made.public_bytes(Encoding.DER)))


@pytest.mark.parametrize("turn", [1, -1])
def test_an_expired_twin_of_an_issuer_does_no_harm(turn: int) -> None:
    expired = make("middle", ROOT, until_s=AT_S - 1, key=MIDDLE.key)
    refused("chain-expired", LEAF, ROOT, expired)  # control: alone it is one
    path = chain(LEAF, ROOT, *(expired, MIDDLE)[::turn])
    assert path[1] == MIDDLE.certificate


@pytest.mark.parametrize("turn", [1, -1])
def test_a_twin_that_another_root_signed_does_no_harm(turn: int) -> None:
    strange = make("strange")
    crossed = make("middle", strange, key=MIDDLE.key)
    refused("chain-root", LEAF, ROOT, crossed, strange)
    path = chain(LEAF, *(ROOT, strange, crossed, MIDDLE)[::turn])
    assert path == (LEAF.certificate, MIDDLE.certificate, ROOT.certificate)


def test_an_expired_twin_of_the_root_does_no_harm() -> None:
    expired = make("root", until_s=AT_S - 1, key=ROOT.key)
    refused("chain-expired", LEAF, MIDDLE, expired)
    assert chain(LEAF, MIDDLE, expired, ROOT)[-1] == ROOT.certificate


def test_no_twin_makes_good_what_its_issuer_revoked() -> None:
    twin = make("middle", ROOT, key=MIDDLE.key)
    lists = (MIDDLE.revoke(LEAF.certificate.serial),)
    refused("chain-revoked", LEAF, ROOT, MIDDLE, twin, lists=lists)


def test_the_work_on_twins_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six floors of eight twins each are 262,144 ways up, all of them in vain."""
    floors = [[make("floor-0", ROOT)]]
    for number in range(1, 6):
        below = floors[-1][0]
        key = ec.generate_private_key(ec.SECP256R1())
        floors.append([make(f"floor-{number}", below, key=key) for _ in range(8)])
    asked: list[Certificate] = []
    plain = Certificate.is_issued_by

    def counted(certificate: Certificate, issuer: Certificate) -> bool:
        asked.append(issuer)
        return plain(certificate, issuer)

    monkeypatch.setattr(Certificate, "is_issued_by", counted)
    others = [each for floor in floors for each in floor]
    refused("chain-broken", make("leaf", floors[-1][0], ca=False), *others, root=ROOT)
    assert len(asked) <= MAX_LINKS + 8


UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0")
CONSTRAINTS = x509.NameConstraints([x509.DNSName("a.b")], None)


@pytest.mark.parametrize("extension", [UNKNOWN, CONSTRAINTS])
@pytest.mark.parametrize("critical", [True, False])
def test_an_unknown_critical_extension_is_refused_anywhere(
    extension: x509.ExtensionType, critical: bool
) -> None:
    extra = ((extension, critical),)
    root = make("root", critical=extra)
    middle = make("middle", root, critical=extra)
    found = (
        (make("leaf", MIDDLE, ca=False, critical=extra), ROOT, MIDDLE, ROOT),
        (make("leaf", middle, ca=False), root, middle, root),
        (make("leaf", root, ca=False), root, root, root),
    )
    for leaf, top, between, trusted in found:
        if critical:
            refused("chain-critical", leaf, top, between, root=trusted)
        else:
            assert chain(leaf, top, between, root=trusted)


@pytest.mark.parametrize("revoker", [ROOT, MIDDLE])
def test_a_revoked_link_is_refused(revoker: Issuer) -> None:
    serials = [each.certificate.serial for each in (MIDDLE, LEAF)]
    refused("chain-revoked", lists=(revoker.revoke(*serials),))


def test_each_list_of_an_issuer_counts() -> None:
    lists = (MIDDLE.revoke(LEAF.certificate.serial), MIDDLE.revoke())
    refused("chain-revoked", lists=lists)
    refused("chain-revoked", lists=lists[::-1])


@pytest.mark.parametrize(
    ("from_s", "until_s"), [(AT_S - 9, AT_S - 1), (AT_S + 1, AT_S + 9)]
)
def test_a_list_of_another_time_is_refused(from_s: int, until_s: int) -> None:
    refused("crl-expired", lists=(MIDDLE.revoke(from_s=from_s, until_s=until_s),))


def test_a_list_by_a_foreign_key_is_refused() -> None:
    refused("crl-not-genuine", lists=(ROOT.revoke(name="middle"),))


def test_a_list_of_a_foreign_issuer_says_nothing() -> None:
    other = make("other", ROOT)
    chain(lists=(other.revoke(LEAF.certificate.serial),))


def test_a_list_by_an_issuer_without_that_right_is_refused() -> None:
    middle = make("middle", ROOT, usage=(True, False))
    leaf = make("leaf", middle, ca=False)
    refused("crl-not-genuine", leaf, ROOT, middle, lists=(middle.revoke(),))


def test_a_list_over_sha1_is_refused() -> None:
    root = make("old", key=rsa.generate_private_key(65537, 2048))
    leaf = make("leaf", root)
    chain(leaf, root, root=root, lists=(root.revoke(),))
    weak = root.revoke(weak=True)
    refused("crl-not-genuine", leaf, root, root=root, lists=(weak,))


def test_lists_are_read_from_pem_too() -> None:
    parsed = MIDDLE.revoke(7)._parsed
    assert RevocationList(parsed.public_bytes(Encoding.PEM)).issuer == "CN=middle"


def test_a_list_that_is_not_a_whole_one_is_malformed() -> None:
    """Of some reasons only, or since another list: not naming a serial says nothing."""
    part = x509.IssuingDistributionPoint(
        None, None, True, False, frozenset(), False, False
    )
    for extension in (part, x509.DeltaCRLIndicator(1)):
        with pytest.raises(MalformedError, match="not complete"):
            MIDDLE.revoke(1, critical=extension)
    assert MIDDLE.revoke(1)  # control


@pytest.mark.parametrize("raw", [b"", b"-----", b"0", b"\0" * (MAX_CRL_BYTES + 1)])
def test_no_list_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        RevocationList(raw)


@pytest.mark.parametrize("raw", [b"", b"0\x80", b"\0" * (MAX_CERTIFICATE_BYTES + 1)])
def test_no_certificate_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        Certificate(raw)


def test_bytes_after_a_certificate_are_malformed() -> None:
    with pytest.raises(MalformedError):
        Certificate(LEAF.certificate.der + b"\0")


def test_every_changed_byte_of_a_leaf_is_refused() -> None:
    der = LEAF.certificate.der
    for place in range(len(der)):
        changed = bytearray(der)
        changed[place] ^= 0x01
        with pytest.raises((EvidenceError, MalformedError)):
            chain(Issuer(LEAF.key, Certificate(bytes(changed))))


def test_pem_texts() -> None:
    pem = b"".join(
        each.certificate.parsed.public_bytes(Encoding.PEM) for each in (LEAF, MIDDLE)
    )
    found = certificates_from_pem(pem + b"\0")
    assert found == (LEAF.certificate, MIDDLE.certificate)
    assert Certificate.from_pem(pem) == LEAF.certificate
    for bad in (b"", b"no PEM", pem * 17):
        with pytest.raises(MalformedError):
            certificates_from_pem(bad)


def test_keys_by_kind() -> None:
    assert isinstance(LEAF.certificate.key(), EcdsaKey)
    strong = make("rsa", key=rsa.generate_private_key(65537, 2048))
    assert isinstance(strong.certificate.key(), RsaKey)
    other_curve = make("k", key=ec.generate_private_key(ec.SECP256K1()))
    with pytest.raises(MalformedError):
        other_curve.certificate.key()


def test_what_is_remembered_is_what_would_be_found_anew() -> None:
    issuers = [each.certificate for each in (ROOT, MIDDLE, LEAF)]
    for certificate in issuers:
        again = read_certificate(certificate.der)
        assert again is read_certificate(bytes(bytearray(certificate.der)))
        assert again == certificate
        for issuer in issuers:
            anew = _is_issued_by.__wrapped__(certificate, issuer)
            assert again.is_issued_by(issuer) is anew
    assert LEAF.certificate.is_issued_by(MIDDLE.certificate)  # control: some are


def test_a_changed_certificate_is_another() -> None:
    der = bytearray(LEAF.certificate.der)
    der[-1] ^= 1  # of its signature
    changed = read_certificate(bytes(der))
    assert LEAF.certificate.is_issued_by(MIDDLE.certificate)
    assert not changed.is_issued_by(MIDDLE.certificate)


def test_what_does_not_parse_is_not_remembered() -> None:
    for _ in range(2):
        with pytest.raises(MalformedError):
            read_certificate(b"no certificate")
    assert read_certificate.cache_info().maxsize == 128
