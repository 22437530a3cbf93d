"""Reference integrity manifests of NVIDIA: the golden measurements of one firmware.

A RIM is a SWID tag (XML) with an enveloped signature. Everything that XML signatures
leave open is fixed here: one signature, over the whole document, by algorithms that are
named below. What is read is parsed anew from the bytes that were digested, so nothing
outside them can be mistaken for them. lxml comes with the extra ``nvidia``.
Source: TCG RIM information model 1.01; ISO/IEC 19770-2; W3C XML-DSig core 1.1.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sealift.crypto.certificate import Certificate, read_certificate
from sealift.crypto.chain import Revocations, verify_chain
from sealift.crypto.hash import digest
from sealift.crypto.vendorkeys import EcdsaKey
from sealift.errors import (
    AuthenticationError,
    EvidenceError,
    MalformedError,
    UnavailableError,
)
from sealift.ids import Digest

MAX_RIM_BYTES: Final = 256 << 10
MAX_ALTERNATIVES: Final = 32
MAX_INDEX: Final = 254
SWID: Final = "{http://standards.iso.org/iso/19770/-2/2015/schema.xsd}"
DSIG: Final = "{http://www.w3.org/2000/09/xmldsig#}"
HASH: Final = "{http://www.w3.org/2001/04/xmlenc#sha384}Hash"
C14N: Final = "http://www.w3.org/2006/12/xml-c14n11"
ENVELOPED: Final = "http://www.w3.org/2000/09/xmldsig#enveloped-signature"
ECDSA_SHA384: Final = "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha384"
SHA384: Final = "http://www.w3.org/2001/04/xmldsig-more#sha384"
_DECLARATION: Final = re.compile(
    rb"<\?xml version=([\"'])1\.0\1 encoding=([\"'])(UTF|utf)-8\2"
    rb"( standalone=([\"'])(yes|no)\5)?\s?\?>\s*"
)


@dataclass(frozen=True, slots=True)
class Golden:
    """One measurement that the manifest knows.

    Attributes:
        index: SPDM's, from 1; the file itself counts from 0.
        values: Alternatives, any of which is right (48 bytes each).
    """

    index: int
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rim:
    """A verified manifest.

    Attributes:
        product: The chip: ``GH100``.
        version: Of the driver or VBIOS that it describes.
        golden: Its active measurements, by rising index.
        chain: Certificates of its signer, root last.
    """

    product: str
    version: str
    golden: tuple[Golden, ...]
    chain: tuple[Certificate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRim:
    """What a file contains, before anybody asked who signed it.

    Attributes:
        covered: Canonical bytes of the document without its signature.
        signed_info: Canonical bytes of what was signed.
        digest: What ``signed_info`` says that ``covered`` hashes to (SHA-384).
        signature: r || s, 96 bytes.
        certificates: The signer's first.
    """

    covered: bytes
    signed_info: bytes
    digest: bytes
    signature: bytes
    certificates: tuple[Certificate, ...]


def read_rim(
    raw: bytes,
    *,
    roots: Sequence[Digest],
    at_s: int,
    revocations: Revocations | None = None,
) -> Rim:
    """Verify a file, then read it.

    Args:
        raw: The XML.
        roots: SHA-256 of the SubjectPublicKeyInfo of every trusted root.
        at_s: When the signer's certificates must be valid, seconds since 1970.
        revocations: What is known of the signer and its issuers.

    Raises:
        EvidenceError: ``rim-not-genuine``, or why the chain fails (``chain-*``).
        MalformedError: if it is no RIM, or signed in any other form.
        UnavailableError: ``extra-missing`` without lxml.
    """
    signed = parse_signed(raw)
    chain = verify_chain(
        signed.certificates[0],
        signed.certificates[1:],
        roots,
        at_s=at_s,
        revocations=revocations,
    )
    verify_signature(signed)
    return _read_covered(signed.covered, chain)


def verify_signature(signed: SignedRim) -> None:
    """Check signature and digest; not who the signer is.

    Raises:
        EvidenceError: ``rim-not-genuine``.
    """
    key = signed.certificates[0].key()
    if not isinstance(key, EcdsaKey) or key.curve != "P-384":
        raise _not_genuine("its signer's key is not on the curve P-384")
    try:
        key.verify_raw(signed.signed_info, signed.signature, "sha384")
    except AuthenticationError:
        raise _not_genuine("its signature does not verify") from None
    if digest("sha384", signed.covered) != signed.digest:
        raise _not_genuine("its text was changed after it was signed")


def parse_signed(raw: bytes) -> SignedRim:
    """Take a file apart; every part of the signature's form is fixed.

    Raises:
        MalformedError: for any other form.
        UnavailableError: ``extra-missing`` without lxml.
    """
    root = _parse_xml(raw)
    _require(
        root.tag == SWID + "SoftwareIdentity", "the root is not a SoftwareIdentity"
    )
    signatures = list(root.iter(DSIG + "Signature"))
    _require(len(signatures) == 1, f"it has {len(signatures)} signatures")
    signature = signatures[0]
    _require(signature.getparent() is root, "the signature is not the document's own")
    info, value, key = _children(signature, "SignedInfo", "SignatureValue", "KeyInfo")
    return SignedRim(
        digest=_read_signed_info(info),
        signed_info=_canonical(info),
        signature=_base64(value, 96),
        certificates=_read_certificates(key),
        covered=_canonical_without(root, signature),
    )


def _parse_xml(raw: bytes) -> Any:
    """The root element; no DTD, entity, comment, instruction or xml:* attribute."""
    if len(raw) > MAX_RIM_BYTES:
        raise MalformedError(f"the manifest has {len(raw)} bytes")
    text = _DECLARATION.sub(b"", raw, count=1) if raw.startswith(b"<?xml ") else raw
    # Refused as bytes, before a parser could act on them; UTF-8 has one form of each.
    # Inclusive C14N 1.0, which lxml has, is C14N 1.1 where there are no xml: attributes.
    tokens = (b"<!", b"<?", b"\0", b"xml:")
    refused = next((each for each in tokens if each in text), None)
    if refused or not text.startswith(b"<"):
        raise MalformedError(
            "the manifest has a DTD, comment, instruction or xml: attribute, or is "
            "not in UTF-8"
        )
    etree = _etree()
    parser = etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        recover=False,
    )
    try:
        return etree.fromstring(text, parser)
    except etree.XMLSyntaxError:
        raise MalformedError("the manifest is not XML") from None


def _read_signed_info(info: Any) -> bytes:
    """The digest that it holds; everything else of it is fixed."""
    method, algorithm, reference = _children(
        info, "CanonicalizationMethod", "SignatureMethod", "Reference"
    )
    _require_algorithm(method, C14N)
    _require_algorithm(algorithm, ECDSA_SHA384)
    _require(
        dict(reference.attrib) == {"URI": ""},
        "the signature does not cover the whole document",
    )
    transforms, hashing, value = _children(
        reference, "Transforms", "DigestMethod", "DigestValue", attributes=("URI",)
    )
    enveloped, canonical = _children(transforms, "Transform", "Transform")
    _require_algorithm(enveloped, ENVELOPED)
    _require_algorithm(canonical, C14N)
    _require_algorithm(hashing, SHA384)
    return _base64(value, 48)


def _read_certificates(key: Any) -> tuple[Certificate, ...]:
    (x509,) = _children(key, "X509Data")
    found = tuple(x509)
    _require(1 < len(found) <= 8, f"it has {len(found)} certificates")
    for each in found:
        plain = each.tag == DSIG + "X509Certificate" and not each.attrib
        _require(
            plain and not len(each), "it contains something other than certificates"
        )
    return tuple(read_certificate(_base64(each, None)) for each in found)


def _children(element: Any, *names: str, attributes: tuple[str, ...] = ()) -> list[Any]:
    """The children, which must be exactly these, with no attribute besides."""
    found = list(element)
    fits = [each.tag for each in found] == [DSIG + name for name in names]
    _require(
        fits and set(element.attrib) == set(attributes),
        "the form of its signature is not valid",
    )
    return found


def _require_algorithm(element: Any, algorithm: str) -> None:
    fits = dict(element.attrib) == {"Algorithm": algorithm} and not len(element)
    _require(fits, f"its signature does not use {algorithm}")


def _base64(element: Any, size: int | None) -> bytes:
    text = "".join((element.text or "").split())
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedError("the base64 in the manifest is not valid") from None
    fits = not element.attrib and not len(element) and size in (None, len(raw))
    _require(
        fits and base64.b64encode(raw).decode() == text,
        "a value of its signature is not valid",
    )
    return raw


def _canonical(element: Any) -> bytes:
    etree = _etree()
    try:
        found: bytes = etree.tostring(
            element,
            method="c14n",
            exclusive=False,
            with_comments=False,
            with_tail=False,
        )
    except etree.LxmlError:  # a relative namespace, which C14N has no form for
        raise MalformedError("the manifest is not in canonical form") from None
    return found


def _canonical_without(root: Any, signature: Any) -> bytes:
    """The document as the enveloped transform leaves it: text behind stays."""
    tail = signature.tail or ""
    before = signature.getprevious()
    if before is None:
        root.text = (root.text or "") + tail
    else:
        before.tail = (before.tail or "") + tail
    root.remove(signature)
    return _canonical(root)


def _read_covered(covered: bytes, chain: tuple[Certificate, ...]) -> Rim:
    """The manifest, from the very bytes that were digested."""
    root = _parse_xml(covered)
    (meta,) = _only(root, "Meta")
    (payload,) = _only(root, "Payload")
    golden = sorted(_read_resources(payload), key=lambda each: each.index)
    indexes = [each.index for each in golden]
    _require(len(set(indexes)) == len(indexes), "it names a measurement twice")
    return Rim(
        product=_attribute(meta, "product"),
        version=_attribute(meta, "colloquialVersion"),
        golden=tuple(golden),
        chain=chain,
    )


def _read_resources(payload: Any) -> Iterator[Golden]:
    for resource in payload:
        measured = resource.get("type") == "Measurement"
        _require(
            resource.tag == SWID + "Resource" and measured,
            "a resource has an unexpected form",
        )
        active = resource.get("active")
        _require(
            active in ("True", "False"), "a measurement is neither active nor inactive"
        )
        if active == "True":
            yield _read_golden(resource)


def _read_golden(resource: Any) -> Golden:
    index = _number(resource, "index", MAX_INDEX)
    alternatives = _number(resource, "alternatives", MAX_ALTERNATIVES)
    names = [f"{HASH}{number}" for number in range(alternatives)]
    written = {name for name in resource.attrib if name.startswith(HASH)}
    fits = alternatives > 0 and written == set(names) and resource.get("size") == "48"
    _require(fits, f"measurement {index} does not have its {alternatives} values")
    return Golden(index + 1, tuple(_hex(resource.get(name)) for name in names))


def _only(root: Any, name: str) -> list[Any]:
    found = root.findall(SWID + name)
    _require(len(found) == 1, f"it has {len(found)} elements {name}")
    return list(found)


def _attribute(element: Any, name: str) -> str:
    found = element.get(name)
    _require(
        isinstance(found, str) and 0 < len(found) <= 64, f"its {name} is not valid"
    )
    return str(found)


def _number(element: Any, name: str, most: int) -> int:
    text = element.get(name) or ""
    _require(
        re.fullmatch("0|[1-9][0-9]{0,3}", text) is not None, f"its {name} is not valid"
    )
    _require(int(text) <= most, f"its {name} is not valid")
    return int(text)


def _hex(text: str) -> bytes:
    _require(
        re.fullmatch("[0-9a-fA-F]{96}", text) is not None, "a golden value is not valid"
    )
    return bytes.fromhex(text)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise MalformedError(
            "the file is not a reference manifest in NVIDIA's form",
            why=why,
            code="rim-form",
        )


def _not_genuine(why: str) -> EvidenceError:
    return EvidenceError(
        "a reference manifest is not genuine", why=why, code="rim-not-genuine"
    )


def _etree() -> Any:
    """The one door to lxml, opened only where a RIM is read."""
    try:
        return importlib.import_module("lxml.etree")
    except ImportError:
        raise UnavailableError(
            "this machine cannot read NVIDIA's reference manifests",
            why="lxml is not installed",
            fix="In Sealift's folder, run: pip install '.[nvidia]'",
            code="extra-missing",
        ) from None
