"""What Intel's certificate of a platform's key (PCK) says about the platform.

Source: Intel SGX PCK certificate and certificate revocation list profile, section 1.3.5
(extension 1.2.840.113741.1.13.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.attest import der
from sealift.crypto.certificate import Certificate
from sealift.errors import MalformedError

EXTENSION: Final = "1.2.840.113741.1.13.1"
TCB_COMPONENTS: Final = 16
Fields = dict[str, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """The extension's fields.

    Attributes:
        ppid: Id of the processor package, 16 bytes.
        fmspc: Family, model, stepping, platform type: 6 bytes.
        pceid: Id of the provisioning enclave, 2 bytes.
        components: The 16 security versions that the key was made at.
        pcesvn: Security version of the provisioning enclave.
        cpusvn: 16 bytes.
        instance: Id of a multi-package platform, or None.
        smt: Whether hyper-threading was on; None if the certificate does not say.
    """

    ppid: bytes
    fmspc: bytes
    pceid: bytes
    components: tuple[int, ...]
    pcesvn: int
    cpusvn: bytes
    instance: bytes | None
    smt: bool | None


def platform_facts(certificate: Certificate) -> PlatformFacts:
    """Read the extension.

    Raises:
        MalformedError: if it is missing or does not parse.
    """
    raw = certificate.extension(EXTENSION)
    if raw is None:
        raise MalformedError("no certificate of a platform's key", field="PCK")
    return parse_extension(raw)


def parse_extension(raw: bytes) -> PlatformFacts:
    """Parse the extension's value.

    Raises:
        MalformedError: if a field is missing, doubled or of another kind.
    """
    fields = _read_fields(der.read_value(raw, der.SEQUENCE), EXTENSION)
    tcb = _read_fields(_content(fields, "2", der.SEQUENCE), f"{EXTENSION}.2")
    components = tuple(_number(tcb, str(i + 1)) for i in range(TCB_COMPONENTS))
    if max(components) > 0xFF:
        raise MalformedError("a security version above 255", field="PCK")
    return PlatformFacts(
        ppid=_octets(fields, "1", 16),
        fmspc=_octets(fields, "4", 6),
        pceid=_octets(fields, "3", 2),
        components=components,
        pcesvn=_number(tcb, "17"),
        cpusvn=_octets(tcb, "18", 16),
        instance=_octets(fields, "6", 16) if "6" in fields else None,
        smt=_smt(fields),
    )


def _read_fields(raw: bytes, prefix: str) -> Fields:
    """Pairs of OID and value, by what follows ``prefix`` in the OID."""
    found: Fields = {}
    for tag, content in der.read_values(raw):
        pair = der.read_values(content) if tag == der.SEQUENCE else []
        if len(pair) != 2 or pair[0][0] != der.OID:
            raise MalformedError("not the fields of a PCK certificate")
        name = der.read_oid(pair[0][1])
        short = name.removeprefix(f"{prefix}.")
        if short == name or short in found:
            raise MalformedError("a foreign or doubled field", field=f"PCK {name}")
        found[short] = pair[1]
    return found


def _content(fields: Fields, name: str, tag: int) -> bytes:
    found, content = fields.get(name, (0, b""))
    if found != tag:
        raise MalformedError(
            "a field is missing or of another kind", field=f"PCK {name}"
        )
    return content


def _octets(fields: Fields, name: str, size: int) -> bytes:
    content = _content(fields, name, der.OCTET_STRING)
    if len(content) != size:
        raise MalformedError(f"a field has not {size} bytes", field=f"PCK {name}")
    return content


def _number(fields: Fields, name: str) -> int:
    return der.read_number(_content(fields, name, der.INTEGER))


def _smt(fields: Fields) -> bool | None:
    if "7" not in fields:
        return None
    flags = _read_fields(_content(fields, "7", der.SEQUENCE), f"{EXTENSION}.7")
    return _content(flags, "3", der.BOOLEAN) == b"\xff" if "3" in flags else None
