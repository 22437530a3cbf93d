"""Azure guests of ours: a made chip, a made paravisor and a made virtual TPM."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from sealift.attest.azure.evidence import AzureBody
from sealift.attest.azure.verifier import examine_azure
from sealift.attest.collateral import Collateral
from sealift.attest.reference import AppraisalBasis, ReferenceValues, TpmReferences
from sealift.attest.runtimelog import RuntimeEvent, replay
from sealift.attest.verifier import Claims
from sealift.crypto.hash import sha256
from sealift.crypto.vendorkeys import RsaKey
from sealift.ids import Digest
from tests.sim import snp_made

BOUND: Final = snp_made.BOUND
PCRS: Final = {number: bytes([number + 1]) * 32 for number in range(15)}
_HEAD: Final = bytes.fromhex("0014000b0100")


@cache
def _key(name: str) -> rsa.RSAPrivateKey:
    assert name
    return rsa.generate_private_key(65537, 2048)


def endorsement_digest() -> Digest:
    """Names the made virtual TPM."""
    numbers = _key("EK").public_key().public_numbers()
    return Digest.of(RsaKey(numbers.n, numbers.e).to_spki())


def jwk(name: str, kid: str) -> dict[str, Any]:
    numbers = _key(name).public_key().public_numbers()
    return {"kid": kid, "kty": "RSA", "e": text_of(numbers.e), "n": text_of(numbers.n)}


def claims_text(**changes: object) -> bytes:
    """The paravisor's JSON."""
    usual: dict[str, object] = {
        "keys": [jwk("AK", "HCLAkPub"), jwk("EK", "HCLEkPub")],
        "vm-configuration": {
            "console-enabled": False, "secure-boot": True, "vmUniqueId": "VM",
        },
        "user-data": "00" * 64,
    }  # fmt: skip
    return json.dumps({**usual, **changes}).encode()


def pack_hcl(hardware: bytes, claims: bytes, *, kind: int = 2) -> bytes:
    """An HCL report as the virtual TPM holds it."""
    part = [20 + len(claims), 1, kind, 1, len(claims)]
    size = 32 + len(hardware) + part[0]
    head = b"HCLA" + _words(2, size, 2, 0, 0, 0, 0)
    return (head + hardware + _words(*part) + claims).ljust(2600, b"\0")


def quote(extra: bytes, values: dict[int, bytes], *, safe: bool = True) -> bytes:
    """TPMS_ATTEST over a SHA-256 bank."""
    bits = sum(1 << number for number in values).to_bytes(3, "little")
    joined = sha256(*(values[number] for number in sorted(values)))
    return b"".join((
        b"\xffTCG\x80\x18", _sized(b"\0\x0b" + bytes(32)), _sized(extra),
        (1000).to_bytes(8), (1).to_bytes(4), (0).to_bytes(4), bytes([safe]), bytes(8),
        (1).to_bytes(4), b"\0\x0b\3", bits, _sized(joined),
    ))  # fmt: skip


def sign(raw: bytes, name: str = "AK") -> bytes:
    """TPMT_SIGNATURE by the made attestation key."""
    return _HEAD + _key(name).sign(raw, padding.PKCS1v15(), hashes.SHA256())


@dataclass
class Guest:
    """A guest, its evidence and what it is judged by; all fits unless changed."""

    claims: bytes = field(default_factory=claims_text)
    over: bytes | None = None
    events: tuple[RuntimeEvent, ...] = ()
    measured: tuple[RuntimeEvent, ...] | None = None
    values: dict[int, bytes] = field(default_factory=lambda: dict(PCRS))
    extra: bytes = BOUND
    safe: bool = True
    signer: str = "AK"
    report: dict[str, bytes | int] = field(default_factory=dict)
    snp: dict[str, object] = field(default_factory=dict)
    tpm: dict[str, object] = field(default_factory=dict)
    code_bundle: Digest | None = None
    body: dict[str, object] = field(default_factory=dict)

    def evidence_body(self) -> AzureBody:
        authority, key = snp_made.authority("Milan"), snp_made.vcek("Milan")
        over = sha256(self.claims) if self.over is None else self.over
        fields = {"report_data": over, **self.report}
        measured = self.events if self.measured is None else self.measured
        values = {**self.values, 15: replay(measured, "sha256", bytes(32))}
        raw = quote(self.extra, values, safe=self.safe)
        usual = AzureBody(
            hcl_report=pack_hcl(key.sign(snp_made.report(**fields)), self.claims),
            certificates=(key.certificate, authority.der("ask"), authority.der("ark")),
            quote=raw,
            signature=sign(raw, self.signer),
            pcrs={"sha256": {str(n): value for n, value in values.items()}},
            events=self.events,
        )
        return replace(usual, **self.body)  # type: ignore[arg-type]

    def references(self) -> ReferenceValues:
        pcrs = {str(number): (PCRS[number],) for number in (0, 2, 4, 7, 8, 9, 12, 13)}
        usual = TpmReferences(roots=(), endorsement_keys=(), pcrs=pcrs)
        virtual = replace(usual, **self.tpm)  # type: ignore[arg-type]
        return replace(
            snp_made.references(**self.snp), tpm=virtual, code_bundle=self.code_bundle
        )

    def examine(self, collateral: Collateral | None = None) -> Claims:
        authority = snp_made.authority("Milan")
        return examine_azure(
            self.evidence_body().to_evidence(),
            AppraisalBasis(
                bound=BOUND,
                references=self.references(),
                collateral=collateral or authority.collateral(),
                at_s=snp_made.AT_S,
            ),
            authority.roots,
        )


def _words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(2) + content


def text_of(number: int) -> str:
    """A number as JWKs have it."""
    raw = number.to_bytes((number.bit_length() + 7) // 8)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
