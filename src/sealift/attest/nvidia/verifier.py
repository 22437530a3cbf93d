"""Verifies the report of an NVIDIA GPU or NVSwitch.

The report proves which device answered, and by its measurements which firmware and
driver it runs. It says nothing of confidential mode or debug tools: only the measured
event of the CPU's log does (``gpubinding.py``), so a device alone supports no level.
Source: spec/evidence-nvidia.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sealift.attest import collateral as anchors
from sealift.attest.check import (
    Check,
    check,
    check_bound,
    check_collateral_age,
)
from sealift.attest.collateral import Collateral, read_revocations
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.nvidia.evidence import (
    CHAIN_LENGTH,
    MEDIA_TYPE,
    DeviceReport,
    Kind,
    Mode,
    parse_body,
    parse_report,
)
from sealift.attest.nvidia.golden import (
    compare_golden,
    open_rim,
    wanted_rims,
)
from sealift.attest.nvidia.references import NvidiaReferences
from sealift.attest.nvidia.rim import Rim
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.verifier import Claims
from sealift.crypto.certificate import Certificate, read_certificate
from sealift.crypto.chain import verify_chain
from sealift.crypto.ecdsa import EcdsaKey
from sealift.crypto.ocsp import Revocations
from sealift.errors import AuthenticationError, EvidenceError, MalformedError
from sealift.ids import Digest

RESULT_MEDIA_TYPE: Final = "application/eat+jwt"
# A digest of firmware: SEQUENCE of the OID of SHA-384 and 48 bytes, in DER.
_FWID: Final = bytes.fromhex("303d06096086480165030402020430")
_FWID_BYTES: Final = 48
_DICE_HOPPER: Final = "2.23.133.5.4.1"
_DICE_BLACKWELL: Final = "2.23.133.5.4.1.1"
_LEAF: Final = re.compile(r"CN=([A-Z0-9_]{2,12}) [A-Z][0-9]{2} [GF]SP FMC LF,.*")
_DEVICE: Final = re.compile(r".*2\.5\.4\.5=[0-9A-F]{2}([0-9A-F]{16})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a genuine report says about who answered.

    Attributes:
        kind: GPU or switch.
        chip: ``GH100``, ``GB100``, ``LS10``.
        id: NVIDIA's ``ueid``: the leaf's serial number, decimal.
        key: SHA-256 of the leaf's SubjectPublicKeyInfo.
        mode: How GPUs are used together.
        pdi: The chip's own number (hex), by which neighbours name it.
        neighbours: PDIs of the switches or GPUs that it is linked to.
    """

    kind: Kind
    chip: str
    id: str
    key: Digest
    mode: Mode
    pdi: str
    neighbours: frozenset[str]


class NvidiaVerifier:
    """Verifies chain and signature; compares firmware, versions, mode and device."""

    media_type = MEDIA_TYPE
    levels: frozenset[Level] = frozenset()
    result_media_type = RESULT_MEDIA_TYPE

    def examine(
        self,
        evidence: Evidence,
        *,
        bound: bytes | None,
        references: ReferenceValues,
        collateral: Collateral,
        at_s: int,
    ) -> Claims:
        """See ``Verifier.examine``."""
        return examine_device(
            evidence,
            bound=bound,
            references=references,
            collateral=collateral,
            at_s=at_s,
        )[1]


def examine_device(
    evidence: Evidence,
    *,
    bound: bytes | None,
    references: ReferenceValues,
    collateral: Collateral,
    at_s: int,
) -> tuple[Device, Claims]:
    """The device that answered, and what is claimed of it.

    Raises:
        EvidenceError: ``nvidia-signature``, or why the chain fails (``chain-*``).
        MalformedError: if it does not parse.
        PolicyError: ``references-missing``.
    """
    if references.nvidia is None:
        raise no_references("NVIDIA devices")
    body = parse_body(evidence.body)
    report = parse_report(body.report)
    known = read_revocations(collateral, "nvidia")
    path = _verify_path(body.certificates, known, at_s)
    _verify_signature(report, path[0])
    device = _read_device(report, path)
    rims, rim_checks = _open_rims(report, device.chip, collateral, known, at_s)
    checks = (
        check_bound(report.nonce, bound, "SPDM nonce"),
        _check_kind(report, device.chip),
        _check_firmware_id(report, path[0]),
        *_compare(report, device, references.nvidia),
        check_collateral_age(
            collateral, max_age_s=references.collateral_max_age_s, at_s=at_s
        ),
        *rim_checks,
        *compare_golden(report, rims),
        _check_revocation(
            (path, *(rim.chain for rim in rims)), known, references.nvidia
        ),
    )
    return device, _claim(report, device, checks, references.nvidia)


def _verify_path(
    certificates: tuple[bytes, ...], known: Revocations, at_s: int
) -> tuple[Certificate, ...]:
    """The chain, in the very order in which it was sent."""
    chain = tuple(read_certificate(der) for der in certificates)
    path = verify_chain(
        chain[0],
        chain[1:],
        tuple(anchors.NVIDIA_DEVICE_ROOTS.values()),
        at_s=at_s,
        revocation_lists=known.lists,
    )
    known.require_unrevoked(path, at_s=at_s)
    if path != chain or chain[0].is_ca:
        raise EvidenceError(
            "a device's chain has another form",
            why=f"{len(path)} of {CHAIN_LENGTH} certificates lead from leaf to root",
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
            why=f"its signature is not that of {leaf.subject}",
            code="nvidia-signature",
        ) from None


