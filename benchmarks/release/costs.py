"""What parts of a release cost alone: an agreement, a list of measurements, a report by kind.

``measure_deploy``: from the TOML that people write to an agreement that binds.
``measure_ima``: how many IMA entries a second one core parses, replays and looks up.
``measure_reports``: real evidence of real hardware, where the folder ``SEALIFT_VECTORS``
holds it (public test files of several projects; none of it is part of this one), each
examined whole, with its certificates and its vendor's collateral of that time.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from benchmarks.report import Row, interleaved
from sealift.attest.azure.evidence import AzureBody, parse_hcl
from sealift.attest.collateral import NVIDIA_RIM_ROOTS, Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia.rim import read_rim
from sealift.attest.policy import find_verifier
from sealift.attest.reference import (
    AppraisalBasis,
    ImaReferences,
    NvidiaReferences,
    ReferenceValues,
    TpmReferences,
)
from sealift.attest.snp.endorsement import parse_certificates
from sealift.attest.snp.evidence import SnpBody
from sealift.attest.tools.asreference import Trusted, to_references
from sealift.attest.tools.collateral import import_collateral
from sealift.attest.tools.vendorfiles import wrap
from sealift.attest.tpm.ima import ImaState, advance, parse_list, replay
from sealift.codec import decode, encode
from sealift.crypto.certificate import certificates_from_pem
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest
from sealift.release.agreement import Resource
from sealift.release.agreement.document import compile_document
from sealift.release.agreement.signed import SignedAgreement, add_signature, verify
from sealift.release.agreement.starter import Starter
from tests.worlds.consortium import make_resource

OWNERS: Final = ("north", "east")
LAB: Final = "lab"
REPEATS: Final = 25
RENEWAL_ENTRIES: Final = 100
_NOW_S: Final = 1_795_000_000
_JUNE_2025_S: Final = 1_748_736_000
_THEN: Final = Trusted(
    at_s=_JUNE_2025_S,
    collateral=Collateral(as_of_s=_JUNE_2025_S),
    revocation=False,
)
_PHALA_S: Final = 1_750_332_000
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
    evidence: Evidence,
    trusted: Trusted,
    references: ReferenceValues | None = None,
) -> Examined:
    """Against what it says itself, as of a machine that one trusts."""
    basis = AppraisalBasis(
        bound=None,
        references=references or to_references(evidence, trusted),
        collateral=trusted.collateral,
        at_s=trusted.at_s,
    )
    verifier = find_verifier(evidence, trusted.verifiers)
    return lambda: verifier.examine(evidence, basis)


def _tdx(folder: Path) -> Examined:
    quote = (folder / "tdx/phala_tdx_quote").read_bytes()
    said = (folder / "tdx/phala_tdx_quote_collateral.json").read_bytes()
    collateral = Collateral(as_of_s=_PHALA_S, items=import_collateral(said))
    trusted = Trusted(at_s=_PHALA_S, collateral=collateral)
    return _examined(wrap(quote).evidence, trusted)


def _snp(folder: Path) -> Examined:
    raw = (folder / "snp/trustee_test-report.bin").read_bytes()
    key = (folder / "snp/trustee_test-vcek.der").read_bytes()
    return _examined(wrap(raw, (key, *_amd(folder))).evidence, _THEN)


def _azure(folder: Path) -> Examined:
    """The report beside the quote gives its own references, the quote its registers."""
    raw = (folder / "azvtpm/az-snp-vtpm_evidence-v1.json").read_bytes()
    evidence = wrap(raw, _amd(folder)).evidence
    body = AzureBody.parse(evidence.body)
    inner = SnpBody(
        report=parse_hcl(body.hcl_report).hardware, certificates=body.certificates
    )
    pcrs: dict[str, tuple[bytes, ...]] = {
        str(n): (body.pcrs["sha256"][str(n)],) for n in _PCRS
    }
    references = replace(
        to_references(inner.to_evidence(), _THEN),
        tpm=TpmReferences(roots=(), endorsement_keys=(), pcrs=pcrs),
    )
    return _examined(evidence, _THEN, references)


def _amd(folder: Path) -> tuple[bytes, ...]:
    issuers = (folder / "snp/milan_ask_ark_asvk.pem").read_bytes()
    return tuple(each.der for each in parse_certificates(issuers))


def _gpu(folder: Path) -> Examined:
    raw = (folder / "nvidia/gonvtrust_attestationReport.txt").read_bytes()
    chain = (folder / "nvidia/gonvtrust_gpuAkCertChain.txt").read_bytes()
    certificates = tuple(each.der for each in certificates_from_pem(chain))
    values = NvidiaReferences(
        drivers=("545.00",),
        vbios=("96.00.5E.00.01",),
        modes=("unstated",),
        revocation="if-known",
    )
    references = ReferenceValues(nvidia=values)
    return _examined(wrap(raw, certificates).evidence, _THEN, references)


def _rim(folder: Path) -> Examined:
    raw = (folder / "nvidia/nvtrust_Driver_RIM_test_no_gpu.swidtag").read_bytes()
    roots = tuple(NVIDIA_RIM_ROOTS.values())
    return lambda: read_rim(raw, roots=roots, at_s=_JUNE_2025_S)


KINDS: Final[dict[str, Callable[[Path], Examined]]] = {
    "TDX quote v4 with collateral": _tdx,
    "SEV-SNP report (VCEK)": _snp,
    "Azure's vTPM over SEV-SNP": _azure,
    "GPU report (Hopper)": _gpu,
    "GPU driver RIM": _rim,
}
