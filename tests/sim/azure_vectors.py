"""Azure's vectors: paravisor reports and quotes of real guests, over SNP and TDX."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any, Final

from sealift.attest.azure.evidence import AzureBody, parse_hcl
from sealift.attest.azure.verifier import examine_azure
from sealift.attest.collateral import Collateral
from sealift.attest.reference import (
    AppraisalBasis,
    ReferenceValues,
    SnpReferences,
    TdxReferences,
    TpmReferences,
)
from sealift.attest.snp.endorsement import parse_certificates
from sealift.attest.snp.evidence import parse_report
from sealift.attest.tpm.evidence import parse_quote
from sealift.attest.tpm.verifier import LOADER_PCRS, REQUIRED_PCRS
from sealift.attest.verifier import Claims
from tests.sim.vectors import vector

AT_S: Final = 1_748_736_000  # 1 June 2025
MILAN: Final = "azvtpm/az-snp-vtpm_evidence-v1.json"
GENOA: Final = "azvtpm/az-snp-vtpm_evidence-genoa.json"
TDX: Final = "azvtpm/az-tdx-vtpm_evidence-v1.json"
SNP_VECTORS: Final = (MILAN, GENOA)
_CHAIN: Final = {
    MILAN: "snp/milan_ask_ark_asvk.pem",
    GENOA: "snp/genoa_ask_ark_asvk.pem",
}
_RSASSA_SHA256: Final = bytes.fromhex("0014000b0100")


def body_of(name: str) -> AzureBody:
    """A vector in our form; signatures get the head that a TPM gives them."""
    plain = json.loads(vector(name))
    quote = plain.get("tpm_quote") or plain["quote"]
    return AzureBody(
        hcl_report=_raw(plain.get("hcl_report") or plain["report"]),
        td_quote=_raw(plain.get("td_quote", "")),
        certificates=_certificates(name, plain.get("vcek")),
        quote=_raw(quote["message"], hexadecimal=True),
        signature=_RSASSA_SHA256 + _raw(quote["signature"], hexadecimal=True),
        pcrs={"sha256": {str(number): _raw(value, hexadecimal=True)
                         for number, value in enumerate(quote["pcrs"])}},
    )  # fmt: skip


def references_of(body: AzureBody, **tpm: object) -> ReferenceValues:
    """References that accept exactly this guest."""
    hcl = parse_hcl(body.hcl_report)
    pinned = (*REQUIRED_PCRS, *LOADER_PCRS)
    pcrs = {str(n): (body.pcrs["sha256"][str(n)],) for n in pinned}
    virtual = TpmReferences(roots=(), endorsement_keys=(), pcrs=pcrs)
    virtual = replace(virtual, **tpm)  # type: ignore[arg-type]
    if hcl.kind == "tdx":
        return ReferenceValues(tpm=virtual, tdx=_tdx_references())
    report = parse_report(hcl.hardware)
    snp = SnpReferences(
        measurement=(report.measurement,),
        host_data=(report.host_data,),
        min_tcb={"Milan": {"microcode": 0xDB}, "Genoa": {"microcode": 0x54}},
        revocation="waived",
    )
    return ReferenceValues(tpm=virtual, snp=snp)


def examine(
    name: str = MILAN,
    *,
    body: AzureBody | None = None,
    bound: bytes | None = None,
    references: ReferenceValues | None = None,
    collateral: Collateral | None = None,
) -> Claims:
    """Examine a vector with references that fit it, or what is given instead."""
    genuine = body_of(name)
    return examine_azure(
        (body or genuine).to_evidence(),
        AppraisalBasis(
            bound=parse_quote(genuine.quote).extra if bound is None else bound,
            references=references or references_of(genuine),
            collateral=collateral or Collateral(),
            at_s=AT_S,
        ),
    )


def _tdx_references() -> TdxReferences:
    zeros = (bytes(48),)
    return TdxReferences(
        mrtd=zeros, rtmr={str(n): zeros for n in range(3)}, mrconfigid=zeros
    )


def _certificates(name: str, leaf: str | None) -> tuple[bytes, ...]:
    if leaf is None:
        return ()
    pem = leaf.startswith("-----")
    issuers = parse_certificates(vector(_CHAIN[name]))
    key = parse_certificates(leaf.encode() if pem else _raw(leaf))
    return tuple(each.der for each in (*key, *issuers))


def _raw(value: Any, *, hexadecimal: bool = False) -> bytes:
    """Bytes, in whatever way this version of the vectors writes them."""
    if isinstance(value, list):
        return bytes(value)
    if hexadecimal:
        return bytes.fromhex(value)
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
