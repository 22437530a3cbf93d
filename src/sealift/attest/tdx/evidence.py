"""Format of TDX evidence: a quote, and the logs that explain its registers.

The body is canonical JSON (spec/evidence-tdx.md). Quotes are of Intel's quoting enclaves,
for SGX enclaves and TDX guests, versions 3 to 5; only structure: nothing here verifies a
signature. ECDSA over P-256 alone is taken, with the platform's certificate chain inside.
Source: Intel, ECDSA quote library API (version 3, appendix A) and TDX quoting library
API (versions 4 and 5, appendix A); Intel TDX module ABI, TDREPORT_STRUCT.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from sealift.attest.binary import Cursor
from sealift.attest.evidence import Body
from sealift.attest.runtimelog import MAX_EVENTS, RuntimeEvent
from sealift.errors import MalformedError

MEDIA_TYPE: Final = "application/vnd.sealift.tdx-evidence+json"
RUNTIME_REGISTER: Final = 3
REGISTER_HASH: Final = "sha384"


@dataclass(frozen=True, slots=True, kw_only=True)
class TdxBody(Body):
    """The whole body.

    Attributes:
        quote: As the platform made it.
        ccel: The firmware's event log (CCEL), or None if the guest has none.
        events: What the process measured into RTMR 3.
    """

    kind = "tdx"

    quote: bytes
    ccel: bytes | None = None
    events: tuple[RuntimeEvent, ...] = ()

    def __post_init__(self) -> None:
        if len(self.events) > MAX_EVENTS:
            raise MalformedError("too many runtime events", field="events")


MAX_QUOTE_BYTES: Final = 64 << 10
SGX: Final = 0x00
TDX: Final = 0x81
_INTEL_QE: Final = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
_ECDSA_P256: Final = 2
_QE_CERTIFICATION: Final = 6
_PCK_CHAIN: Final = 5
_ENCLAVE, _TD_1_0, _TD_1_5 = 1, 2, 3
_HEADER: Final = struct.Struct("<HHI4x16s20x")  # version, kind of key, TEE, vendor
# SGX REPORTBODY, and TDX's; fields as the classes below have them.
_ENCLAVE_BODY: Final = struct.Struct("<16sI28x16s32s32x32s96xHH60x64s")
_TD_BODY: Final = struct.Struct("<16s48s48s8sQQ" + 8 * "48s" + "64s")
_TD_1_5_MORE: Final = 64  # the module's security versions now, service TDs
_BODY_BYTES: Final = {
    _ENCLAVE: _ENCLAVE_BODY.size,
    _TD_1_0: _TD_BODY.size,
    _TD_1_5: _TD_BODY.size + _TD_1_5_MORE,
}


@dataclass(frozen=True, slots=True)
class EnclaveReport:
    """REPORTBODY of an SGX enclave.

    Attributes:
        cpusvn: 16 bytes.
        miscselect: Which optional parts an exception frame holds.
        attributes: 16 bytes: flags, then the extended feature mask; flag 1 is DEBUG.
        mrenclave: 32 bytes, its measurement.
        mrsigner: 32 bytes, hash of its signer's key.
        product: ISVPRODID.
        svn: ISVSVN.
        report_data: 64 bytes.
    """

    cpusvn: bytes
    miscselect: int
    attributes: bytes
    mrenclave: bytes
    mrsigner: bytes
    product: int
    svn: int
    report_data: bytes


@dataclass(frozen=True, slots=True)
class TdReport:
    """What a quote says of a TDX guest.

    Attributes:
        tee_tcb_svn: 16 security versions; the first two are the TDX module's.
        mrseam, mrsignerseam: Measurement and signer of the TDX module, 48 bytes.
        seam_attributes: 8 bytes, zero for Intel's modules.
        attributes: TD attributes, a number of 64 bits.
        xfam: Extended features that the guest may use.
        mrtd: What was built before the guest ran, 48 bytes.
        mrconfigid, mrowner, mrownerconfig: Set by the owner at build time, 48 bytes.
        rtmr: Four runtime registers of 48 bytes.
        report_data: 64 bytes, chosen by the guest.
        mrservicetd: Digest of bound service TDs, 48 bytes; None in reports 1.0.
    """

    tee_tcb_svn: bytes
    mrseam: bytes
    mrsignerseam: bytes
    seam_attributes: bytes
    attributes: int
    xfam: int
    mrtd: bytes
    mrconfigid: bytes
    mrowner: bytes
    mrownerconfig: bytes
    rtmr: tuple[bytes, ...]
    report_data: bytes
    mrservicetd: bytes | None


@dataclass(frozen=True, slots=True)
class TdxQuote:
    """A parsed quote.

    Attributes:
        version: 3, 4 or 5.
        body: What is attested.
        signed: Header and body, which the attestation key signs.
        signature: r || s of the attestation key.
        key: The attestation key's point, x || y.
        qe: The quoting enclave's report, which binds that key.
        qe_signed: Its bytes, which the platform's key (PCK) signs.
        qe_signature: r || s of the platform's key.
        qe_auth: Hashed with the key into the quoting enclave's report data.
        chain: Certificate chain of the platform's key, PEM.
    """

    version: int
    body: EnclaveReport | TdReport
    signed: bytes
    signature: bytes
    key: bytes
    qe: EnclaveReport
    qe_signed: bytes
    qe_signature: bytes
    qe_auth: bytes
    chain: bytes


def parse_quote(raw: bytes) -> TdxQuote:
    """Parse a quote; zeros may follow it, as some platforms fill up their buffer.

    Raises:
        MalformedError: if it is not a quote of these versions.
    """
    if len(raw) > MAX_QUOTE_BYTES:
        raise MalformedError("the quote is too large")
    cursor = Cursor(raw, "the quote")
    version, tee = _take_header(cursor)
    kind, size = _take_body_kind(cursor, version, tee)
    parse = parse_enclave_report if kind == _ENCLAVE else parse_td_report
    body = parse(cursor.take(size))
    signed = raw[: cursor.offset]
    inner = Cursor(cursor.take(cursor.number(4)), "the quote's signature")
    if any(cursor.rest()):
        raise MalformedError("bytes follow the quote")
    signature, key = inner.take(64), inner.take(64)
    if version > 3:
        certification = _take_certification(inner, _QE_CERTIFICATION)
        inner.require_end()
        inner = Cursor(certification, "the quoting enclave's certification")
    qe_signed, qe_signature = inner.take(_ENCLAVE_BODY.size), inner.take(64)
    qe_auth = inner.take(inner.number(2))
    chain = _take_certification(inner, _PCK_CHAIN)
    inner.require_end()
    return TdxQuote(
        version, body, signed, signature, key, parse_enclave_report(qe_signed),
        qe_signed, qe_signature, qe_auth, chain,
    )  # fmt: skip


def parse_enclave_report(raw: bytes) -> EnclaveReport:
    """Parse the 384 bytes of an SGX report's body; reserved parts are skipped."""
    cursor = Cursor(raw, "the enclave's report")
    found = EnclaveReport(*cursor.unpack(_ENCLAVE_BODY))
    cursor.require_end()
    return found


