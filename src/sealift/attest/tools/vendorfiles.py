"""Evidence as vendors' own tools write it, wrapped so that our verifiers read it.

Bare TDX quotes and SNP reports, reports of NVIDIA devices with their chains (the text of
nvtrust, the JSON of its successor), what Trustee's attesters send, dstack's answers and
containers. A file is told by its content, bare or in hex or base64. Nothing is verified
here; what a form lacks is given beside it or refused. Source: NVIDIA attestation-sdk and
nvtrust; deps/verifier of confidential-containers; Dstack-TEE/dstack.

Names of what Sealift does not judge, so that a person knows what a file is.

Nothing is parsed in depth or verified here: a file is recognized by what only its kind
writes, and is refused in any case. Source: AWS, attestation documents of Nitro Enclaves
and NitroTPM; draft-ffm-rats-cca-token (Arm CCA); RFC 7519 (JWT); deps/verifier of
confidential-containers; google/go-tpm-tools and go-attestation; keylime.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sealift.attest.azure.evidence import AzureBody
from sealift.attest.binary import Cursor
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia.evidence import NvidiaBody
from sealift.attest.snp.endorsement import parse_certificates, parse_table
from sealift.attest.snp.evidence import (
    REPORT_BYTES,
    REPORT_FIELDS,
    SnpBody,
    join_report,
    parse_report,
)
from sealift.attest.tdx.evidence import TdReport, TdxBody, parse_quote
from sealift.crypto.certificate import certificates_from_pem
from sealift.errors import MalformedError, SealiftError, UsageError

_MAX_DEPTH: Final = 16
_TDX, _GCP_TDX, _NITRO, _SNP, _NITRO_TPM = range(5)
_SIZES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # binary, text
_NUMBERS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
_LISTS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


MAX_TOKEN: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class OtherKind:
    """A kind of file that is no evidence for Sealift.

    Attributes:
        name: What it is, for people, with its article.
        fix: What to do; empty for the catalogue's advice.
    """

    name: str
    fix: str = ""

    def to_error(self) -> MalformedError:
        """The refusal, in one line."""
        return MalformedError(
            f"the file is {self.name}; Sealift does not verify that kind",
            fix=self.fix,
            code="evidence-other-kind",
        )


def _tpm(maker: str) -> OtherKind:
    return OtherKind(
        f"a TPM's quote by {maker}, of a TPM that no party enrolled",
        "Run `sealift attest collect --kind tpm` on that host: a broker enrols its TPM first",
    )


_JWT: Final = re.compile(r"\s*eyJ[\w-]{8,}(\.[\w-]*){2,4}\s*", re.ASCII)
_TOKEN: Final = OtherKind(
    "a token (JWT) with the result of another verifier",
    "Give the evidence that was shown to that verifier",
)
_CCA: Final = OtherKind("an Arm CCA token")
_NITRO_DOCUMENT: Final = OtherKind("an AWS Nitro document")
SGX: Final = OtherKind("an Intel SGX quote, of an enclave and not of a guest")
OTHER_PLATFORM: Final = OtherKind("dstack's container of another platform")
_COLLATERAL: Final = OtherKind(
    "a file of certificates, a list or a reference manifest, not evidence",
    "Put it into a bundle with `sealift attest collateral make`",
)
# Bytes and text by how they begin, or by words that only such a file contains; of
# go-tpm-tools, a TPMT_PUBLIC (RSA or ECC) behind the first field of a protobuf message.
_BYTES: Final[tuple[tuple[bytes, OtherKind], ...]] = (
    (rb"(?s).{0,64}imodule_id.*pcrs|hEShATgi|8444a1013822", _NITRO_DOCUMENT),
    (rb"(?s)\xd9\x01\x8f|\xd9\x03\x8b|.*arm\.com/CCA", _CCA),
    (rb"\xffTCG", _tpm("an unnamed tool")),
    (rb"\x0a([\0-\x7f]|[\x80-\xff][\0-\x7f])\0[\x01\x23]\0", _tpm("go-tpm-tools")),
    (rb'\s*(ak_pub|key): *"', _tpm("go-tpm-tools")),
    (rb"\s*r?/1RDR[^:]+:", _tpm("Keylime")),
    (rb"(?s)\s*-----BEGIN CERT|\s*<.{0,999}SoftwareIdentity", _COLLATERAL),
)
# Objects by names of members that only theirs has together.
_OBJECTS: Final[dict[str, OtherKind]] = {
    "ak_public tpm_quote": _tpm("Trustee"),
    "AK Quote": _tpm("go-attestation"),
    "akPub quotes": _tpm("go-tpm-tools"),
    "serial_number cert_chain": OtherKind("a Hygon CSV report"),
    "attestation_reports": OtherKind("a Hygon DCU report"),
    "encr_measurement_key": OtherKind("an IBM Secure Execution response"),
    "version devices": OtherKind("evidence of an NVIDIA DPU"),
    "svn": OtherKind("Trustee's sample, which proves nothing"),
    "claims": OtherKind("a result of another verifier", _TOKEN.fix),
    **dict.fromkeys(("tcbInfo", "enclaveIdentity", "tcb_info", "rim"), _COLLATERAL),
}


def _name_kind(raw: bytes) -> OtherKind | None:
    """The kind of a file, bytes or JSON, if it is known and none that is judged."""
    with suppress(ValueError, RecursionError):
        return _name_json(json.loads(raw))
    return _name_bytes(raw)


def _name_bytes(raw: bytes) -> OtherKind | None:
    """The kind of bytes or of text other than JSON."""
    if len(raw) < MAX_TOKEN and _JWT.fullmatch(raw.decode("latin-1")):
        return _TOKEN
    return next((kind for begin, kind in _BYTES if re.match(begin, raw)), None)


def _name_json(plain: Any) -> OtherKind | None:
    """By the names in an object, or a token that it or a list holds."""
    named = plain if isinstance(plain, Mapping) else {}
    for names, kind in _OBJECTS.items():
        if named.keys() >= set(names.split()):
            return kind
    # A token alone, in an object, or in NVIDIA's list: [["JWT", "eyJ..."], {...}].
    held = plain[:1] if isinstance(plain, list) else list(named.values()) or [plain]
    held += held[0] if held and isinstance(held[0], list) else []
    for text in (each for each in held if isinstance(each, str)):
        if (found := _name_bytes(text.encode())) in (_TOKEN, _NITRO_DOCUMENT):
            return found
    return _CCA if isinstance(named.get("token"), str | list) else None


def begins_container(raw: bytes) -> bool:
    """Whether it begins like a container of either version."""
    return (raw[:1] == b"\0" and raw[1:2] < b"\5") or 0x80 < raw[0] <= 0x8F


def read_container(raw: bytes) -> TdxBody | SnpBody:
    """What was signed, as evidence of ours.

    Raises:
        MalformedError: for another container, or another platform in it.
    """
    return _read_scale(raw) if raw[:1] == b"\0" else _read_messagepack(raw)


def _read_scale(raw: bytes) -> TdxBody | SnpBody:
    cursor = Cursor(raw, "dstack's container")
    cursor.take(1)
    platform, signed = cursor.number(1), cursor.take(_compact(cursor))
    if platform in (_TDX, _GCP_TDX):
        return TdxBody(quote=signed)
    if platform != _SNP:
        raise (_name_bytes(signed) or OTHER_PLATFORM).to_error()
    chain = [cursor.take(_compact(cursor)) for _ in range(_compact(cursor))]
    return SnpBody(report=signed, certificates=_read_chain(chain))


def _read_chain(parts: Iterable[bytes]) -> tuple[bytes, ...]:
    """Certificates (DER) of what a host handed over: DER, PEM, or GHCB's table."""
    found: list[bytes] = []
    for part in map(read_bytes, parts):
        if part.lstrip().startswith((b"0\x82", b"-----BEGIN")):
            found += [each.der for each in parse_certificates(part.lstrip())]
            continue
        try:
            found += parse_table(part)
        except MalformedError:
            raise MalformedError(
                "a part of the chain is neither a certificate nor a table of them"
            ) from None
    return tuple(dict.fromkeys(found))


