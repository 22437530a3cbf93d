"""What parts of a release cost alone: an agreement, a list of measurements, a report by kind.

``measure_deploy``: from the TOML that people write to an agreement that binds.
``measure_ima``: how many IMA entries a second one core parses, replays and looks up.
``measure_reports``: real evidence of real hardware, where the folder ``SEALIFT_VECTORS``
holds it (public test files of several projects; none of it is part of this one), each
examined whole, with its certificates and its vendor's collateral of that time.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from sealift.attest.azure.evidence import AzureBody, parse_hcl
from sealift.attest.azure.verifier import examine_azure
from sealift.attest.collateral import NVIDIA_RIM_ROOTS, Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia.evidence import NvidiaBody
from sealift.attest.nvidia.rim import read_rim
from sealift.attest.nvidia.verifier import examine_nvidia
from sealift.attest.reference import (
    Basis,
    ImaReferences,
    NvidiaReferences,
    ReferenceValues,
    SnpReferences,
    TdxReferences,
    TpmReferences,
)
from sealift.attest.snp.endorsement import parse_certificates
from sealift.attest.snp.evidence import SnpBody, parse_report
from sealift.attest.snp.verifier import examine_snp
from sealift.attest.tdx.evidence import TdReport, TdxBody, parse_quote
from sealift.attest.tdx.verifier import examine_tdx
from sealift.attest.tools.collateralfiles import import_collateral
from sealift.attest.tpm.ima import ImaState, advance
from sealift.attest.tpm.imalist import parse_list, replay
from sealift.attest.verifier import Examine
from sealift.codec import decode, encode
from sealift.crypto.certificate import certificates_from_pem
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest
from sealift.lab.bench.report import Row, interleaved
from sealift.lab.worlds.consortium import make_resource
from sealift.release.agreement import Resource
from sealift.release.agreement.document import compile_document
from sealift.release.agreement.signed import SignedAgreement, add_signature, verify
from sealift.release.agreement.starter import Starter

OWNERS: Final = ("north", "east")
LAB: Final = "lab"
REPEATS: Final = 25
RENEWAL_ENTRIES: Final = 100
_NOW_S: Final = 1_795_000_000
_JUNE_2025_S: Final = 1_748_736_000
_PHALA_S: Final = 1_750_332_000
_RSASSA_SHA256: Final = bytes.fromhex("0014000b0100")
_PCRS: Final = (0, 2, 4, 7, 8, 9)

Examined = Callable[[], object]


def measure_deploy(folder: Path, repeats: int) -> list[Row]:
    """One row: medians of compiling, of three signatures, of verifying all."""
    folder.mkdir()
    parties = [create_identity(name) for name in (*OWNERS, LAB)]
    document = _write(folder, parties)
    spent: dict[str, list[float]] = {"compile_ms": [], "sign_ms": [], "verify_ms": []}
    for _ in range(max(5, repeats)):
        at_s = [time.perf_counter()]
        signed = compile_document(
            document, lambda path: decode(Resource, path.read_bytes())
        )
        at_s.append(time.perf_counter())
        for party in parties:
            signed = add_signature(signed, party)
        at_s.append(time.perf_counter())
        verify(decode(SignedAgreement, encode(signed)))
        at_s.append(time.perf_counter())
        for place, took in enumerate(spent.values()):
            took.append((at_s[place + 1] - at_s[place]) * 1e3)
    medians = {name: round(median(took), 2) for name, took in spent.items()}
    total = round(sum(medians.values()), 2)
    return [{"what": "deploy an agreement", "parties": 3, **medians, "all_ms": total}]


def _write(folder: Path, parties: Sequence[Identity]) -> Path:
    """Cards, code and the document, as `sealift agreement new` leaves them."""
    cards = {f"{each.name}.card.json": each for each in parties}
    resources = {
        f"{name}-{part}.resource.json": make_resource(name, part, rows=64, cell_rows=16)
        for name in OWNERS
        for part in ("train", "heldout")
    }
    for file, party in cards.items():
        (folder / file).write_bytes(encode(party.card))
    for file, resource in resources.items():
        (folder / file).write_bytes(encode(resource))
    (folder / "recipe").mkdir()
    (folder / "recipe" / "recipe.py").write_text("def build(): ...\n")
    starter = Starter(
        name="bench",
        now_s=_NOW_S,
        party_cards=[(file, each.name) for file, each in cards.items()],
        resource_cards=[(file, each.owner) for file, each in resources.items()],
        bundle="recipe",
        entry="recipe.py",
        model_owner=LAB,
        operator=LAB,
        attesters=[SigningKey.generate().public_key],
        train_rows=dict.fromkeys(OWNERS, 64),
    )
    document = folder / "agreement.toml"
    document.write_text(starter.to_toml())
    return document


def measure_ima(entries: int, rounds: int) -> tuple[float, Row]:
    """Entries a second of a whole list, and what a renewal with a few new ones takes.

    The list and the references are in memory already.
    """
    raw, references = _synthetic_list(entries)
    quoted = replay(parse_list(raw), bytes(32), bank="sha256")
    new = parse_list(raw).first(RENEWAL_ENTRIES)
    later = replay(new, quoted, bank="sha256")
    boot = ImaState.at_boot("sha256")
    state, _ = advance(boot, parse_list(raw), quoted, references)
    spent = interleaved(
        {
            "whole": lambda: advance(boot, parse_list(raw), quoted, references),
            "renewal": lambda: advance(state, new, later, references),
        },
        rounds,
        warm_up=0,
    )
    rate = entries / spent["whole"].median
    return rate, {
        "what": "IMA list: parsed, replayed, looked up",
        "entries": entries,
        "entries_per_s": round(rate),
        "renewal_ms": round(spent["renewal"].median * 1000, 3),
        "renewal_entries": len(new),
    }


def _synthetic_list(entries: int) -> tuple[bytes, ImaReferences]:
    """A binary list as a kernel shows it (ima-sig), and references that allow it all."""
    parts: list[bytes] = []
    allow: dict[str, tuple[Digest, ...]] = {}
    for number in range(entries):
        path = f"/usr/lib/python3/dist-packages/package{number // 50}/module{number}.so"
        if not number:
            path = "boot_aggregate"
        found = Digest.of(path.encode())
        allow[path] = (found,)
        parts.append(_entry(path.encode(), found.raw))
    return b"".join(parts), ImaReferences(allow=allow, must=tuple(allow)[1:4])


def _entry(path: bytes, found: bytes) -> bytes:
    fields = (b"sha256:\0" + found, path + b"\0", b"")
    content = b"".join(struct.pack("<I", len(each)) + each for each in fields)
    recorded = hashlib.sha1(content, usedforsecurity=False).digest()
    head = struct.pack("<I20sI7sI", 10, recorded, 7, b"ima-sig", len(content))
    return head + content


def measure_reports(repeats: int = REPEATS) -> list[Row]:
    """A row a kind: median and 90th percentile, or that there is nothing to verify."""
    named = os.environ.get("SEALIFT_VECTORS", "")
    found: list[Row] = []
    for kind, make in KINDS.items():
        try:
            examined = make(Path(named or "/no/such/folder"))
        except FileNotFoundError:
            absent = "not on this machine (SEALIFT_VECTORS)"
            found.append({"verify": kind, "is": absent})
            continue
        spent = interleaved({kind: examined}, repeats)[kind]
        cut = quantiles(spent.seconds, n=10, method="inclusive")
        ms = {f"p{p}0_ms": round(cut[p - 1] * 1e3, 2) for p in (5, 9)}
        found.append({"verify": kind, **ms})
    return found


def _examined(
    examine: Examine,
    evidence: Evidence,
    references: ReferenceValues,
    at_s: int,
    items: Mapping[str, bytes] | None = None,
) -> Examined:
    collateral = Collateral(as_of_s=at_s, items=dict(items or {}))
    return lambda: examine(
        evidence,
        Basis(bound=None, references=references, collateral=collateral, at_s=at_s),
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
        examine_tdx, evidence, ReferenceValues(tdx=references), _PHALA_S, items
    )


def _snp(folder: Path) -> Examined:
    raw = (folder / "snp/trustee_test-report.bin").read_bytes()
    key = (folder / "snp/trustee_test-vcek.der").read_bytes()
    issuers = parse_certificates((folder / "snp/milan_ask_ark_asvk.pem").read_bytes())
    body = SnpBody(report=raw, certificates=(key, *(each.der for each in issuers)))
    references = ReferenceValues(snp=_snp_references(raw))
    return _examined(examine_snp, body.to_evidence(), references, _JUNE_2025_S)


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
    return _examined(examine_azure, body.to_evidence(), references, _JUNE_2025_S)


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
    return _examined(examine_nvidia, body.to_evidence(), references, _JUNE_2025_S)


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


KINDS: Final[dict[str, Callable[[Path], Examined]]] = {
    "TDX quote v4 with collateral": _tdx,
    "SEV-SNP report (VCEK)": _snp,
    "Azure's vTPM over SEV-SNP": _azure,
    "GPU report (Hopper)": _gpu,
    "GPU driver RIM": _rim,
}
