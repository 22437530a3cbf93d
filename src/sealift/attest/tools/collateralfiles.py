"""Vendors' files, told by their content and named as items of a collateral bundle.

Intel's lists and revocation lists (alone, or the one JSON object that tools around DCAP
keep), AMD's chains, keys and lists, NVIDIA's manifests, revocation lists and OCSP
answers, certificates of TPM makers. Nothing here is verified: verifiers do, whenever an
item is used. Source: spec/evidence.md section Collateral.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sealift.attest.collateral import Collateral
from sealift.attest.snp.endorsement import (
    VCEK_NAME,
    VLEK_NAME,
    parse_certificates,
    parse_endorsement,
)
from sealift.attest.tdx import tcb
from sealift.attest.tools.vendorfiles import decode_text, read_bytes, read_object
from sealift.crypto.chain import RevocationList, StatusAnswer
from sealift.errors import MalformedError, UsageError
from sealift.ids import Digest


def import_collateral(raw: bytes) -> dict[str, bytes]:
    """Items by name (``tdx/...`` or ``sgx/...``, as its TCB levels say).

    Raises:
        MalformedError: if it is not such an object.
    """
    plain = read_object(raw)
    tcb = _text(plain, "tcb_info")
    kind = "tdx" if re.search(r'"id"\s*:\s*"TDX"', tcb) else "sgx"
    items = {
        "tcb-info": _signed(plain, "tcbInfo", "tcb_info"),
        "tcb-info-chain": _text(plain, "tcb_info_issuer_chain").encode(),
        "qe-identity": _signed(plain, "enclaveIdentity", "qe_identity"),
        "qe-identity-chain": _text(plain, "qe_identity_issuer_chain").encode(),
        "root-crl": _revocation_list(plain, "root_ca_crl"),
        "pck-crl": _revocation_list(plain, "pck_crl"),
        "pck-crl-chain": _text(plain, "pck_crl_issuer_chain").encode(),
    }
    return {f"{kind}/{name}": item for name, item in items.items()}


def _signed(plain: dict[str, Any], name: str, field: str) -> bytes:
    inner, signature = _text(plain, field), _text(plain, f"{field}_signature")
    return f'{{"{name}":{inner},"signature":"{signature}"}}'.encode()


def _revocation_list(plain: dict[str, Any], field: str) -> bytes:
    text = _text(plain, field)
    return text.encode() if text.startswith("-----") else decode_text(text)


def _text(plain: dict[str, Any], field: str) -> str:
    found = plain.get(field)
    if not isinstance(found, str) or not found.isascii():
        raise MalformedError("a field is missing or no text", field=field)
    return found


KINDS: Final = ("tdx", "sgx")
_RIM_NAME: Final = re.compile(r"NV_(?:GPU|SWITCH)_[A-Za-z0-9_.]{1,100}")
_AMD: Final = re.compile(r"\b(?:ARK|SEV)-(?:VLEK-)?(Milan|Genoa|Turin)\b")
_LIST_SIGNER: Final = "Intel SGX TCB Signing"
_INTEL_LISTS: Final = {
    "Intel SGX Root CA": ("root-crl",),
    "Intel SGX PCK Platform CA": ("pck-crl/platform", "pck-crl"),
    "Intel SGX PCK Processor CA": ("pck-crl/processor", "pck-crl"),
}


@dataclass(frozen=True, slots=True)
class ItemTimes:
    """When an item was made, and until when it holds; None where it does not say."""

    issued_s: int | None = None
    due_s: int | None = None


def to_items(raw: bytes, stem: str = "") -> dict[str, bytes]:
    """The items of one file, by name.

    Args:
        raw: The file.
        stem: Its name without folder and ending: NVIDIA's manifests say their id nowhere
            else.

    Raises:
        MalformedError: ``collateral-unknown``.
    """
    raw = read_bytes(raw)
    for read in (_read_json, _read_rim, _read_certificates, _read_crl, _read_ocsp):
        found = read(raw, stem)
        if found:
            return found
    raise MalformedError(
        "no collateral that is known here",
        why="neither lists of Intel's, nor certificates, revocation lists, OCSP answers "
        "or manifests",
        code="collateral-unknown",
    )


def item_times(raw: bytes) -> ItemTimes:
    """What an item says about its own time; unverified."""
    with suppress(MalformedError):
        parts = tcb.split_list(raw)
        parse: Callable[[bytes], tcb.TcbInfo | tcb.QeIdentity]
        named = parts.name == "tcbInfo"
        parse = tcb.parse_tcb_info if named else tcb.parse_qe_identity
        listed = parse(parts.signed)
        return ItemTimes(listed.issued_s, listed.due_s)
    with suppress(MalformedError):
        chain = parse_certificates(raw)
        return ItemTimes(
            max(each.not_before_s for each in chain),
            min(each.not_after_s for each in chain),
        )
    for read in (RevocationList, StatusAnswer):
        with suppress(MalformedError):
            found = read(raw)
            return ItemTimes(found.this_update_s, found.next_update_s or None)
    return ItemTimes()


def bundle(
    items: dict[str, bytes], *, now_s: int, as_of_s: int | None = None
) -> Collateral:
    """Collateral of these items, as of a time.

    The newest item was fetched after it was issued, so without a better word its issue
    is the time as of which all of them are known. A later claim is for a person to make.

    Raises:
        UsageError: ``collateral-as-of``: no time, one to come, or before an item's issue.
    """
    issued = [item_times(raw).issued_s for raw in items.values()]
    newest = max((each for each in issued if each is not None), default=None)
    as_of_s = newest if as_of_s is None else as_of_s
    if as_of_s is None:
        raise _as_of("no item says when it was made", "Give --as-of TIME")
    if newest is not None and as_of_s < newest:
        raise _as_of("an item was made after that time", "Give a later --as-of")
    if as_of_s > now_s:
        raise _as_of("that time is still to come", "Check this machine's clock")
    return Collateral(as_of_s=as_of_s, items=items)


def _read_json(raw: bytes, stem: str) -> dict[str, bytes]:
    try:
        plain = read_object(raw)
    except MalformedError:
        return {}
    if "tcb_info" in plain:
        return import_collateral(raw)
    if "rim" in plain:
        return _rim_answer(plain)
    if "tcbInfo" in plain:
        info = tcb.parse_tcb_info(tcb.split_list(raw.strip()).signed)
        kind = info.kind.lower()
        return {f"{kind}/tcb-info/{info.fmspc.hex()}": raw.strip()}
    if "enclaveIdentity" in plain:
        made = tcb.parse_qe_identity(tcb.split_list(raw.strip()).signed)
        kind = "tdx" if made.kind.startswith("TD") else "sgx"
        return {f"{kind}/qe-identity": raw.strip()}
    return {}


def _rim_answer(plain: dict[str, object]) -> dict[str, bytes]:
    """What NVIDIA's service answers: the manifest in base64, its id and SHA-256."""
    name, text, expected = (plain.get(each) for each in ("id", "rim", "sha256"))
    if not isinstance(name, str) or not _RIM_NAME.fullmatch(name):
        raise MalformedError("a manifest without its id", field="id")
    raw = decode_text(str(text))
    if expected is not None and Digest.of(raw).raw.hex() != expected:
        raise MalformedError("a manifest of another digest", field="sha256")
    return {f"nvidia/rim/{name}": raw}


