"""Asks vendors' public services for what some evidence needs, by plain HTTP requests.

The only part of attestation that opens connections for a verifier, and never during one:
what comes back goes into a bundle. What is asked for follows from the evidence; answers
are told by their content like files, and verified by whoever uses the bundle.
Source: Intel PCS API 4; AMD KDS (57230) section 4; NVIDIA RIM service API 1.
"""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Final

from sealift.attest import composite
from sealift.attest.collateral import MAX_BUNDLE_BYTES
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia import evidence as nvidia
from sealift.attest.nvidia.verifier import wanted_rims
from sealift.attest.snp import evidence as snp
from sealift.attest.snp.evidence import parse_report, parse_tcb
from sealift.attest.tdx import evidence as tdx
from sealift.attest.tdx.evidence import TdReport, parse_quote
from sealift.attest.tdx.platform import platform_facts
from sealift.attest.tools.collateralfiles import to_items
from sealift.crypto.certificate import Certificate, certificates_from_pem
from sealift.errors import MalformedError, UnavailableError, UsageError

TIMEOUT_S: Final = 20.0
_TURIN_CHIP_BYTES: Final = 8
_SPL: Final = {
    "boot_loader": "blSPL",
    "tee": "teeSPL",
    "snp": "snpSPL",
    "microcode": "ucodeSPL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Where the services are; a cache or mirror may stand in the place of each."""

    intel: str = "https://api.trustedservices.intel.com"
    intel_root: str = "https://certificates.trustedservices.intel.com"
    amd: str = "https://kdsintf.amd.com"
    nvidia: str = "https://rim.attestation.nvidia.com"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One question.

    Attributes:
        url: What is asked.
        header: Of the answer, that holds the chain of its signer as PEM in URL form.
    """

    url: str
    header: str = ""


def wanted(evidence: Evidence, services: Services | None = None) -> tuple[Wanted, ...]:
    """Every question whose answer a verifier of this evidence will want.

    Raises:
        MalformedError: if the evidence does not parse.
        UsageError: ``usage``: no service has anything about this kind.
    """
    services = services or Services()
    if evidence.media_type == composite.MEDIA_TYPE:
        body = composite.CompositeBody.parse(evidence.body)
        parts = (body.lead, *body.devices)
        found = [e for part in parts for e in _questions(part, services)]
    else:
        found = list(_questions(evidence, services))
    if not found:
        raise UsageError(
            f"no service is asked about evidence of kind {evidence.kind}",
            fix="Make a bundle of its maker's files: `attest collateral make`",
            code="usage",
        )
    return tuple(dict.fromkeys(found))


def fetch(questions: Iterable[Wanted]) -> dict[str, bytes]:
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


def _questions(evidence: Evidence, services: Services) -> tuple[Wanted, ...]:
    ask = _ASK.get(evidence.media_type)
    return ask(evidence.body, services) if ask else ()


def _ask_intel(raw: bytes, services: Services) -> tuple[Wanted, ...]:
    quote = parse_quote(tdx.TdxBody.parse(raw).quote)
    pck = certificates_from_pem(quote.chain)[0]
    kind = "tdx" if isinstance(quote.body, TdReport) else "sgx"
    authority = "processor" if "Processor" in pck.issuer else "platform"
    fmspc = platform_facts(pck).fmspc.hex()
    base = f"{services.intel}/{kind}/certification/v4"
    lists = f"{services.intel}/sgx/certification/v4/pckcrl"
    return (
        Wanted(f"{base}/tcb?fmspc={fmspc}", "TCB-Info-Issuer-Chain"),
        Wanted(f"{base}/qe/identity", "SGX-Enclave-Identity-Issuer-Chain"),
        Wanted(f"{lists}?ca={authority}&encoding=der"),
        Wanted(f"{services.intel_root}/IntelSGXRootCA.der"),
    )


def _ask_amd(raw: bytes, services: Services) -> tuple[Wanted, ...]:
    body = snp.SnpBody.parse(raw)
    report = parse_report(body.report)
    product = report.product
    if not product:
        raise UsageError(
            "this report does not say which product its chip is",
            why="it is of version 2",
            fix="Download AMD's files for the product, and make a bundle of them",
            code="usage",
        )
    operated = report.signing_key == "VLEK"
    base = f"{services.amd}/{'vlek' if operated else 'vcek'}/v1/{product}"
    shared = (Wanted(f"{base}/cert_chain"), Wanted(f"{base}/crl"))
    if operated:
        return shared  # an operator's key comes with the evidence only
    turin = product == "Turin"
    chip = report.chip_id[:_TURIN_CHIP_BYTES] if turin else report.chip_id
    tcb, names = parse_tcb(report.reported_tcb, product), {**_SPL}
    if turin:
        names = {"fmc": "fmcSPL", **_SPL}
    versions = "&".join(f"{spl}={getattr(tcb, name):02}" for name, spl in names.items())
    return (*shared, Wanted(f"{base}/{chip.hex()}?{versions}"))


def _ask_nvidia(raw: bytes, services: Services) -> tuple[Wanted, ...]:
    body = nvidia.NvidiaBody.parse(raw)
    chip = nvidia.chip_of(Certificate(body.certificates[0]))
    needed = wanted_rims(nvidia.parse_report(body.report), chip)
    return tuple(Wanted(f"{services.nvidia}/v1/rim/{each.id}") for each in needed)


_ASK: Final[Mapping[str, Callable[[bytes, Services], tuple[Wanted, ...]]]] = {
    tdx.MEDIA_TYPE: _ask_intel,
    snp.MEDIA_TYPE: _ask_amd,
    nvidia.MEDIA_TYPE: _ask_nvidia,
}


def _ask(url: str) -> tuple[bytes, Message]:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url[:80]} is no address of a service", code="usage")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310
            body = answer.read(MAX_BUNDLE_BYTES + 1)
            headers: Message = answer.headers
    except urllib.error.HTTPError as error:
        error.close()
        raise _unreachable(url, f"status {error.code}") from None
    except (OSError, ValueError) as error:
        raise _unreachable(url, str(error)) from None
    if len(body) > MAX_BUNDLE_BYTES:
        raise MalformedError("a service's answer is too long", why=url)
    return body, headers


def _unreachable(url: str, why: str) -> UnavailableError:
    return UnavailableError(
        "a vendor's service gives no answer",
        why=f"{url}: {why}",
        code="collateral-unreachable",
    )
