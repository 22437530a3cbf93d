"""Verifies the report of an NVIDIA GPU or NVSwitch.

The report proves which device answered, and by its measurements which firmware and
driver it runs; these are compared with the golden values of its manifests (RIMs), which
come from the collateral by a name that is computed from the report. It says nothing of
confidential mode or debug tools: only the measured event of the CPU's log does
(``runtimelog.py``), so a device alone supports no level. Source: spec/evidence-nvidia.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sealift.attest import collateral
from sealift.attest.collateral import read_revocations
from sealift.attest.evidence import Evidence
from sealift.attest.level import TrustVector
from sealift.attest.nvidia.evidence import (
    CHAIN_LENGTH,
    Device,
    DeviceReport,
    NvidiaBody,
    certified_firmware_id,
    is_of_family,
    parse_report,
    read_device,
)
from sealift.attest.nvidia.rim import Rim, read_rim
from sealift.attest.reference import (
    AppraisalBasis,
    NvidiaReferences,
    require_references,
)
from sealift.attest.verifier import (
    AppraisalCheck,
    Claims,
    check,
    check_bound,
    check_collateral_age,
)
from sealift.crypto.certificate import Certificate, read_certificate
from sealift.crypto.chain import Revocations, verify_chain
from sealift.crypto.vendorkeys import EcdsaKey
from sealift.errors import AuthenticationError, EvidenceError, MalformedError

PREFIX: Final = "nvidia/rim/"
VIDEO_DECODER: Final = 36  # SPDM index; RIMs count from 0 and call it 35
Chain = tuple[Certificate, ...]


def examine_nvidia(evidence: Evidence, basis: AppraisalBasis) -> Claims:
    """Verify chain and signature; compare firmware, versions, mode and device."""
    return examine_device(evidence, basis)[1]


def examine_device(evidence: Evidence, basis: AppraisalBasis) -> tuple[Device, Claims]:
    """The device that answered, and what is claimed of it.

    Raises:
        EvidenceError: ``nvidia-signature``, or why the chain fails (``chain-*``).
        MalformedError: if it does not parse.
        PolicyError: ``references-missing``.
    """
    references = require_references(basis.references.nvidia, "NVIDIA devices")
    body = NvidiaBody.parse(evidence.body)
    report = parse_report(body.report)
    known = read_revocations(basis.collateral, "nvidia")
    path = _verify_path(body.certificates, known, basis.at_s)
    _verify_signature(report, path[0])
    device = read_device(report, path)
    opened = [
        _open_rim(wanted, basis, known) for wanted in wanted_rims(report, device.chip)
    ]
    rims = [rim for rim, _ in opened if rim]
    checks = (
        check_bound(report.nonce, basis.bound, "SPDM nonce"),
        _check_kind(report, device.chip),
        _check_firmware_id(report, path[0]),
        *_check_versions(report, device, references),
        check_collateral_age(basis),
        *(each for _, each in opened),
        *_compare_golden(report, rims),
        _check_revocation((path, *(rim.chain for rim in rims)), known, references),
    )
    measured = enumerate(report.measurements)
    return device, Claims(
        level=None,
        attester=f"nvidia:{device.id}",
        trust=TrustVector(
            hardware=2,
            instance_identity=2 if references.devices else 0,
            configuration=2,
            executables=3 if all(each.passed for each in checks) else 33,
            runtime_opaque=96,
        ),
        checks=checks,
        measurements={f"measurement{index}": value for index, value in measured},
        notes=tuple(_notes(report, references)),
    )


def _verify_path(
    certificates: tuple[bytes, ...], known: Revocations, at_s: int
) -> Chain:
    """The chain, in the very order in which it was sent."""
    chain = tuple(read_certificate(der) for der in certificates)
    path = verify_chain(
        chain[0],
        chain[1:],
        tuple(collateral.NVIDIA_DEVICE_ROOTS.values()),
        at_s=at_s,
        revocations=known,
    )
    if path != chain or chain[0].is_ca:
        raise EvidenceError(
            "a device's certificate chain has another form than expected",
            why=(
                f"{len(path)} of {CHAIN_LENGTH} certificates are in the chain from "
                "leaf to root"
            ),
            fix="Do not use this device",
            code="chain-broken",
        )
    return path


def _verify_signature(report: DeviceReport, leaf: Certificate) -> None:
    key = leaf.key()
    try:
        if not isinstance(key, EcdsaKey) or key.curve != "P-384":
            raise AuthenticationError
        key.verify_raw(report.signed, report.signature, "sha384")
    except AuthenticationError:
        raise EvidenceError(
            "a device's report is not genuine",
            why=f"its signature was not made by the key of {leaf.subject}",
            code="nvidia-signature",
        ) from None


def _check_kind(report: DeviceReport, chip: str) -> AppraisalCheck:
    found, stated = "switch" if chip.startswith("LS") else "gpu", report.chip
    return check(
        found == report.kind and (not stated or is_of_family(stated, chip)),
        "kind of device",
        f"{stated or report.kind}, according to the report",
        f"{chip}, a {found}, according to the certificate",
        "nvidia-kind",
        refusal="evidence",
    )


def _check_firmware_id(report: DeviceReport, leaf: Certificate) -> AppraisalCheck:
    certified, stated = certified_firmware_id(leaf), report.fwid
    return check(
        stated is None or stated == certified,
        "firmware of the signing key",
        certified.hex() if certified else "none certified",
        stated.hex() if stated else "not stated by this firmware",
        "nvidia-firmware-id",
        refusal="evidence",
    )


def _check_versions(
    report: DeviceReport, device: Device, references: NvidiaReferences
) -> Iterator[AppraisalCheck]:
    """Of driver and VBIOS, and how and which device; a switch has no driver or mode."""
    for found, allowed, subject, code in (
        (report.driver, references.drivers, "driver", "nvidia-driver"),
        (report.vbios, references.vbios, "VBIOS", "nvidia-vbios"),
        (device.mode, references.modes, "mode of GPUs", "nvidia-mode"),
        (device.id, references.devices or (device.id,), "device", "nvidia-device"),
    ):
        if report.kind == "gpu" or subject in ("VBIOS", "device"):
            expected = " or ".join(allowed) or "no value is allowed"
            yield check(found in allowed, subject, expected, found, code)


def _check_revocation(
    chains: tuple[Chain, ...], known: Revocations, references: NvidiaReferences
) -> AppraisalCheck:
    """Whoever is revoked was refused already; here, whether anybody looked."""
    pairs = [pair for chain in chains for pair in pairwise(chain)]
    asked = [pair for pair in pairs if pair[0].names_revocation]
    unknown = [pair for pair in asked if not known.know(*pair)]
    tolerated = references.revocation == "if-known"
    return check(
        tolerated or not unknown,
        "revocation",
        "checked for each certificate that names a service"
        if tolerated
        else "looked up",
        f"not checked for {len(unknown)} of {len(asked)} certificates",
        "revocation-unknown",
    )


def _notes(report: DeviceReport, references: NvidiaReferences) -> Iterator[str]:
    yield "the report does not say whether memory is encrypted or debug tools are on"
    if references.revocation == "if-known":
        yield "revocation was checked only with the collateral that was given"
    if report.video_decoder_off:
        yield "measurement 35 was not compared, because the video decoder is off"


@dataclass(frozen=True, slots=True)
class ManifestQuery:
    """A manifest that a report calls for.

    Attributes:
        subject: For people: ``driver RIM``.
        id: What NVIDIA's service calls it.
        version: What it must describe.
        products: What it may call the chip.
    """

    subject: str
    id: str
    version: str
    products: tuple[str, ...]


def wanted_rims(report: DeviceReport, chip: str) -> tuple[ManifestQuery, ...]:
    """The manifests by which a report is judged: of driver and VBIOS; a switch has one.

    Under Hopper's name for a driver NVIDIA's service has a genuine manifest of Hopper,
    whatever the chip; since Blackwell the name contains the chip of the report, or
    GB100 from firmware that does not say.
    """
    board = "_".join((*report.board, report.vbios.replace(".", "")))
    products = tuple(dict.fromkeys(each for each in (report.chip, chip) if each))
    if report.kind == "switch":
        name = f"NV_SWITCH_BIOS_{board}"
        return (ManifestQuery("switch BIOS RIM", name, report.vbios, products),)
    if chip.startswith("GH"):
        driver = f"NV_GPU_DRIVER_{chip}_{report.driver}"
    else:
        driver = f"NV_GPU_CC_DRIVER_{report.chip or 'GB100'}_{report.driver}"
    vbios = f"NV_GPU_VBIOS_{board}"
    return (
        ManifestQuery("driver RIM", driver, report.driver, products),
        ManifestQuery("VBIOS RIM", vbios, report.vbios, products),
    )


def _open_rim(
    wanted: ManifestQuery, basis: AppraisalBasis, revocations: Revocations
) -> tuple[Rim | None, AppraisalCheck]:
    """The manifest, if it is genuine and about this chip and version; and the check."""
    chip = " or ".join(wanted.products)
    expected = f"{wanted.id}: {chip} {wanted.version}, signed by NVIDIA"
    try:
        rim = read_rim(
            basis.collateral.item(PREFIX + wanted.id),
            roots=tuple(collateral.NVIDIA_RIM_ROOTS.values()),
            at_s=basis.at_s,
            revocations=revocations,
        )
    except (EvidenceError, MalformedError) as error:
        why = f"{error.what}: {error.why}"
        return None, check(
            False, wanted.subject, expected, why, error.code, refusal="evidence"
        )
    fits = rim.product in wanted.products and rim.version == wanted.version
    found = f"{rim.product} {rim.version}, signed by {rim.chain[0].subject}"
    compared = check(fits, wanted.subject, expected, found, "nvidia-rim-version")
    return (rim if fits else None), compared


def _compare_golden(
    report: DeviceReport, rims: Sequence[Rim]
) -> tuple[AppraisalCheck, ...]:
    """Every active golden value of all manifests, each measurement named once."""
    indexes = [golden.index for rim in rims for golden in rim.golden]
    twice = sorted({each for each in indexes if indexes.count(each) > 1})
    beyond = [each for each in indexes if each > len(report.measurements)]
    differing = _differing_measurements(report, rims)
    compared = f"differing: {differing or 'none'}"
    return (
        check(
            not twice and not beyond,
            "several manifests for one device",
            "each manifest names other measurements, and the device has all of them",
            f"named twice: {twice or 'none'}; not in the device: {beyond or 'none'}",
            "nvidia-rim-overlap",
        ),
        check(
            not differing and bool(indexes),
            "golden measurements",
            f"{len(indexes) or 'some'}, all equal to the manifests",
            compared
            if indexes
            else "not compared: there is no manifest to compare with",
            "nvidia-measurement-differs",
        ),
    )


def _differing_measurements(report: DeviceReport, rims: Sequence[Rim]) -> list[int]:
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
