"""Evidence in the forms of the KBS protocol, and in ours: one table, both directions.

``tdx``, ``snp`` and ``tpm`` are Trustee's forms; what they lack and our verifiers want
travels in a member of ours beside them, which Trustee does not look at. ``sealift`` is
any evidence of ours as it is. What cannot be converted is refused, never approximated.
Source: deps/verifier of confidential-containers/trustee; spec/kbs.md section Evidence.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sealift.attest import snp, tdx, tpm
from sealift.attest.evidence import BOUND_BYTES, MAX_BODY_BYTES, Evidence
from sealift.attest.formats.tpm import parse_public
from sealift.attest.runtimelog import RuntimeEvent
from sealift.codec import encode, from_plain, to_plain
from sealift.errors import EvidenceError
from sealift.service.kbsazure import PCRS, read_azure
from sealift.service.kbsforms import SEALIFT_TEE, bad_message

OURS: Final = "sealift"
"""Name of our member in a form of Trustee's."""
TEE_OF_MEDIA_TYPE: Final[Mapping[str, str]] = {
    tdx.MEDIA_TYPE: "tdx",
    tpm.MEDIA_TYPE: "tpm",
}
"""How a client names its evidence to a Trustee, before it made any."""
_WHOLE: Final = frozenset({"tdx", "snp", "az-snp-vtpm", "az-tdx-vtpm"})
_PCR = re.compile(r"[0-9a-fA-F]{64}")


def bound_for(tee: str, bound: bytes) -> bytes:
    """What clients of the protocol have evidence of ``tee`` carry.

    Report data and Azure's quotes take a whole hash, a TPM and our own evidence its first
    32 bytes.
    """
    return bound if tee in _WHOLE else bound[:BOUND_BYTES]


def to_evidence(tee: str, primary: object) -> Evidence:
    """Evidence of ours from what a client of the protocol sent.

    Raises:
        EvidenceError: ``kbs-evidence-form``: a kind or a form that is not read here.
        MalformedError: if it is not that form.
    """
    read = _READERS.get(tee)
    if read is None:
        raise _not_read(f"evidence of {tee}")
    if not isinstance(primary, dict):
        raise bad_message("primary_evidence is no object")
    return read(primary)


def to_native(evidence: Evidence) -> dict[str, Any]:
    """The form of the tee ``sealift``: any evidence of ours, for a server of ours."""
    return {
        "kind": evidence.kind,
        "media_type": evidence.media_type,
        "body": base64.b64encode(evidence.body).decode(),
    }


def to_trustee(evidence: Evidence) -> dict[str, Any]:
    """Trustee's form of evidence, with what ours has besides in a member of ours.

    Raises:
        EvidenceError: ``kbs-evidence-form``: Trustee could not read it.
    """
    if evidence.media_type == tdx.MEDIA_TYPE:
        return _write_tdx(tdx.parse_body(evidence.body))
    if evidence.media_type == tpm.MEDIA_TYPE:
        return _write_tpm(tpm.parse_body(evidence.body))
    raise _not_read(f"evidence of {evidence.kind}, by a Trustee,")


def _read_sealift(form: Mapping[str, Any]) -> Evidence:
    return Evidence(
        _text(form, "kind"), _text(form, "media_type"), _bytes(form, "body")
    )


def _read_tdx(form: Mapping[str, Any]) -> Evidence:
    ccel = _bytes(form, "cc_eventlog") if form.get("cc_eventlog") else None
    body = tdx.TdxBody(quote=_bytes(form, "quote"), ccel=ccel, events=_events(form))
    return body.to_evidence()


def _read_azure(form: Mapping[str, Any]) -> Evidence:
    return read_azure(form, _events(form))


def _write_tdx(body: tdx.TdxBody) -> dict[str, Any]:
    form: dict[str, Any] = {"quote": base64.b64encode(body.quote).decode()}
    if body.ccel is not None:
        form["cc_eventlog"] = base64.b64encode(body.ccel).decode()
    if body.events:
        form[OURS] = {"events": to_plain(body.events)}
    return form


