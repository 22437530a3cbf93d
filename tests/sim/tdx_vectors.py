"""The TDX and SGX vectors: quotes of real platforms, Intel's collateral of their time."""

from __future__ import annotations

from sealift.attest import ReferenceValues
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.reference import AppraisalBasis, TdxReferences
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tdx.evidence import TdReport, TdxBody, parse_quote
from sealift.attest.tdx.verifier import examine_tdx, features_of
from sealift.attest.tools.collateral import import_collateral
from sealift.attest.verifier import Claims
from tests.sim.vectors import vector

PHALA_AT_S = 1_750_332_000  # 19 June 2025, 11:20 UTC
OUTDATED_AT_S = 1_771_500_000  # 19 February 2026
V4 = "tdx/phala_tdx_quote"
SGX = "tdx/phala_sgx_quote"
OUTDATED = "tdx/phala_tdx_quote_outdated"
AT_S = {V4: PHALA_AT_S, SGX: PHALA_AT_S, OUTDATED: OUTDATED_AT_S}


def collateral_of(name: str) -> Collateral:
    """The collateral that was published with a quote."""
    items = import_collateral(vector(f"{name}_collateral.json"))
    return Collateral(as_of_s=AT_S[name], items=items)


def td_report(quote: bytes) -> TdReport:
    body = parse_quote(quote).body
    assert isinstance(body, TdReport)
    return body


def references_of(report: TdReport) -> ReferenceValues:
    """References that accept exactly this guest, on an up-to-date platform."""
    return ReferenceValues(
        tdx=TdxReferences(
            mrtd=(report.mrtd,),
            rtmr={str(i): (report.rtmr[i],) for i in range(3)},
            mrconfigid=(report.mrconfigid,),
            features=features_of(report),
        )
    )


def evidence_of(
    quote: bytes, ccel: bytes | None = None, events: tuple[RuntimeEvent, ...] = ()
) -> Evidence:
    return TdxBody(quote=quote, ccel=ccel, events=events).to_evidence()


def examine(
    name: str = V4,
    *,
    quote: bytes | None = None,
    bound: bytes | None = None,
    references: ReferenceValues | None = None,
    collateral: Collateral | None = None,
    at_s: int | None = None,
) -> Claims:
    """Examine a quote with collateral that fits it, or what is given instead."""
    original = vector(name)
    report = td_report(original)
    return examine_tdx(
        evidence_of(original if quote is None else quote),
        AppraisalBasis(
            bound=report.report_data if bound is None else bound,
            references=references or references_of(report),
            collateral=collateral or collateral_of(name),
            at_s=AT_S[name] if at_s is None else at_s,
        ),
    )