def _compact(cursor: Cursor) -> int:
    """SCALE's compact number, of one, two or four bytes."""
    first = cursor.number(1)
    if first & 3 == 3:
        raise MalformedError("a length in dstack's container is too large")
    return (first | cursor.number((0, 1, 3)[first & 3]) << 8) >> 2


def _read_messagepack(raw: bytes) -> TdxBody | SnpBody:
    cursor = Cursor(raw, "dstack's container", "big")
    try:
        platform = _value(cursor, 0)["platform"]
        kind, found = platform["kind"], platform["data"]
        if kind in ("tdx", "gcp-tdx"):
            return TdxBody(quote=_binary(found["quote"]))
        if kind != "sev-snp":
            signed = found.get("nsm_quote") or found["attestation_doc"]
            raise (_name_bytes(_binary(signed)) or OTHER_PLATFORM).to_error()
        chain = _read_chain(_binary(each) for each in found["cert_chain"])
        return SnpBody(report=_binary(found["report"]), certificates=chain)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise MalformedError("the bytes are not dstack's container") from None


def _binary(value: object) -> bytes:
    if not isinstance(value, bytes | list):
        raise ValueError
    return bytes(value)


def _value(cursor: Cursor, depth: int) -> Any:
    first = cursor.number(1)
    if depth > _MAX_DEPTH:
        raise MalformedError("dstack's container is nested too deeply")
    if first < 0x80:
        return first
    if first in _NUMBERS or first in _CONSTANTS:
        width = _NUMBERS.get(first)
        return cursor.number(width) if width else _CONSTANTS[first]
    if 0xA0 <= first < 0xC0 or first in _SIZES:
        size = cursor.number(_SIZES[first]) if first in _SIZES else first & 0x1F
        taken = cursor.take(size)
        return taken if first in (0xC4, 0xC5, 0xC6) else taken.decode()
    if 0x90 <= first < 0xA0 or first in _LISTS:
        many = cursor.number(_LISTS[first]) if first in _LISTS else first & 0xF
        return [_value(cursor, depth + 1) for _ in range(many)]
    if first < 0x90 or first in _MAPS:
        many = cursor.number(_MAPS[first]) if first in _MAPS else first & 0xF
        pairs = (
            (_value(cursor, depth + 1), _value(cursor, depth + 1)) for _ in range(many)
        )
        return dict(pairs)
    raise MalformedError("dstack's container has a value of another type")


