"""Reference manifests: one form of signature, and nothing outside it is read."""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from lxml import etree

from sealift.attest.nvidia import rim as rim_format
from sealift.attest.nvidia.rim import Rim, parse_signed, read_rim
from sealift.crypto.chain import RevocationList, Revocations
from sealift.errors import EvidenceError, MalformedError, UnavailableError
from tests.sim import nvidia_device as sim
from tests.sim.nvidia_device import AT_S, rim_chain, rim_document, sign_rim

GOOD = bytes([1]) * 48
BAD = bytes([2]) * 48
DOCUMENT = rim_document("545.00", {7: (GOOD,)})
DS = "http://www.w3.org/2000/09/xmldsig#"


@pytest.fixture(scope="module")
def signed() -> bytes:
    return sign_rim(DOCUMENT)


def read(raw: bytes, **changes: Any) -> Rim:
    return read_rim(raw, roots=(rim_chain()[-1].spki_digest,), at_s=AT_S, **changes)


def refusal(raw: bytes) -> str:
    with pytest.raises((EvidenceError, MalformedError)) as caught:
        read(raw)
    return caught.value.code


def test_a_manifest_is_read(signed: bytes) -> None:
    """Control of everything below."""
    found = read(signed)
    assert (found.product, found.version) == ("GH100", "545.00")
    assert [(each.index, each.values) for each in found.golden] == [(8, (GOOD,))]


def test_a_declaration_changes_nothing(signed: bytes) -> None:
    head = b'<?xml version="1.0" encoding="UTF-8"?>\n'
    assert read(head + signed).golden == read(signed).golden


# ----------------------------------------------------------------------- attacks


def test_a_changed_value_is_refused(signed: bytes) -> None:
    assert refusal(signed.replace(GOOD.hex().encode(), BAD.hex().encode())) == (
        "rim-not-genuine"
    )


def wrap_in_resource(root: Any, forged: Any) -> Any:
    """The genuine document, signature and all, inside of a forged one."""
    forged[1].append(root)
    return forged


def wrap_beside(root: Any, forged: Any) -> Any:
    """The genuine content moved into ds:Object of its own signature."""
    signature = root[-1]
    kept = etree.SubElement(signature, f"{{{DS}}}Object")
    for child in list(root)[:-1]:
        kept.append(child)
    for child in reversed(list(forged)):
        root.insert(0, child)
    return root


def wrap_by_id(root: Any, forged: Any) -> Any:
    """A forged document whose signature points at the genuine one by its id."""
    signature = root[-1]
    root.remove(signature)
    root.set("Id", "genuine")
    signature[0][2].set("URI", "#genuine")
    forged.append(signature)
    forged[1].append(root)
    return forged


def move_signature(root: Any, forged: Any) -> Any:
    """The signature stands inside of the payload."""
    root[1].append(root[-1])
    return root


@pytest.mark.parametrize(
    "wrap", [wrap_in_resource, wrap_beside, wrap_by_id, move_signature]
)
def test_signature_wrapping_is_refused(
    signed: bytes, wrap: Callable[[Any, Any], Any]
) -> None:
    forged = etree.fromstring(rim_document("545.00", {7: (BAD,)}).encode())
    wrapped = wrap(etree.fromstring(signed), forged)
    assert refusal(etree.tostring(wrapped)) in ("rim-form", "rim-not-genuine")


