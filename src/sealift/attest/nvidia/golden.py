"""A device's measurements against the golden values of its manifests (RIMs).

Driver and VBIOS have a manifest each, a switch has one for its VBIOS. They come from
the collateral by a name that is computed from the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sealift.attest import collateral as anchors
from sealift.attest.check import Check, check
from sealift.attest.collateral import Collateral
from sealift.attest.nvidia.evidence import DeviceReport
from sealift.attest.nvidia.rim import Rim, read_rim
from sealift.crypto.ocsp import Revocations
from sealift.errors import EvidenceError, MalformedError

PREFIX: Final = "nvidia/rim/"
VIDEO_DECODER: Final = 36  # SPDM index; RIMs count from 0 and call it 35


@dataclass(frozen=True, slots=True)
class Wanted:
    """A manifest that a report calls for.

    Attributes:
        subject: For people: ``driver RIM``.
        id: What NVIDIA's service calls it.
        version: What it must describe.
    """

    subject: str
    id: str
    version: str


def wanted_rims(report: DeviceReport, chip: str) -> tuple[Wanted, ...]:
    """The manifests by which a report is judged."""
    board = "_".join((*report.board, report.vbios.replace(".", "")))
    if report.kind == "switch":
        return (Wanted("switch BIOS RIM", f"NV_SWITCH_BIOS_{board}", report.vbios),)
    driver = f"NV_GPU_DRIVER_{chip}_{report.driver}"
    return (
        Wanted("driver RIM", driver, report.driver),
        Wanted("VBIOS RIM", f"NV_GPU_VBIOS_{board}", report.vbios),
    )


def open_rim(
    wanted: Wanted,
    chip: str,
    collateral: Collateral,
    *,
    at_s: int,
    revocations: Revocations,
) -> tuple[Rim | None, Check]:
    """The manifest, if it is genuine and about this chip and version; and the check."""
    expected = f"{wanted.id}: {chip} {wanted.version}, signed by NVIDIA"
    try:
        rim = read_rim(
            collateral.item(PREFIX + wanted.id),
            roots=tuple(anchors.NVIDIA_RIM_ROOTS.values()),
            at_s=at_s,
            revocation_lists=revocations.lists,
        )
        revocations.require_unrevoked(rim.chain, at_s=at_s)
    except (EvidenceError, MalformedError) as error:
        failed = Check(
            subject=wanted.subject,
            expected=expected,
            found=f"{error.what}: {error.why}",
            code=error.code,
            refusal="evidence",
        )
        return None, failed
    fits = (rim.product, rim.version) == (chip, wanted.version)
    compared = check(
        fits,
        wanted.subject,
        expected=expected,
        found=f"{rim.product} {rim.version}, signed by {rim.chain[0].subject}",
        code="nvidia-rim-version",
    )
    return (rim if fits else None), compared


def compare_golden(report: DeviceReport, rims: Sequence[Rim]) -> tuple[Check, ...]:
    """Every active golden value of all manifests, each measurement named once."""
    indexes = [golden.index for rim in rims for golden in rim.golden]
    twice = sorted({each for each in indexes if indexes.count(each) > 1})
    beyond = [each for each in indexes if each > len(report.measurements)]
    differing = differing_measurements(report, rims)
    return (
        check(
            not twice and not beyond,
            "manifests beside each other",
            expected="each names other measurements, all of this device",
            found=f"named twice: {twice}, not there: {beyond}",
            code="nvidia-rim-overlap",
        ),
        check(
            not differing and bool(indexes),
            "golden measurements",
            expected=f"{len(indexes)}, all as the manifests say",
            found=f"differing: {differing or 'none'}",
            code="nvidia-measurement-differs",
        ),
    )


def differing_measurements(report: DeviceReport, rims: Sequence[Rim]) -> list[int]:
    """Indexes (as RIMs count, from 0) of measurements that no golden value equals."""
    exempt = {VIDEO_DECODER} if report.video_decoder_off else set()
    measured = dict(enumerate(report.measurements, start=1))
    return sorted(
        golden.index - 1
        for rim in rims
        for golden in rim.golden
        if golden.index not in exempt
        and measured.get(golden.index) not in golden.values
    )