def parse_td_report(raw: bytes) -> TdReport:
    """Parse a TD report's body: 584 bytes (1.0) or 648 (1.5)."""
    cursor = Cursor(raw, "the TD report")
    *head, r0, r1, r2, r3, report_data = cursor.unpack(_TD_BODY)
    service_td = cursor.rest()[16:] or None
    fields = (*head, (r0, r1, r2, r3), report_data, service_td)
    return TdReport(*fields)


def _take_header(cursor: Cursor) -> tuple[int, int]:
    """Version and kind of TEE; the rest of the header is signed, and says little."""
    version, key_kind, tee, vendor = cursor.unpack(_HEADER)
    if version not in {3, 4, 5}:
        raise MalformedError(f"the quote has version {version}", field="version")
    if key_kind != _ECDSA_P256 or vendor != _INTEL_QE:
        raise MalformedError("the quote was not made by Intel's ECDSA quoting enclave")
    if tee not in ({SGX} if version == 3 else {SGX, TDX}):
        raise MalformedError(
            f"the quote comes from an unknown TEE ({tee:#x})", field="tee_type"
        )
    return version, tee


def _take_body_kind(cursor: Cursor, version: int, tee: int) -> tuple[int, int]:
    """Kind and length of the body; only version 5 says them."""
    if version < 5:
        kind = _ENCLAVE if tee == SGX else _TD_1_0
        return kind, _BODY_BYTES[kind]
    kind, size = cursor.number(2), cursor.number(4)
    if _BODY_BYTES.get(kind) != size or (kind == _ENCLAVE) != (tee == SGX):
        raise MalformedError(f"the quote's body has type {kind} and {size} bytes")
    return kind, size


def _take_certification(cursor: Cursor, expected: int) -> bytes:
    kind = cursor.number(2)
    if kind != expected:
        raise MalformedError(
            f"the certification data has type {kind}",
            why=f"type {expected} is required",
            fix=(
                "Configure the platform's quoting service to put the PCK chain into "
                "quotes"
            ),
            offset=cursor.offset,
        )
    return cursor.take(cursor.number(4))