_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})+")
_OPENS: Final = (b"{", b"[", b"<", b"-----")  # JSON, XML, PEM: text that stays text


def decode_text(text: str) -> bytes:
    """Bytes written in hex, with or without ``0x``, or in base64, wrapped or not.

    Text that has no other characters than pairs of hex digits is hex: in base64 of what
    vendors write, some other letter stands among the first few.

    Raises:
        MalformedError: if it is neither.
    """
    bare = "".join(text.split())
    digits = bare[2:] if bare[:2] in ("0x", "0X") else bare
    if _HEX.fullmatch(digits):
        return bytes.fromhex(digits)
    letters = bare.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except ValueError:
        raise MalformedError("the text is neither hex nor base64") from None


def read_bytes(raw: bytes) -> bytes:
    """What a file says: itself, or what stands in it in hex or base64."""
    bare = raw.strip()
    if not bare or not bare.isascii() or bare.startswith(_OPENS):
        return raw
    try:
        return decode_text(bare.decode("ascii"))
    except MalformedError:
        return raw


def read_object(raw: bytes) -> dict[str, Any]:
    """The object that a JSON text is.

    Raises:
        MalformedError: if it is none.
    """
    try:
        plain = json.loads(raw)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise MalformedError("the file is not a JSON object")
    return plain


_SPDM_REQUEST: Final = b"\x11\xe0"
_QUOTE_VERSIONS: Final = (b"\3\0", b"\4\0", b"\5\0")
# TPMT_SIGNATURE's head (RSASSA, SHA-256, 256 bytes), which these files leave out.
_RSASSA_SHA256: Final = bytes.fromhex("0014000b0100")