def _read_rim(raw: bytes, stem: str) -> dict[str, bytes]:
    if b"<SoftwareIdentity" not in raw[:1000]:
        return {}
    if not _RIM_NAME.fullmatch(stem):
        raise MalformedError(
            "a manifest whose id is not known",
            why="a file is named by its id: NV_GPU_DRIVER_GH100_550.144.03.xml",
            code="collateral-unknown",
        )
    return {f"nvidia/rim/{stem}": raw}


def _read_certificates(raw: bytes, stem: str) -> dict[str, bytes]:
    try:
        chain = parse_certificates(raw)
    except MalformedError:
        return {}
    leaf = chain[0]
    if leaf.subject_name == _LIST_SIGNER:
        names = ("tcb-info-chain", "qe-identity-chain")
        return {f"{kind}/{name}": raw for kind in KINDS for name in names}
    if leaf.subject_name == VCEK_NAME:
        return {f"snp/vcek/{parse_endorsement(leaf).chip_id.hex()}": raw}
    if leaf.subject_name == VLEK_NAME:
        return {f"snp/vlek/{leaf.spki_digest.raw.hex()[:16]}": raw}
    amd = _AMD.search(leaf.subject)
    if amd:
        return {f"snp/chain/{amd[1]}": raw}
    if leaf.is_ca:
        return {
            f"tpm/issuer/{each.spki_digest.raw.hex()[:16]}": each.der for each in chain
        }
    return {}


def _read_crl(raw: bytes, stem: str) -> dict[str, bytes]:
    try:
        issuer = RevocationList(raw).issuer
    except MalformedError:
        return {}
    for name, items in _INTEL_LISTS.items():
        if f"CN={name}" in issuer:
            return {f"{kind}/{item}": raw for kind in KINDS for item in items}
    amd = _AMD.search(issuer)
    if amd:
        return {f"snp/crl-{amd[1]}": raw}
    place = "nvidia/crl" if "NVIDIA" in issuer else "tpm/crl"
    return {f"{place}/{Digest.of(issuer.encode()).raw.hex()[:16]}": raw}


def _read_ocsp(raw: bytes, stem: str) -> dict[str, bytes]:
    try:
        StatusAnswer(raw)
    except MalformedError:
        return {}
    return {f"nvidia/ocsp/{Digest.of(raw).raw.hex()[:16]}": raw}


def _as_of(why: str, fix: str) -> UsageError:
    return UsageError(
        "the bundle has no time of its own", why=why, fix=fix, code="collateral-as-of"
    )
