"""Certificates and revocation lists made on the spot, good ones and bad ones."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from sealift.crypto.certificate import Certificate
from sealift.crypto.chain import RevocationList

AT_S = 1_750_000_000
DAY_S = 86_400


def moment(at_s: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_s, dt.UTC)


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class MadeList(RevocationList):
    """A list that still knows its bytes."""

    def __init__(self, der: bytes) -> None:
        self.der = der
        super().__init__(der)


@dataclass(frozen=True)
class Issuer:
    """A certificate with its private key."""

    key: Any
    certificate: Certificate

    def revoke(
        self,
        *serials: int,
        from_s: int = AT_S - DAY_S,
        until_s: int = AT_S + DAY_S,
        name: str = "",
        weak: bool = False,
        critical: x509.ExtensionType | None = None,
    ) -> MadeList:
        """A revocation list; under a foreign ``name`` if given."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(named(name) if name else self.certificate.parsed.subject)
            .last_update(moment(from_s))
            .next_update(moment(until_s))
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(
                entry.revocation_date(moment(from_s)).build()
            )
        if critical is not None:
            builder = builder.add_extension(critical, True)
        made = builder.sign(self.key, hashes.SHA256())
        if weak:
            return MadeList(signed_over_sha1(made.tbs_certlist_bytes, self.key))
        return MadeList(made.public_bytes(Encoding.DER))


def make(
    name: str,
    issuer: Issuer | None = None,
    *,
    ca: bool = True,
    path_length: int | None = None,
    from_s: int = AT_S - 10 * DAY_S,
    until_s: int = AT_S + 10 * DAY_S,
    weak: bool = False,
    key: Any = None,
    usage: tuple[bool, bool] | None = None,
    extensions: tuple[x509.ExtensionType, ...] = (),
    critical: tuple[tuple[x509.ExtensionType, bool], ...] = (),
) -> Issuer:
    """A certificate; its own issuer if none is given.

    Args:
        weak: Signed over SHA-1; the issuer's key is RSA.
        critical: More extensions, and whether they are critical.
        usage: keyUsage: may sign certificates, may sign lists; none if left out.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    signer = issuer.key if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(issuer.certificate.parsed.subject if issuer else named(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment(from_s))
        .not_valid_after(moment(until_s))
        .add_extension(x509.BasicConstraints(ca, path_length if ca else None), True)
    )
    if usage is not None:
        builder = builder.add_extension(key_usage(*usage), True)
    for each, matters in (*((e, False) for e in extensions), *critical):
        builder = builder.add_extension(each, matters)
    made = builder.sign(signer, hashes.SHA256())
    raw = made.public_bytes(Encoding.DER)
    if weak:
        raw = signed_over_sha1(made.tbs_certificate_bytes, signer)
    return Issuer(key, Certificate(raw))


def signed_over_sha1(signed: bytes, key: Any) -> bytes:
    """What was made for RSA with SHA-256, signed over SHA-1 instead."""
    old, weak = (
        bytes.fromhex(f"06092a864886f70d0101{last}0500") for last in ("0b", "05")
    )
    signed = signed.replace(old, weak)
    signature = key.sign(signed, padding.PKCS1v15(), hashes.SHA1())
    return der(0x30, signed + der(0x30, weak) + der(0x03, b"\0" + signature))


def der(tag: int, content: bytes) -> bytes:
    """One DER value."""
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content


def key_usage(certificates: bool, lists: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=lists,
        encipher_only=False,
        decipher_only=False,
    )