def test_what_is_read_is_what_was_digested(
    signed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: a reader that takes the digested bytes from elsewhere accepts anything."""
    forged = sign_rim(rim_document("545.00", {7: (BAD,)}))
    covered = parse_signed(signed).covered
    monkeypatch.setattr(rim_format, "_canonical_without", lambda *_: covered)
    with pytest.raises(EvidenceError):
        read(forged)
    monkeypatch.undo()
    assert read(forged).golden[0].values == (BAD,)  # by its own right: it is signed


def test_two_signatures_are_refused(signed: bytes) -> None:
    root = etree.fromstring(signed)
    root.append(etree.fromstring(etree.tostring(root[-1])))
    assert refusal(etree.tostring(root)) == "rim-form"


def test_no_signature_is_refused() -> None:
    assert refusal(DOCUMENT.encode()) == "rim-form"


@pytest.mark.parametrize(
    "text",
    [
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>',
        b'<!DOCTYPE a SYSTEM "http://127.0.0.1:1/a.dtd">',
        b'<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]>',
        b"<!-- comment -->",
        b"<?instruction?>",
    ],
)
def test_dtds_entities_comments_and_instructions_are_refused(
    signed: bytes, text: bytes
) -> None:
    assert refusal(text + signed) == "malformed"
    inside = signed.replace(b"<ns0:Payload>", b"<ns0:Payload>" + text)
    assert refusal(inside) == "malformed"


def test_a_comment_inside_a_value_is_refused(signed: bytes) -> None:
    """C14N leaves comments out, so it would verify; readers stop at one (2018)."""
    digest_value = b"<ds:DigestValue>"
    at = signed.index(digest_value) + len(digest_value) + 5
    commented = signed[:at] + b"<!---->" + signed[at:]
    canonical = etree.tostring(
        etree.fromstring(commented), method="c14n", with_comments=False
    )
    assert b"<!--" not in canonical  # control: nobody would notice
    assert refusal(commented) == "malformed"


def test_an_entity_in_another_encoding_is_refused(signed: bytes) -> None:
    """UTF-16 would hide what is refused as bytes."""
    assert refusal(signed.decode().encode("utf-16")) == "malformed"
    head = b'<?xml version="1.0" encoding="utf-16"?>'
    assert refusal(head + signed) == "malformed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rim_format.C14N, "http://www.w3.org/TR/2001/REC-xml-c14n-20010315"),
        (rim_format.C14N, "http://www.w3.org/2001/10/xml-exc-c14n#"),
        (rim_format.C14N, f"{rim_format.C14N}#WithComments"),
        (rim_format.ENVELOPED, "http://www.w3.org/TR/1999/REC-xslt-19991116"),
        (rim_format.ECDSA_SHA384, "http://www.w3.org/2001/04/xmldsig-more#hmac-sha384"),
        (rim_format.ECDSA_SHA384, "http://www.w3.org/2000/09/xmldsig#dsa-sha1"),
        (rim_format.SHA384, "http://www.w3.org/2000/09/xmldsig#sha1"),
        ('URI=""', 'URI="#a"'),
        ('URI=""', 'URI="" Id="a"'),
        (f'<ds:Transform Algorithm="{rim_format.ENVELOPED}"/>', ""),
        ("</ds:Transforms>", f'<ds:Transform Algorithm="{rim_format.C14N}"/></ds:Transforms>'),
    ],
)  # fmt: skip
def test_another_algorithm_or_reference_is_refused_though_signed(
    old: str, new: str
) -> None:
    """The signer's own signature is over these words: only their form is refused."""
    assert refusal(sign_rim(DOCUMENT, info={old: new})) == "rim-form"


def test_inherited_attributes_are_refused() -> None:
    """They are where C14N 1.0 and 1.1 differ."""
    text = DOCUMENT.replace('tagId="a"', 'tagId="a" xml:base="http://a/"')
    assert refusal(sign_rim(text)) == "malformed"


def test_an_entity_that_nobody_declared_is_refused(signed: bytes) -> None:
    text = signed.replace(b'"545.00"', b'"&other;"')
    assert refusal(text) == "malformed"


def test_somebody_elses_signature_is_refused() -> None:
    root = sim.issue("RIM root of ours")
    chain = (sim.issue("RIM signer", root, ca=False), root)
    assert refusal(sign_rim(DOCUMENT, chain=chain)) in ("chain-root", "chain-broken")


def test_a_signer_that_is_no_issuer_issues_nothing() -> None:
    signer, upper, root = rim_chain()
    below = sim.issue("below", signer, ca=False)
    chain = (below, signer, upper, root)
    assert refusal(sign_rim(DOCUMENT, chain=chain)) == "chain-broken"


def test_a_revoked_signer_is_refused(signed: bytes) -> None:
    _, upper, root = rim_chain()
    empty = RevocationList(root.revoke().public_bytes(Encoding.DER))
    assert read(signed, revocations=Revocations((empty,)))
    serial = upper.certificate.serial_number
    lists = (RevocationList(root.revoke(serial).public_bytes(Encoding.DER)),)
    with pytest.raises(EvidenceError) as caught:
        read(signed, revocations=Revocations(lists))
    assert caught.value.code == "chain-revoked"


# ------------------------------------------------------------------------- bytes


def test_every_changed_character_is_refused_or_changes_nothing(signed: bytes) -> None:
    """Every third one; layout is no part of the canonical form."""
    before = read(signed)
    before = replace(before, chain=before.chain[:-1])
    same = 0
    for at in range(0, len(signed), 3):
        raw = bytearray(signed)
        raw[at] = raw[at] ^ 1 or 1
        try:
            after = read(bytes(raw))
        except (EvidenceError, MalformedError):
            continue
        same += 1
        assert replace(after, chain=after.chain[:-1]) == before
    assert same < 30


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b' edition="GPU"', b"   edition = 'GPU'"),  # layout inside a tag
        (b"<ds:SignatureValue>", b"<ds:SignatureValue>\n "),  # layout of base64
        (b'"545.00"', b'"&#53;45.00"'),  # another way to write a character
    ],
)
def test_bytes_that_nothing_covers_change_nothing(
    signed: bytes, old: bytes, new: bytes
) -> None:
    assert old in signed
    assert read(signed.replace(old, new)) == read(signed)


