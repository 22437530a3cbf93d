"""Collateral from vendors: their files, and what their public services answer.

Intel's lists (alone, or the one JSON object that tools around DCAP keep), AMD's chains
and keys, NVIDIA's manifests, revocation lists, OCSP answers, TPM makers' certificates:
told by their content and named as items of a bundle. What services are asked for follows
from the evidence, never while a verifier runs. Verifiers verify, whenever an item is used.
Source: spec/evidence.md section Collateral; Intel PCS API 4; AMD KDS (57230) section 4;
NVIDIA RIM service API 1.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from typing import Any, Final

from sealift.attest import composite
from sealift.attest.collateral import MAX_BUNDLE_BYTES, Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia import evidence as nvidia
from sealift.attest.nvidia.verifier import wanted_rims
from sealift.attest.snp import evidence as snp
from sealift.attest.snp.endorsement import (
    VCEK_NAME,
    VLEK_NAME,
    parse_certificates,
    parse_endorsement,
)
from sealift.attest.tdx import evidence as tdx
from sealift.attest.tdx import tcb
from sealift.attest.tdx.platform import LIST_SIGNER, platform_facts
from sealift.attest.tools.vendorfiles import decode_text, read_bytes, read_object
from sealift.crypto.certificate import Certificate, certificates_from_pem
from sealift.crypto.chain import RevocationList, StatusAnswer
from sealift.errors import MalformedError, UnavailableError, UsageError
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
        raise MalformedError("a field is missing or is not text", field=field)
    return found


TIMEOUT_S: Final = 20.0
_SPL: Final = {
    "boot_loader": "blSPL", "tee": "teeSPL", "snp": "snpSPL", "microcode": "ucodeSPL",
}  # fmt: skip
KINDS: Final = ("tdx", "sgx")
_RIM_NAME: Final = re.compile(r"NV_(?:GPU|SWITCH)_[A-Za-z0-9_.]{1,100}")
_AMD: Final = re.compile(r"\b(?:ARK|SEV)-(?:VLEK-)?(Milan|Genoa|Turin)\b")
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
        stem: Its name without ending: NVIDIA's manifests say their id nowhere else.

    Raises:
        MalformedError: ``collateral-unknown``.
    """
    raw = read_bytes(raw)
    for read in (_read_json, _read_rim, _read_certificates, _read_crl, _read_ocsp):
        if found := read(raw, stem):
            return found
    raise MalformedError(
        "the file is not collateral of a known form",
        why=(
            "it is neither a list of Intel's, nor a certificate, revocation list, "
            "OCSP answer or manifest"
        ),
        code="collateral-unknown",
    )


def item_times(raw: bytes) -> ItemTimes:
    """What an item says about its own time; unverified."""
    for parse in (tcb.parse_tcb_info, tcb.parse_qe_identity):
        with suppress(MalformedError):
            listed = parse(tcb.split_list(raw).signed)
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
        why, fix = "no item has a date", "Give --as-of TIME"
    elif newest is not None and as_of_s < newest:
        why, fix = "an item is newer than that time", "Give a later --as-of"
    elif as_of_s > now_s:
        why, fix = "that time is in the future", "Check this machine's clock"
    else:
        return Collateral(as_of_s=as_of_s, items=items)
    raise UsageError(
        "the time of the bundle is not known", why=why, fix=fix, code="collateral-as-of"
    )


def _read_json(raw: bytes, stem: str) -> dict[str, bytes]:
    plain: dict[str, Any] = {}
    with suppress(MalformedError):
        plain = read_object(raw)
    if "tcb_info" in plain:
        return import_collateral(raw)
    if "rim" in plain:
        return _rim_answer(plain)
    bare = raw.strip()
    if "tcbInfo" in plain:
        info = tcb.parse_tcb_info(tcb.split_list(bare).signed)
        return {f"{info.kind.lower()}/tcb-info/{info.fmspc.hex()}": bare}
    if "enclaveIdentity" in plain:
        made = tcb.parse_qe_identity(tcb.split_list(bare).signed)
        return {f"{'tdx' if made.kind.startswith('TD') else 'sgx'}/qe-identity": bare}
    return {}