def _read_snp(form: Mapping[str, Any]) -> Evidence:
    if not isinstance(form.get("attestation_report"), str):
        # A structure whose layout is that of one version of a Rust crate.
        raise _not_read("an SNP report that is taken apart")
    chain = form.get("cert_chain") or []
    if not isinstance(chain, list) or not all(isinstance(each, dict) for each in chain):
        raise bad_message("cert_chain is no list of certificates")
    certificates = tuple(_raw_bytes(each.get("data"), "data") for each in chain)
    report = _bytes(form, "attestation_report")
    return snp.SnpBody(report=report, certificates=certificates).to_evidence()


def _read_tpm(form: Mapping[str, Any]) -> Evidence:
    """Trustee's form has the bare key; ours beside it has what shows whose it is."""
    quote = form.get("tpm_quote")
    if not isinstance(quote, dict):
        raise bad_message("tpm_quote is no object")
    ours = form.get(OURS)
    if ours is None:
        raise _not_read("a TPM quote without the public area of its key")
    if not isinstance(ours, dict):
        raise bad_message(f"{OURS} is no object")
    quoted = {
        "quote": _bytes(quote, "message"),
        "signature": _bytes(quote, "signature"),
        "pcrs": {"sha256": _registers(quote.get("pcrs"))},
    }
    body: tpm.TpmBody = from_plain(tpm.TpmBody, {**ours, **to_plain(quoted)})
    return Evidence(tpm.KIND, tpm.MEDIA_TYPE, encode(body))


def _write_tpm(body: tpm.TpmBody) -> dict[str, Any]:
    if set(body.pcrs) != {"sha256"} or len(body.pcrs["sha256"]) != PCRS:
        raise _not_read("a quote over other registers than all of SHA-256")
    registers = body.pcrs["sha256"]
    beside = to_plain(body)
    for name in ("quote", "signature", "pcrs"):
        del beside[name]
    public = parse_public(body.attestation_key)
    return {
        "ak_public": base64.b64encode(public.key.to_spki()).decode(),
        "tpm_quote": {
            "message": base64.b64encode(body.quote).decode(),
            "signature": base64.b64encode(body.signature).decode(),
            "pcrs": [registers[str(number)].hex() for number in range(PCRS)],
        },
        OURS: beside,
    }


def _registers(pcrs: object) -> dict[str, bytes]:
    if not isinstance(pcrs, list) or len(pcrs) != PCRS:
        raise bad_message("pcrs is no list of one for each register")
    if not all(isinstance(each, str) and _PCR.fullmatch(each) for each in pcrs):
        raise bad_message("a register is not 64 hex digits")
    return {str(number): bytes.fromhex(each) for number, each in enumerate(pcrs)}


def _events(form: Mapping[str, Any]) -> tuple[RuntimeEvent, ...]:
    ours = form.get(OURS)
    if ours is None:
        return ()
    if not isinstance(ours, dict):
        raise bad_message(f"{OURS} is no object")
    events: tuple[RuntimeEvent, ...] = from_plain(
        tuple[RuntimeEvent, ...], ours.get("events", [])
    )
    return events


def _text(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise bad_message(f"{name} is no text")
    return value


def _bytes(form: Mapping[str, Any], name: str) -> bytes:
    value = _text(form, name)
    if len(value) > 2 * MAX_BODY_BYTES:
        raise bad_message(f"{name} is too long")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise bad_message(f"{name} is not base64") from None


def _raw_bytes(value: object, name: str) -> bytes:
    """Bytes as the protocol's certificates have them: a list of numbers, or base64."""
    if isinstance(value, str):
        return _bytes({name: value}, name)
    if not isinstance(value, list) or len(value) > 1 << 14:
        raise bad_message(f"{name} is neither base64 nor a short list of bytes")
    if not all(type(each) is int and 0 <= each < 256 for each in value):
        raise bad_message(f"{name} has a number that is no byte")
    return bytes(value)


def _not_read(what: str) -> EvidenceError:
    return EvidenceError(
        f"{what} is not read here",
        why="it does not hold what our verifiers need",
        fix="Attest with sealift's own client, which sends it beside Trustee's form",
        code="kbs-evidence-form",
    )


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Evidence]]] = {
    SEALIFT_TEE: _read_sealift,
    "tdx": _read_tdx,
    "snp": _read_snp,
    "tpm": _read_tpm,
    "az-snp-vtpm": _read_azure,
    "az-tdx-vtpm": _read_azure,
}