@dataclass(frozen=True, slots=True)
class Wrapped:
    """Evidence made of another file.

    Attributes:
        evidence: In our form.
        form: What the file was, for people.
    """

    evidence: Evidence
    form: str


def wrap(raw: bytes, certificates: Sequence[bytes] = (), device: int = 0) -> Wrapped:
    """The evidence of a vendor's file.

    Args:
        raw: The file.
        certificates: DER, of the key that signed, where the form has no place for them.
        device: Which one, of a list.

    Raises:
        MalformedError: ``bad-evidence-file``: no form that is known here;
            ``evidence-other-kind``: a kind that is known, and not judged.
        UsageError: if what must be given beside it was not.
    """
    raw = read_bytes(raw)
    try:
        return _wrap(raw, tuple(certificates), device)
    except MalformedError:
        kind = _name_kind(raw)
        if kind is None:
            raise
        raise kind.to_error() from None


def _wrap(raw: bytes, chain: tuple[bytes, ...], device: int) -> Wrapped:
    if raw.lstrip()[:1] in (b"{", b"["):
        return _wrap_json(raw, chain, device)
    if len(raw) == REPORT_BYTES:
        return _wrap_snp(raw, chain)
    if raw.startswith(_SPDM_REQUEST):
        if not chain:
            raise UsageError(
                "a report of an NVIDIA device can be verified only with its "
                "certificates",
                fix="Give its certificate chain with --certificates FILE",
                code="usage",
            )
        body = NvidiaBody(report=raw, certificates=chain)
        return Wrapped(body.to_evidence(), "a bare report of an NVIDIA device")
    if raw[:2] in _QUOTE_VERSIONS:
        return _wrap_quote(raw)
    if raw and begins_container(raw):
        return _wrap_container(raw, chain)
    raise _unknown("its first bytes are unknown")


def _wrap_quote(raw: bytes) -> Wrapped:
    _require_guest(raw)
    return Wrapped(TdxBody(quote=raw).to_evidence(), "a bare quote, without logs")


def _require_guest(quote: bytes) -> None:
    if not isinstance(parse_quote(quote).body, TdReport):
        raise SGX.to_error()


def _wrap_snp(raw: bytes, certificates: tuple[bytes, ...]) -> Wrapped:
    parse_report(raw)
    body = SnpBody(report=raw, certificates=certificates)
    return Wrapped(body.to_evidence(), "a bare SEV-SNP report")


def _wrap_container(raw: bytes, certificates: tuple[bytes, ...]) -> Wrapped:
    body = read_container(raw)
    if isinstance(body, SnpBody):
        inner = _wrap_snp(body.report, body.certificates + certificates)
    else:
        inner = _wrap_quote(body.quote)
    return Wrapped(inner.evidence, "dstack's container, without its logs")


def _wrap_json(raw: bytes, certificates: tuple[bytes, ...], device: int) -> Wrapped:
    try:
        plain = json.loads(raw)
    except (ValueError, RecursionError):
        raise _unknown("it is neither JSON nor another known form") from None
    return _wrap_plain(plain, certificates, device)


def _wrap_plain(plain: Any, certificates: tuple[bytes, ...], device: int) -> Wrapped:
    for _ in range(_MAX_DEPTH):
        within = isinstance(plain, dict) and _first(plain, _WITHIN, (dict, list))
        if not within:
            break
        plain = plain[within]
    if isinstance(plain, list):
        return _wrap_list(plain, device)
    if not isinstance(plain, dict):
        raise _unknown("it is JSON, but not an object")
    if "evidences" in plain:
        said = str(plain.get("result_message"))[:80]
        raise _unknown(f"nvattest collected nothing: {said}")
    if "__cmwc_t" in plain:
        return _wrap_list(_collected(plain), device)
    if _first(plain, _DEVICE_REPORT, str) and _first(plain, _DEVICE_CHAIN, str):
        return _wrap_list([plain], 0)
    return _wrap_cpu(plain, certificates)