def _rim_answer(plain: dict[str, object]) -> dict[str, bytes]:
    """What NVIDIA's service answers: the manifest in base64, its id and SHA-256."""
    name, text, expected = (plain.get(each) for each in ("id", "rim", "sha256"))
    if not isinstance(name, str) or not _RIM_NAME.fullmatch(name):
        raise MalformedError("the manifest has no id", field="id")
    raw = decode_text(str(text))
    if expected is not None and Digest.of(raw).raw.hex() != expected:
        raise MalformedError("the manifest has another digest", field="sha256")
    return {f"nvidia/rim/{name}": raw}


def _read_rim(raw: bytes, stem: str) -> dict[str, bytes]:
    if b"<SoftwareIdentity" not in raw[:1000]:
        return {}
    if not _RIM_NAME.fullmatch(stem):
        raise MalformedError(
            "the manifest's id is unknown",
            why=(
                "name the file by its id, for example "
                "NV_GPU_DRIVER_GH100_550.144.03.xml"
            ),
            code="collateral-unknown",
        )
    return {f"nvidia/rim/{stem}": raw}


def _read_certificates(raw: bytes, stem: str) -> dict[str, bytes]:
    try:
        chain = parse_certificates(raw)
    except MalformedError:
        return {}
    leaf = chain[0]
    if leaf.subject_name == LIST_SIGNER:
        names = ("tcb-info-chain", "qe-identity-chain")
        return {f"{kind}/{name}": raw for kind in KINDS for name in names}
    if leaf.subject_name == VCEK_NAME:
        return {f"snp/vcek/{parse_endorsement(leaf).chip_id.hex()}": raw}
    if leaf.subject_name == VLEK_NAME:
        return {f"snp/vlek/{leaf.spki_digest.raw.hex()[:16]}": raw}
    amd = _AMD.search(leaf.subject)
    if amd:
        return {f"snp/chain/{amd[1]}": raw}
    issuers = chain if leaf.is_ca else ()
    return {f"tpm/issuer/{e.spki_digest.raw.hex()[:16]}": e.der for e in issuers}


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
    vendor = "nvidia" if "NVIDIA" in issuer else "tpm"
    return {f"{vendor}/crl/{Digest.of(issuer.encode()).raw.hex()[:16]}": raw}


