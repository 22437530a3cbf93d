"""Format of Azure evidence: the paravisor's report, and a quote of its virtual TPM.

The body is canonical JSON (spec/evidence-azure.md). Structures are carried as the TPM
and the hardware wrote them. The paravisor's report (HCL) is the hardware's, over a text
of claims that names the virtual TPM's key.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from sealift.attest.binary import Cursor
from sealift.attest.evidence import Body
from sealift.attest.runtimelog import MAX_EVENTS, RuntimeEvent
from sealift.attest.tpm.evidence import parse_registers
from sealift.crypto.certificate import MAX_CHAIN
from sealift.crypto.hash import HashName, sha256
from sealift.crypto.vendorkeys import RsaKey
from sealift.errors import MalformedError

MEDIA_TYPE: Final = "application/vnd.sealift.azure-evidence+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureBody(Body):
    """The whole body.

    Attributes:
        hcl_report: The paravisor's report, as the virtual TPM holds it.
        td_quote: Of the TDX report inside; empty on SNP.
        certificates: DER, of the SNP report's key; what is missing comes from collateral.
        quote: TPMS_ATTEST.
        signature: TPMT_SIGNATURE.
        pcrs: The quoted values by bank and number (decimal).
        event_log: The guest firmware's event log; empty if there is none.
        events: The runtime log.
    """

    kind = "azure"

    hcl_report: bytes
    td_quote: bytes = b""
    certificates: tuple[bytes, ...] = ()
    quote: bytes
    signature: bytes
    pcrs: dict[str, dict[str, bytes]]
    event_log: bytes = b""
    events: tuple[RuntimeEvent, ...] = ()

    def __post_init__(self) -> None:
        if len(self.certificates) > MAX_CHAIN:
            raise MalformedError("too many certificates", field="certificates")
        if len(self.events) > MAX_EVENTS:
            raise MalformedError("too many runtime events", field="events")
        self.registers()

    def registers(self) -> dict[HashName, dict[int, bytes]]:
        """The quoted values by bank and number.

        Raises:
            MalformedError: for a bank or a number that no TPM has.
        """
        return parse_registers(self.pcrs)


MAX_HCL_BYTES: Final = 16 << 10
USER_DATA_BYTES: Final = 64
_MAGIC: Final = b"HCLA"
_VERSIONS: Final = (1, 2)
_HARDWARE_BYTES: Final = 1184
_RUNTIME_HEAD_BYTES: Final = 20
_HARDWARE: Final[dict[int, Literal["snp", "tdx"]]] = {2: "snp", 4: "tdx"}
_SHA256: Final = 1
_ATTESTATION_KEY: Final = "HCLAkPub"
_ENDORSEMENT_KEY: Final = "HCLEkPub"


@dataclass(frozen=True, slots=True, kw_only=True)
class HclReport:
    """A parsed report; nothing is verified yet.

    Attributes:
        kind: What the hardware is.
        hardware: 1184 bytes: an SNP report; of TDX a report that only the machine
            itself can check, so its quote comes beside it.
        claims: The JSON text, as it was hashed.
    """

    kind: Literal["snp", "tdx"]
    hardware: bytes
    claims: bytes

    @property
    def digest(self) -> bytes:
        """What the hardware's report data must begin with: 32 bytes."""
        return sha256(self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeClaims:
    """What the paravisor says of the guest.

    Attributes:
        attestation_key: Signs the virtual TPM's quotes.
        endorsement_key: Names the virtual TPM; None if the text has none.
        user_data: 64 bytes that the guest last asked to include.
        vm_id: Of the virtual machine; empty if the text has none.
        console: Whether the serial console is enabled.
        secure_boot: Whether the guest's firmware checks signatures.
    """

    attestation_key: RsaKey
    endorsement_key: RsaKey | None
    user_data: bytes
    vm_id: str
    console: bool
    secure_boot: bool


def parse_hcl(raw: bytes) -> HclReport:
    """Parse a report, with the zeros that fill up its place in the TPM.

    Raises:
        MalformedError: for anything else.
    """
    if len(raw) > MAX_HCL_BYTES:
        raise MalformedError("an HCL report is too large")
    cursor = Cursor(raw, "the HCL report")
    if cursor.take(4) != _MAGIC or cursor.number(4) not in _VERSIONS:
        raise MalformedError("the HCL report does not have version 1 or 2", offset=0)
    size = cursor.number(4)
    cursor.take(20)  # request type, status, reserved
    hardware = cursor.take(_HARDWARE_BYTES)
    part, _, kind, hash_kind, length = (cursor.number(4) for _ in range(5))
    claims = cursor.take(length)
    if (size, part) != (cursor.offset, _RUNTIME_HEAD_BYTES + length):
        raise MalformedError("the lengths in the HCL report are not consistent")
    if kind not in _HARDWARE or hash_kind != _SHA256:
        raise MalformedError(f"the HCL report has hardware {kind} and hash {hash_kind}")
    if any(cursor.rest()):
        raise MalformedError("the bytes after the HCL report are not zero", offset=size)
    return HclReport(kind=_HARDWARE[kind], hardware=hardware, claims=claims)


def parse_claims(raw: bytes) -> RuntimeClaims:
    """Parse the JSON text.

    Raises:
        MalformedError: if it does not parse, or has not exactly one attestation key.
    """
    plain = _load(raw)
    keys = _entries(plain.get("keys"))
    machine = plain.get("vm-configuration")
    machine = machine if isinstance(machine, dict) else {}
    found = _find_key(keys, _ATTESTATION_KEY)
    if found is None:
        raise MalformedError("the HCL report names no attestation key", field="keys")
    vm_id = machine.get("vmUniqueId")
    return RuntimeClaims(
        attestation_key=found,
        endorsement_key=_find_key(keys, _ENDORSEMENT_KEY),
        user_data=_user_data(plain.get("user-data")),
        vm_id=vm_id if isinstance(vm_id, str) else "",
        console=machine.get("console-enabled") is not False,
        secure_boot=machine.get("secure-boot") is True,
    )


def _load(raw: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(raw, object_pairs_hook=_once, parse_float=_refuse_float)
    except (ValueError, RecursionError):
        raise MalformedError("the HCL report's claims are not JSON") from None
    if not isinstance(plain, dict):
        raise MalformedError("the HCL report's claims are not an object")
    return plain


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, if no name stands in it twice."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def _refuse_float(text: str) -> Any:
    raise ValueError(text)


def _entries(keys: object) -> list[dict[str, Any]]:
    if not isinstance(keys, list) or not all(isinstance(each, dict) for each in keys):
        raise MalformedError("not a list of keys", field="keys")
    return keys


def _find_key(keys: list[dict[str, Any]], name: str) -> RsaKey | None:
    """The RSA key (JWK, RFC 7517) of that name."""
    found = [each for each in keys if each.get("kid") == name]
    if len(found) > 1:
        raise MalformedError(f"several keys have the name {name}", field="keys")
    if not found:
        return None
    if found[0].get("kty") != "RSA":
        raise MalformedError(f"{name} is not an RSA key", field="keys")
    modulus, exponent = (_number(found[0].get(part)) for part in ("n", "e"))
    return RsaKey(modulus, exponent)


def _number(text: object) -> int:
    if not isinstance(text, str):
        raise MalformedError("a part of the key is not a number", field="keys")
    try:
        raw = base64.b64decode(
            text + "=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError):
        raise MalformedError("not base64url", field="keys") from None
    return int.from_bytes(raw)


def _user_data(text: object) -> bytes:
    try:
        raw = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        raw = b""
    if len(raw) != USER_DATA_BYTES:
        raise MalformedError("not 64 bytes in hex", field="user-data")
    return raw