def _wrap_cpu(plain: Mapping[str, Any], certificates: tuple[bytes, ...]) -> Wrapped:
    names = plain.keys()
    if {"hcl_report", "tpm_quote"} <= names or {"report", "quote"} <= names:
        return _wrap_azure(plain, certificates)
    if quote := _first(plain, _TD_QUOTE, (str, list)):
        log = _first(plain, _FIRMWARE_LOG, (str, list))
        ccel = _bytes(plain, log) if log else None
        body = TdxBody(quote=_bytes(plain, quote), ccel=ccel)
        _require_guest(body.quote)
        whose = (
            "dstack's answer, without its log" if "event_log" in plain else "Trustee's"
        )
        return Wrapped(body.to_evidence(), f"TDX evidence: {whose}")
    if "attestation" in names:
        inner = _bytes(plain, "attestation")
        if not inner or not begins_container(inner):
            raise _unknown("it is an attestation in another container than dstack's")
        return _wrap_container(inner, certificates)
    if report := _first(plain, _SNP_REPORT, (str, list, dict)):
        chain = _read_chain(_parts([plain.get(each) for each in _SNP_CHAIN]))
        parts = plain[report]
        raw = _join(parts) if isinstance(parts, dict) else _bytes(plain, report)
        return _wrap_snp(raw, chain + certificates)
    raise _unknown("it is an object of another kind")


# Names by which tools call the same thing: Trustee, NVIDIA's SDK and services, dstack,
# Intel Trust Authority, Google, attestation-rs.
_WITHIN: Final = ("evidences", "evidence_list", "device_evidence_list", "evidence",
                  "tdx", "sevsnp", "snp", "nvgpu", "nvidia_gpu")  # fmt: skip
_DEVICE_REPORT: Final = ("evidence", "evidence_b64")
_DEVICE_CHAIN: Final = ("certificate", "cert_chain_b64")
_TD_QUOTE: Final = ("quote", "td_quote", "tdQuote", "intel_quote")
_FIRMWARE_LOG: Final = ("cc_eventlog", "ccel_data", "ccelData")
_SNP_REPORT: Final = ("attestation_report", "report")
_SNP_CHAIN: Final = ("cert_chain", "certificates", "auxblob", "vcek", "vlek")


# What Trustee's attester calls fields of a report, and the places of TCB versions.
_SEV: Final = {
    "algorithm": "sig_algo", "platform": "plat_info", "flags": "key_info",
    "launch_mitigations": "launch_mit_vector", "current_mitigations": "current_mit_vector",
}  # fmt: skip
_TCB: Final = ("bootloader", "tee", "", "", "", "", "snp", "microcode")
_TCB_SINCE_TURIN: Final = ("fmc", "bootloader", "tee", "snp", "", "", "", "microcode")


def _join(parts: Mapping[str, Any]) -> bytes:
    """The report of which these are the fields; its signature shows whether they are."""
    try:
        fields = {name: _field(parts, name) for name in REPORT_FIELDS}
        signature = b"".join(_octets(parts["signature"][each]) for each in "rs")
        return join_report(fields, signature)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise _unknown("it has other fields than an SEV-SNP report") from None


def _field(parts: Mapping[str, Any], name: str) -> int | bytes:
    value = parts.get(_SEV.get(name, name))
    if name == "cpuid":
        return bytes(parts.get(f"cpuid_{n}") or 0 for n in ("fam_id", "mod_id", "step"))
    if name.endswith("_tcb"):
        places = _TCB if parts[name].get("fmc") is None else _TCB_SINCE_TURIN
        return bytes(parts[name].get(each) or 0 for each in places)
    if name.endswith("_build"):  # a version, in later releases with its own fields
        which = name.removesuffix("_build")
        order = ("build", "minor", "major")
        later = parts.get(which) or {each: parts[f"{which}_{each}"] for each in order}
        return bytes(later[each] for each in order)
    return _octets(value) if isinstance(value, str | list) else int(value or 0)