def _read_ocsp(raw: bytes, stem: str) -> dict[str, bytes]:
    with suppress(MalformedError):
        StatusAnswer(raw)
        return {f"nvidia/ocsp/{Digest.of(raw).raw.hex()[:16]}": raw}
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Where the services are; a cache or mirror may stand in the place of each."""

    intel: str = "https://api.trustedservices.intel.com"
    intel_root: str = "https://certificates.trustedservices.intel.com"
    amd: str = "https://kdsintf.amd.com"
    nvidia: str = "https://rim.attestation.nvidia.com"


@dataclass(frozen=True, slots=True)
class CollateralQuery:
    """One question.

    Attributes:
        url: What is asked.
        header: Of the answer, that holds the chain of its signer as PEM in URL form.
    """

    url: str
    header: str = ""


def wanted(
    evidence: Evidence, services: Services | None = None
) -> tuple[CollateralQuery, ...]:
    """Every question whose answer a verifier of this evidence will want.

    Raises:
        MalformedError: if the evidence does not parse.
        UsageError: ``usage``: no service has anything about this kind.
    """
    services = services or Services()
    parts: tuple[Evidence, ...] = (evidence,)
    if evidence.media_type == composite.MEDIA_TYPE:
        body = composite.CompositeBody.parse(evidence.body)
        parts = (body.lead, *body.devices)
    known = [each for each in parts if each.media_type in _ASK]
    found = [q for e in known for q in _ASK[e.media_type](e.body, services)]
    if not found:
        raise UsageError(
            f"there is no collateral service for evidence of kind {evidence.kind}",
            fix="Make a bundle of the vendor's files: `sealift attest collateral make`",
            code="usage",
        )
    return tuple(dict.fromkeys(found))


def fetch(questions: Iterable[CollateralQuery]) -> dict[str, bytes]:
    """The answers, as items of a bundle.

    Raises:
        UnavailableError: ``collateral-unreachable``.
        MalformedError: for an answer that is nothing of the kind.
    """
    items: dict[str, bytes] = {}
    for each in questions:
        body, headers = _ask(each.url)
        items |= to_items(body)
        if each.header:
            chain = urllib.parse.unquote(headers.get(each.header) or "")
            items |= to_items(chain.encode())
    return items


def _ask_intel(raw: bytes, services: Services) -> tuple[CollateralQuery, ...]:
    quote = tdx.parse_quote(tdx.TdxBody.parse(raw).quote)
    pck = certificates_from_pem(quote.chain)[0]
    kind = "tdx" if isinstance(quote.body, tdx.TdReport) else "sgx"
    authority = "processor" if "Processor" in pck.issuer else "platform"
    fmspc = platform_facts(pck).fmspc.hex()
    base = f"{services.intel}/{kind}/certification/v4"
    lists = f"{services.intel}/sgx/certification/v4/pckcrl"
    return (
        CollateralQuery(f"{base}/tcb?fmspc={fmspc}", "TCB-Info-Issuer-Chain"),
        CollateralQuery(f"{base}/qe/identity", "SGX-Enclave-Identity-Issuer-Chain"),
        CollateralQuery(f"{lists}?ca={authority}&encoding=der"),
        CollateralQuery(f"{services.intel_root}/IntelSGXRootCA.der"),
    )


def _ask_amd(raw: bytes, services: Services) -> tuple[CollateralQuery, ...]:
    body = snp.SnpBody.parse(raw)
    report = snp.parse_report(body.report)
    product = report.product
    if not product:
        raise UsageError(
            "the report does not name the product of its chip",
            why="it has version 2",
            fix="Download AMD's files for the product, and make a bundle of them",
            code="usage",
        )
    operated = report.signing_key == "VLEK"
    base = f"{services.amd}/{'vlek' if operated else 'vcek'}/v1/{product}"
    shared = (CollateralQuery(f"{base}/cert_chain"), CollateralQuery(f"{base}/crl"))
    if operated:
        return shared  # an operator's key comes with the evidence only
    reported, chip, names = (
        snp.parse_tcb(report.reported_tcb, product),
        report.chip_id,
        _SPL,
    )
    if product == "Turin":
        chip, names = chip[:8], {"fmc": "fmcSPL", **_SPL}
    versions = "&".join(f"{n}={getattr(reported, at):02}" for at, n in names.items())
    return (*shared, CollateralQuery(f"{base}/{chip.hex()}?{versions}"))


def _ask_nvidia(raw: bytes, services: Services) -> tuple[CollateralQuery, ...]:
    body = nvidia.NvidiaBody.parse(raw)
    chip = nvidia.chip_of(Certificate(body.certificates[0]))
    needed = wanted_rims(nvidia.parse_report(body.report), chip)
    return tuple(
        CollateralQuery(f"{services.nvidia}/v1/rim/{each.id}") for each in needed
    )


_ASK: Final[Mapping[str, Callable[[bytes, Services], tuple[CollateralQuery, ...]]]] = {
    tdx.MEDIA_TYPE: _ask_intel,
    snp.MEDIA_TYPE: _ask_amd,
    nvidia.MEDIA_TYPE: _ask_nvidia,
}


def _ask(url: str) -> tuple[bytes, Message]:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url[:80]} is not the address of a service", code="usage")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310
            body = answer.read(MAX_BUNDLE_BYTES + 1)
            headers: Message = answer.headers
    except urllib.error.HTTPError as error:
        error.close()
        raise _unreachable(url, f"it answered with status {error.code}") from None
    except (OSError, ValueError) as error:
        raise _unreachable(url, str(error)) from None
    if len(body) > MAX_BUNDLE_BYTES:
        raise MalformedError("the service's answer is too long", why=url)
    return body, headers


def _unreachable(url: str, why: str) -> UnavailableError:
    return UnavailableError(
        "a vendor's service did not answer",
        why=f"{url}: {why}",
        code="collateral-unreachable",
    )