def chip_of(leaf: Certificate) -> str:
    """The chip that a device's leaf certificate names: ``GH100``.

    Raises:
        MalformedError: if it names none.
    """
    found = _LEAF.fullmatch(leaf.subject)
    if found is None:
        raise MalformedError("a device's certificates do not name it")
    return found[1].replace("_", "")


def _read_device(report: DeviceReport, path: tuple[Certificate, ...]) -> Device:
    leaf, chip = path[0], chip_of(path[0])
    number = _DEVICE.fullmatch(path[1].subject)
    if number is None:
        raise MalformedError("a device's certificates do not name it")
    return Device(
        kind=report.kind,
        chip=chip,
        id=str(leaf.serial),
        key=leaf.spki_digest,
        mode=report.mode,
        pdi=number[1].lower(),
        neighbours=report.neighbours,
    )


def _open_rims(
    report: DeviceReport,
    chip: str,
    collateral: Collateral,
    known: Revocations,
    at_s: int,
) -> tuple[tuple[Rim, ...], tuple[Check, ...]]:
    opened = [
        open_rim(wanted, chip, collateral, at_s=at_s, revocations=known)
        for wanted in wanted_rims(report, chip)
    ]
    return tuple(rim for rim, _ in opened if rim), tuple(each for _, each in opened)


def _check_kind(report: DeviceReport, chip: str) -> Check:
    found: Kind = "switch" if chip.startswith("LS") else "gpu"
    return check(
        found == report.kind,
        "kind of device",
        expected=f"{report.kind}, as the report says",
        found=f"{chip}, a {found}, as its certificate says",
        code="nvidia-kind",
        refusal="evidence",
    )


def _check_firmware_id(report: DeviceReport, leaf: Certificate) -> Check:
    certified = certified_firmware_id(leaf)
    stated = report.fwid
    return check(
        stated is None or stated == certified,
        "firmware of the signing key",
        expected=certified.hex() if certified else "none certified",
        found=stated.hex() if stated else "not stated by this firmware",
        code="nvidia-firmware-id",
        refusal="evidence",
    )


def certified_firmware_id(leaf: Certificate) -> bytes | None:
    """The firmware digest that the leaf's DICE extension names, if it has one.

    Hopper's ends with it; Blackwell's is a list with the one that signs first.
    """
    older, newer = leaf.extension(_DICE_HOPPER), leaf.extension(_DICE_BLACKWELL)
    raw = newer if newer is not None else older
    if raw is None:
        return None
    at = raw.find(_FWID) if newer is not None else raw.rfind(_FWID)
    found = raw[at + len(_FWID) : at + len(_FWID) + _FWID_BYTES]
    ends = newer is not None or at + len(_FWID) + _FWID_BYTES == len(raw)
    return found if at >= 0 and ends and len(found) == _FWID_BYTES else None


def _compare(
    report: DeviceReport, device: Device, references: NvidiaReferences
) -> tuple[Check, ...]:
    vbios = _check_listed(report.vbios, references.vbios, "VBIOS", "nvidia-vbios")
    pinned = _check_listed(
        device.id,
        references.devices or (device.id,),
        "device",
        "nvidia-device",
    )
    if report.kind == "switch":
        return (vbios, pinned)
    return (
        _check_listed(report.driver, references.drivers, "driver", "nvidia-driver"),
        vbios,
        _check_listed(device.mode, references.modes, "mode of GPUs", "nvidia-mode"),
        pinned,
    )


def _check_listed(
    found: str, allowed: tuple[str, ...], subject: str, code: str
) -> Check:
    return check(
        found in allowed,
        subject,
        expected=" or ".join(allowed) or "no value is allowed",
        found=found,
        code=code,
    )


def _check_revocation(
    chains: tuple[tuple[Certificate, ...], ...],
    known: Revocations,
    references: NvidiaReferences,
) -> Check:
    """Whoever is revoked was refused already; here, whether anybody looked."""
    pairs = [pair for chain in chains for pair in pairwise(chain)]
    asked = [pair for pair in pairs if pair[0].names_revocation]
    unknown = [pair for pair in asked if not known.know(*pair)]
    tolerated = references.revocation == "if-known"
    return check(
        tolerated or not unknown,
        "revocation",
        expected="looked up where known" if tolerated else "looked up",
        found=f"not looked up for {len(unknown)} of {len(asked)} certificates",
        code="revocation-unknown",
    )


def _claim(
    report: DeviceReport,
    device: Device,
    checks: tuple[Check, ...],
    references: NvidiaReferences,
) -> Claims:
    golden = all(each.passed for each in checks)
    return Claims(
        level=None,
        attester=f"nvidia:{device.id}",
        role=None,
        code_bundle=None,
        trust=TrustVector(
            hardware=2,
            instance_identity=2 if references.devices else 0,
            configuration=2,
            executables=3 if golden else 33,
            runtime_opaque=96,
        ),
        checks=checks,
        measurements={
            f"measurement{index}": value
            for index, value in enumerate(report.measurements)
        },
        notes=_notes(report, references),
    )


def _notes(report: DeviceReport, references: NvidiaReferences) -> tuple[str, ...]:
    notes = [
        "a report does not say whether memory is encrypted or debug tools are on",
    ]
    if references.revocation == "if-known":
        notes.append("revocation was judged by what is at hand only")
    if report.video_decoder_off:
        notes.append("measurement 35 is not compared: the video decoder is off")
    return tuple(notes)