def _first(
    plain: Mapping[str, Any], names: Iterable[str], kinds: type | tuple[type, ...]
) -> str:
    """The first name whose value is of that kind and not empty; else empty."""
    values = ((each, plain.get(each)) for each in names)
    return next((n for n, v in values if v and isinstance(v, kinds)), "")


def _parts(value: Any) -> Iterator[bytes]:
    """Every piece of bytes or text in a value; of a named entry only its data."""
    if isinstance(value, str):
        yield value.encode()
    elif isinstance(value, list) and value and isinstance(value[0], int):
        yield _octets(value)
    elif isinstance(value, list):
        yield from (part for each in value for part in _parts(each))
    elif isinstance(value, dict):
        yield from _parts(value.get("data", list(value.values())))


def _collected(plain: Mapping[str, Any]) -> list[Any]:
    """The devices of a collection of conceptual messages, as nvattest writes it."""
    try:
        return [
            {name: each[name][1] for name in ("evidence", "certificate")}
            for each in plain.values()
            if isinstance(each, dict)
        ]
    except (KeyError, TypeError, IndexError):
        raise _unknown("it is a collection without a device's evidence") from None


def _wrap_list(plain: list[Any], device: int) -> Wrapped:
    if not 0 <= device < len(plain):
        raise UsageError(
            f"the file has no device {device}",
            why=f"it has {len(plain)} devices, counted from 0",
            code="usage",
        )
    entry = plain[device]
    if not isinstance(entry, dict):
        raise _unknown("it is a list, but not of evidence")
    report, held = _first(entry, _DEVICE_REPORT, str), _first(entry, _DEVICE_CHAIN, str)
    if not report or not held:
        raise _unknown("it is a list, but not of devices' reports with certificates")
    chain = certificates_from_pem(read_bytes(entry[held].encode()))
    body = NvidiaBody(
        report=_bytes(entry, report),
        certificates=tuple(each.der for each in chain),
    )
    form = f"evidence of NVIDIA's SDK, device {device} of {len(plain)}"
    return Wrapped(body.to_evidence(), form)


def _wrap_azure(plain: Mapping[str, Any], certificates: tuple[bytes, ...]) -> Wrapped:
    """Evidence of az-snp-vtpm and az-tdx-vtpm, as they were and are written."""
    quote = plain.get("tpm_quote") or plain.get("quote")
    if not isinstance(quote, dict) or not isinstance(quote.get("pcrs"), list):
        raise _unknown("it is Azure's evidence without registers")
    hcl = "hcl_report" if "hcl_report" in plain else "report"
    own = parse_certificates(_pem_or_der(plain, "vcek")) if plain.get("vcek") else ()
    values = {str(n): _octets(raw) for n, raw in enumerate(quote["pcrs"])}
    body = AzureBody(
        hcl_report=_bytes(plain, hcl),
        td_quote=_bytes(plain, "td_quote") if "td_quote" in plain else b"",
        certificates=(*(each.der for each in own), *certificates),
        quote=_bytes(quote, "message"),
        signature=_RSASSA_SHA256 + _bytes(quote, "signature"),
        pcrs={"sha256": values},
    )
    return Wrapped(body.to_evidence(), "Trustee's evidence of an Azure guest")


def _bytes(plain: Mapping[str, Any], name: str) -> bytes:
    try:
        return _octets(plain.get(name))
    except MalformedError as error:
        raise MalformedError(error.what, field=name) from None


def _pem_or_der(plain: Mapping[str, Any], name: str) -> bytes:
    found = plain[name]
    pem = isinstance(found, str) and found.startswith("-----")
    return found.encode() if pem else _bytes(plain, name)


def _octets(value: object) -> bytes:
    if isinstance(value, str):
        return decode_text(value)
    with suppress(ValueError, TypeError):
        if isinstance(value, list):
            return bytes(value)
    raise MalformedError("a value is neither text nor a list of bytes")


def _unknown(why: str) -> SealiftError:
    return MalformedError(
        "the file is not evidence of a known form", why=why, code="bad-evidence-file"
    )
