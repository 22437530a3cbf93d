"""How long one report, quote or manifest takes to verify, by kind.

Real evidence of real hardware, where the folder ``SEALIFT_VECTORS`` holds it (public test
files of several projects; none of it is part of this one). Each is examined whole, with
its certificates and its vendor's collateral of that time.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sealift.attest.anchors import NVIDIA_RIM_ROOTS
from sealift.attest.azure.evidence import AzureBody
from sealift.attest.azure.hcl import parse_hcl
from sealift.attest.azure.verifier import AzureVerifier
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia.evidence import NvidiaBody
from sealift.attest.nvidia.references import NvidiaReferences
from sealift.attest.nvidia.rim import read_rim
from sealift.attest.nvidia.verifier import NvidiaVerifier
from sealift.attest.reference import ReferenceValues
from sealift.attest.snp.certificate import parse_certificates
from sealift.attest.snp.evidence import SnpBody
from sealift.attest.snp.references import SnpReferences
from sealift.attest.snp.report import parse_report
from sealift.attest.snp.verifier import SnpVerifier
from sealift.attest.tdx.evidence import TdxBody
from sealift.attest.tdx.quote import TdReport, parse_quote
from sealift.attest.tdx.references import TdxReferences
from sealift.attest.tdx.verifier import TdxVerifier
from sealift.attest.tools.pcs import import_collateral
from sealift.attest.tpm.references import TpmReferences
from sealift.attest.verifier import Verifier
from sealift.crypto.certificate import certificates_from_pem
from sealift.lab.bench.report import Row

REPEATS: Final = 25
_JUNE_2025_S: Final = 1_748_736_000
_PHALA_S: Final = 1_750_332_000
_RSASSA_SHA256: Final = bytes.fromhex("0014000b0100")
_PCRS: Final = (0, 2, 4, 7, 8, 9)

Examined = Callable[[], object]


def measure_reports(repeats: int = REPEATS) -> list[Row]:
    """A row a kind: median and 90th percentile, or that there is nothing to verify."""
    named = os.environ.get("SEALIFT_VECTORS", "")
    return [
        _measure(kind, Path(named), make, repeats) if named else _absent(kind)
        for kind, make in _KINDS.items()
    ]


def _absent(kind: str) -> Row:
    return {"verify": kind, "is": "not on this machine (SEALIFT_VECTORS)"}


def _measure(
    kind: str, folder: Path, make: Callable[[Path], Examined], repeats: int
) -> Row:
    try:
        examined = make(folder)
    except FileNotFoundError:
        return _absent(kind)
    spent = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        examined()
        spent.append((time.perf_counter() - started) * 1000)
    cut = statistics.quantiles(spent[1:], n=10, method="inclusive")
    return {"verify": kind, "p50_ms": round(cut[4], 2), "p90_ms": round(cut[8], 2)}


def _examined(
    verifier: Verifier,
    evidence: Evidence,
    references: ReferenceValues,
    at_s: int,
    items: Mapping[str, bytes] | None = None,
) -> Examined:
    collateral = Collateral(as_of_s=at_s, items=dict(items or {}))
    return lambda: verifier.examine(
        evidence, bound=None, references=references, collateral=collateral, at_s=at_s
    )


def _tdx(folder: Path) -> Examined:
    quote = (folder / "tdx/phala_tdx_quote").read_bytes()
    items = import_collateral(
        (folder / "tdx/phala_tdx_quote_collateral.json").read_bytes()
    )
    report = parse_quote(quote).body
    assert isinstance(report, TdReport)
    references = TdxReferences(
        mrtd=(report.mrtd,),
        rtmr={str(i): (report.rtmr[i],) for i in range(3)},
        mrconfigid=(report.mrconfigid,),
    )
    evidence = TdxBody(quote=quote, ccel=None, events=()).to_evidence()
    return _examined(
        TdxVerifier(), evidence, ReferenceValues(tdx=references), _PHALA_S, items
    )


def _snp(folder: Path) -> Examined:
    raw = (folder / "snp/trustee_test-report.bin").read_bytes()
    key = (folder / "snp/trustee_test-vcek.der").read_bytes()
    issuers = parse_certificates((folder / "snp/milan_ask_ark_asvk.pem").read_bytes())
    body = SnpBody(report=raw, certificates=(key, *(each.der for each in issuers)))
    references = ReferenceValues(snp=_snp_references(raw))
    return _examined(SnpVerifier(), body.to_evidence(), references, _JUNE_2025_S)


def _snp_references(raw: bytes) -> SnpReferences:
    report = parse_report(raw)
    return SnpReferences(
        measurement=(report.measurement,),
        host_data=(report.host_data,),
        max_vmpl=report.vmpl,
        min_tcb={"Milan": {"boot_loader": 2}},
        revocation="waived",
    )


def _azure(folder: Path) -> Examined:
    plain = json.loads((folder / "azvtpm/az-snp-vtpm_evidence-v1.json").read_bytes())
    quote = plain.get("tpm_quote") or plain["quote"]
    issuers = parse_certificates((folder / "snp/milan_ask_ark_asvk.pem").read_bytes())
    leaf = plain["vcek"]
    key = parse_certificates(leaf.encode() if leaf.startswith("---") else _raw(leaf))
    body = AzureBody(
        hcl_report=_raw(plain.get("hcl_report") or plain["report"]),
        td_quote=b"",
        certificates=tuple(each.der for each in (*key, *issuers)),
        quote=_hex(quote["message"]),
        signature=_RSASSA_SHA256 + _hex(quote["signature"]),
        pcrs={"sha256": {str(n): _hex(v) for n, v in enumerate(quote["pcrs"])}},
    )
    values: dict[str, tuple[bytes, ...]] = {
        str(n): (body.pcrs["sha256"][str(n)],) for n in _PCRS
    }
    references = ReferenceValues(
        tpm=TpmReferences(roots=(), endorsement_keys=(), pcrs=values),
        snp=_snp_references(parse_hcl(body.hcl_report).hardware),
    )
    return _examined(AzureVerifier(), body.to_evidence(), references, _JUNE_2025_S)


def _gpu(folder: Path) -> Examined:
    place = folder / "nvidia"
    report = bytes.fromhex((place / "gonvtrust_attestationReport.txt").read_text())
    chain = certificates_from_pem((place / "gonvtrust_gpuAkCertChain.txt").read_bytes())
    body = NvidiaBody(report=report, certificates=tuple(c.der for c in chain))
    references = ReferenceValues(
        nvidia=NvidiaReferences(
            drivers=("545.00",),
            vbios=("96.00.5E.00.01",),
            modes=("unstated",),
            revocation="if-known",
        )
    )
    return _examined(NvidiaVerifier(), body.to_evidence(), references, _JUNE_2025_S)


def _rim(folder: Path) -> Examined:
    raw = (folder / "nvidia/nvtrust_Driver_RIM_test_no_gpu.swidtag").read_bytes()
    return lambda: read_rim(
        raw, roots=tuple(NVIDIA_RIM_ROOTS.values()), at_s=_JUNE_2025_S
    )


def _raw(value: Any) -> bytes:
    if isinstance(value, list):
        return bytes(value)
    return urlsafe_b64decode(value + "=" * (-len(value) % 4))


def _hex(value: Any) -> bytes:
    return bytes(value) if isinstance(value, list) else bytes.fromhex(value)


_KINDS: Final[dict[str, Callable[[Path], Examined]]] = {
    "TDX quote v4 with collateral": _tdx,
    "SEV-SNP report (VCEK)": _snp,
    "Azure's vTPM over SEV-SNP": _azure,
    "GPU report (Hopper)": _gpu,
    "GPU driver RIM": _rim,
}