# ------------------------------------------------------------------------- forms


@pytest.mark.parametrize(
    "values",
    [
        {"index": ("7", "255")},
        {"index": ("7", "-1")},
        {"index": ("7", "07")},
        {"alternatives": ("1", "2")},
        {"alternatives": ("1", "0")},
        {"size": ("48", "32")},
        {"active": ("True", "maybe")},
        {"type": ("Measurement", "Else")},
    ],
)
def test_a_measurement_of_another_form_is_refused(
    values: dict[str, tuple[str, str]],
) -> None:
    ((name, (old, new)),) = values.items()
    text = DOCUMENT.replace(f'{name}="{old}"', f'{name}="{new}"')
    assert text != DOCUMENT
    assert refusal(sign_rim(text)) == "rim-form"


def test_a_measurement_named_twice_is_refused() -> None:
    row = DOCUMENT[DOCUMENT.index("<ns0:Resource") : DOCUMENT.index("</ns0:Payload>")]
    assert refusal(sign_rim(DOCUMENT.replace(row, row + row))) == "rim-form"


def test_what_is_off_is_not_read() -> None:
    assert read(sign_rim(DOCUMENT.replace('"True"', '"False"'))).golden == ()


@pytest.mark.parametrize(
    "raw",
    [b"", b"a", b"<a/>", b"<a", b"<" * 100_000, b"<a>" * 50_000, b" " * (300 << 10)],
)
def test_what_is_no_manifest_is_refused(raw: bytes) -> None:
    assert refusal(raw) in ("malformed", "rim-form")


def test_base64_has_one_form(signed: bytes) -> None:
    value = parse_signed(signed).signature
    text = base64.b64encode(value)
    assert refusal(signed.replace(text, text[:-1] + b"*")) == "malformed"
    assert refusal(signed.replace(text, base64.b64encode(value + b"a"))) == "rim-form"


def test_without_lxml_it_says_so(
    signed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UnavailableError, match=r"\.\[nvidia\]"):
        read(signed)
