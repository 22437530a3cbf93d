"""NVIDIA device evidence: every comparison, every covered byte, every uncovered one.

The devices are of our own making; recorded ones: tests/vectors/test_nvidia_vectors.py.
"""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import replace
from itertools import pairwise

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from sealift.attest import Appraiser, Evidence, Level, ReferenceValues
from sealift.attest.collateral import Collateral
from sealift.attest.nvidia import evidence as spdm
from sealift.attest.nvidia.evidence import NvidiaBody, parse_report
from sealift.attest.nvidia.verifier import (
    Device,
    _verify_signature,
    examine_device,
)
from sealift.attest.policy import VERIFIER_FOR_MEDIA_TYPE
from sealift.attest.reference import AppraisalBasis, NvidiaReferences
from sealift.attest.verifier import Claims, require_passed
from sealift.crypto.certificate import Certificate
from sealift.errors import EvidenceError, MalformedError, PolicyError, StaleError
from tests.sim import nvidia_device as sim
from tests.sim.nvidia_device import AT_S, SoftDevice
from tests.sim.ocsp_answers import GOOD, REVOKED, answer

NONCE = bytes(range(32))
ORDER_P384 = int(
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf"
    "581a0db248b0a77aecec196accc52973", 16
)  # fmt: skip
REFERENCES = NvidiaReferences(
    drivers=("545.00",),
    vbios=("96.00.5E.00.01", "96.10.55.00.01"),
    revocation="if-known",
)


@pytest.fixture(autouse=True)
def _our_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    sim.trust(monkeypatch)


@pytest.fixture(scope="module")
def gpu() -> SoftDevice:
    return SoftDevice()


def collateral(**items: bytes) -> Collateral:
    return Collateral(as_of_s=AT_S, items={**sim.rims(), **items})


def examine(
    body: NvidiaBody | Evidence,
    *,
    bound: bytes | None = NONCE,
    references: NvidiaReferences | None = REFERENCES,
    collateral: Collateral | None = None,
    at_s: int = AT_S,
    bare: bool = False,
) -> tuple[Device, Claims]:
    evidence = body if isinstance(body, Evidence) else body.to_evidence()
    ours = Collateral(as_of_s=AT_S, items=sim.rims())
    return examine_device(
        evidence,
        AppraisalBasis(
            bound=bound,
            references=ReferenceValues(nvidia=references),
            collateral=Collateral() if bare else collateral or ours,
            at_s=at_s,
        ),
    )


def failed(claims: Claims) -> list[str]:
    return [each.code for each in claims.checks if not each.passed]


@pytest.mark.parametrize(
    "device", [SoftDevice(), SoftDevice("switch", "LS10")], ids=["gpu", "switch"]
)
def test_a_good_device_passes_every_check(device: SoftDevice) -> None:
    """Control of everything below."""
    found, claims = examine(device.body(NONCE))
    assert failed(claims) == []
    assert (found.id, found.pdi, found.kind) == (device.id, device.pdi, device.kind)
    assert found.key == device.leaf.spki_digest
    assert claims.level is None
    assert claims.trust.runtime_opaque == 96
    assert claims.trust.executables == 3


def test_a_device_alone_is_refused_at_every_level(gpu: SoftDevice) -> None:
    evidence = gpu.body(NONCE).to_evidence()
    assert evidence.media_type in VERIFIER_FOR_MEDIA_TYPE
    ours = ReferenceValues(nvidia=REFERENCES)
    for level in Level:
        appraiser = Appraiser(accept=(level,), references=ours, clock=lambda: AT_S)
        with pytest.raises(PolicyError) as caught:
            appraiser.appraise(evidence, NONCE)
        assert caught.value.code == "level-refused"


def test_without_reference_values_nothing_is_right(gpu: SoftDevice) -> None:
    with pytest.raises(PolicyError) as caught:
        examine(gpu.body(NONCE), references=None)
    assert caught.value.code == "references-missing"


# -------------------------------------------------------------------- comparisons


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"drivers": ("550.00",)}, "nvidia-driver"),
        ({"drivers": ()}, "nvidia-driver"),
        ({"vbios": ("96.00.5E.00.02",)}, "nvidia-vbios"),
        ({"modes": ("ppcie",)}, "nvidia-mode"),
        ({"devices": ("1",)}, "nvidia-device"),
        ({"revocation": "required"}, "revocation-unknown"),
    ],
)
def test_what_the_references_do_not_allow_fails(
    gpu: SoftDevice, changes: dict[str, tuple[str, ...]], code: str
) -> None:
    _, claims = examine(gpu.body(NONCE), references=replace(REFERENCES, **changes))  # type: ignore[arg-type]
    assert failed(claims) == [code]


def test_a_pinned_device_passes(gpu: SoftDevice) -> None:
    pinned = replace(REFERENCES, devices=(gpu.id,))
    _, claims = examine(gpu.body(NONCE), references=pinned)
    assert failed(claims) == []
    assert claims.trust.instance_identity == 2


@pytest.mark.parametrize("bound", [bytes(32), None])
def test_a_report_for_another_nonce_fails(gpu: SoftDevice, bound: bytes | None) -> None:
    _, claims = examine(gpu.body(NONCE), bound=bound)
    assert failed(claims) == ["evidence-unbound"]


def test_firmware_of_another_key_fails() -> None:
    liar = SoftDevice(certified=bytes(48))
    assert failed(examine(liar.body(NONCE))[1]) == ["nvidia-firmware-id"]
    silent = SoftDevice(fields={spdm.FWID: None})
    assert failed(examine(silent.body(NONCE))[1]) == []


def test_a_switchs_key_signs_no_gpus_report() -> None:
    swapped = SoftDevice("gpu", "LS10")
    assert "nvidia-kind" in failed(examine(swapped.body(NONCE))[1])


# ----------------------------------------------------------------------- manifests

DRIVER_RIM, VBIOS_RIM, _ = sim.rims()


@pytest.mark.parametrize("index", [*sim.DRIVER_INDEXES[:2], *sim.VBIOS_INDEXES])
def test_another_measurement_fails(index: int) -> None:
    odd = SoftDevice(measurements={index: bytes(47) + b"\1"})
    _, claims = examine(odd.body(NONCE))
    assert failed(claims) == ["nvidia-measurement-differs"]
    assert f"differing: [{index}]" in [each.found for each in claims.checks]


def test_any_alternative_matches() -> None:
    """The first alternative of index 7 is all zeros, the second what is measured."""
    zeros = SoftDevice(measurements={7: bytes(48)})
    assert failed(examine(zeros.body(NONCE))[1]) == []


def test_the_video_decoders_measurement_counts_while_it_is_on() -> None:
    on = SoftDevice(fields={spdm.NVDEC0: b"\xaa"})
    assert failed(examine(on.body(NONCE))[1]) == ["nvidia-measurement-differs"]
    fits = SoftDevice(fields={spdm.NVDEC0: b"\xaa"}, measurements={35: bytes(48)})
    assert failed(examine(fits.body(NONCE))[1]) == []
    silent = SoftDevice(fields={spdm.NVDEC0: None})
    assert failed(examine(silent.body(NONCE))[1]) == ["nvidia-measurement-differs"]


def test_manifests_that_overlap_fail(gpu: SoftDevice) -> None:
    values = {i: (sim.golden("gpu", i),) for i in (0, 7)}
    text = sim.sign_rim(sim.rim_document("96.00.5E.00.01", values))
    _, claims = examine(gpu.body(NONCE), collateral=collateral(**{VBIOS_RIM: text}))
    assert failed(claims) == ["nvidia-rim-overlap"]


def test_a_measurement_that_is_not_there_fails(gpu: SoftDevice) -> None:
    values = {0: (sim.golden("gpu", 0),), 64: (bytes(48),)}
    text = sim.sign_rim(sim.rim_document("96.00.5E.00.01", values))
    _, claims = examine(gpu.body(NONCE), collateral=collateral(**{VBIOS_RIM: text}))
    assert failed(claims) == ["nvidia-rim-overlap", "nvidia-measurement-differs"]


def test_a_manifest_without_golden_values_proves_nothing(gpu: SoftDevice) -> None:
    items = {
        DRIVER_RIM: sim.sign_rim(sim.rim_document("545.00", {})),
        VBIOS_RIM: sim.sign_rim(sim.rim_document("96.00.5E.00.01", {})),
    }
    _, claims = examine(gpu.body(NONCE), collateral=collateral(**items))
    assert failed(claims) == ["nvidia-measurement-differs"]


@pytest.mark.parametrize(
    ("version", "product"), [("545.01", "GH100"), ("545.00", "GB100")]
)
def test_a_manifest_of_something_else_fails(
    gpu: SoftDevice, version: str, product: str
) -> None:
    values = {7: (sim.golden("gpu", 7),)}
    text = sim.sign_rim(sim.rim_document(version, values, product=product))
    _, claims = examine(gpu.body(NONCE), collateral=collateral(**{DRIVER_RIM: text}))
    assert failed(claims) == ["nvidia-rim-version"]


# -------------------------------------------------------------- Blackwell and later


def newer_items(**products: str) -> Collateral:
    """Manifests of a GB202, as their service names them; other products on demand."""
    driver = {i: (sim.golden("gpu", i),) for i in sim.DRIVER_INDEXES[:2]}
    vbios = {i: (sim.golden("gpu", i),) for i in sim.VBIOS_INDEXES}
    made = {
        "driver": ("NV_GPU_CC_DRIVER_GB202_545.00", "545.00", driver),
        "vbios": (VBIOS_RIM.removeprefix("nvidia/rim/"), "96.00.5E.00.01", vbios),
    }
    items = {
        f"nvidia/rim/{name}": sim.sign_rim(
            sim.rim_document(version, values, product=products.get(which, "GB202"))
        )
        for which, (name, version, values) in made.items()
    }
    return Collateral(as_of_s=AT_S, items=items)


def newer_gpu(stated: bytes | None = b"GB202\0", chip: str = "GB20X") -> NvidiaBody:
    return SoftDevice(chip=chip, fields={spdm.CHIP: stated}).body(NONCE)


def test_without_a_bundle_that_is_the_reason(gpu: SoftDevice) -> None:
    _, claims = examine(gpu.body(NONCE), collateral=Collateral(items={"a": b""}))
    assert failed(claims)[0] == "collateral-stale"
    _, claims = examine(gpu.body(NONCE), bare=True)
    assert failed(claims)[:2] == ["collateral-missing", "collateral-missing"]
    with pytest.raises(StaleError) as caught:
        require_passed(claims.checks)
    assert "no bundle" in caught.value.why


def test_the_dates_of_an_expired_manifest_are_told(gpu: SoftDevice) -> None:
    signer = sim.issue("S" * 64, sim.rim_chain()[1], ca=False, days=1)
    chain = (signer, *sim.rim_chain()[1:])
    values = {7: (sim.golden("gpu", 7),)}
    text = sim.sign_rim(sim.rim_document("545.00", values), chain=chain)
    items = collateral(**{DRIVER_RIM: text})
    _, claims = examine(gpu.body(NONCE), collateral=items, at_s=AT_S + 9 * 86_400)
    with pytest.raises(EvidenceError) as caught:
        require_passed(claims.checks)
    assert caught.value.code == "chain-expired"
    assert "to 2025-06-02 00:00 UTC; checked at 2025-06-10" in caught.value.why


def test_a_newer_gpu_passes_with_the_manifests_of_its_chip() -> None:
    """Its certificate names a family, its report the chip; a manifest either."""
    _, claims = examine(newer_gpu(), collateral=newer_items())
    assert failed(claims) == []
    family = newer_items(driver="GB20X", vbios="GB20X")
    assert failed(examine(newer_gpu(), collateral=family)[1]) == []


@pytest.mark.parametrize("product", ["GH100", "GB100", "GB203", "GB2", ""])
@pytest.mark.parametrize("which", ["driver", "vbios"])
def test_a_manifest_of_another_chip_serves_no_newer_gpu(
    which: str, product: str
) -> None:
    _, claims = examine(newer_gpu(), collateral=newer_items(**{which: product}))
    expected = "nvidia-rim-version" if product else "rim-form"
    assert failed(claims) == [expected]


@pytest.mark.parametrize(
    ("stated", "chip"),
    [(b"GB202\0", "GB100"), (b"GB100\0", "GB20X"), (b"GH100\0", "GB20X"),
     (b"GB202\0", "GH100"), (b"GB2022\0", "GB20X"), (b"GB20\0", "GB20X")],
)  # fmt: skip
def test_a_chip_that_its_certificate_does_not_cover(stated: bytes, chip: str) -> None:
    _, claims = examine(newer_gpu(stated, chip), collateral=newer_items())
    assert "nvidia-kind" in failed(claims)


@pytest.mark.parametrize("stated", [b"", b"\0", b"gb202", b"GB 202", b"G/../B", b"9B"])
def test_a_chip_without_a_chips_name_is_malformed(stated: bytes) -> None:
    with pytest.raises(MalformedError):
        examine(newer_gpu(stated), collateral=newer_items())


def test_an_unstated_chip_gets_no_manifest_of_another_family() -> None:
    _, claims = examine(newer_gpu(None), collateral=newer_items())
    assert "collateral-missing" in failed(claims)


# --------------------------------------------------------- collateral, revocation


@pytest.mark.parametrize("days", [31, -1])
def test_collateral_of_another_time_fails(gpu: SoftDevice, days: int) -> None:
    aged = Collateral(as_of_s=AT_S - days * 86_400, items=sim.rims())
    _, claims = examine(gpu.body(NONCE), collateral=aged)
    assert failed(claims) == ["collateral-stale"]


def revocation(gpu: SoftDevice, *serials: int) -> Collateral:
    """Every list that the device's chain and those of the manifests point to."""
    issuers = (sim.device_root(), gpu.chain[3], sim.rim_chain()[-1])
    lists = {
        f"nvidia/crl/{n}": each.revoke(*serials).public_bytes(Encoding.DER)
        for n, each in enumerate(issuers)
    }
    return collateral(**lists)


def test_looked_up_and_not_revoked(gpu: SoftDevice) -> None:
    strict = replace(REFERENCES, revocation="required")
    ours = revocation(gpu)
    _, claims = examine(gpu.body(NONCE), references=strict, collateral=ours)
    assert failed(claims) == []
    rest = {k: v for k, v in ours.items.items() if k != "nvidia/crl/1"}
    partial = replace(ours, items=rest)
    _, claims = examine(gpu.body(NONCE), references=strict, collateral=partial)
    assert failed(claims) == ["revocation-unknown"]


@pytest.mark.parametrize("place", [2, 3])
def test_a_revoked_device_is_refused(gpu: SoftDevice, place: int) -> None:
    serial = gpu.chain[place].certificate.serial_number
    with pytest.raises(EvidenceError) as caught:
        examine(gpu.body(NONCE), collateral=revocation(gpu, serial))
    assert caught.value.code == "chain-revoked"


def test_a_revoked_manifest_fails(gpu: SoftDevice) -> None:
    serial = sim.rim_chain()[1].certificate.serial_number
    _, claims = examine(gpu.body(NONCE), collateral=revocation(gpu, serial))
    assert failed(claims)[:2] == ["chain-revoked", "chain-revoked"]


def test_an_old_revocation_list_is_refused(gpu: SoftDevice) -> None:
    old = sim.device_root().revoke(at=sim.AT - dt.timedelta(days=60))
    aged = collateral(**{"nvidia/crl/a": old.public_bytes(Encoding.DER)})
    with pytest.raises(EvidenceError) as caught:
        examine(gpu.body(NONCE), collateral=aged)
    assert caught.value.code == "crl-expired"


# -------------------------------------------------------------------------- bytes


def test_every_covered_byte_of_a_report_counts() -> None:
    """All of a switch's report, one bit each: refused, by parser or signature."""
    switch = SoftDevice("switch", "LS10")
    body = switch.body(NONCE)
    leaf = Certificate(switch.certificates[0])
    _verify_signature(parse_report(body.report), leaf)  # control
    for at in range(len(body.report)):
        raw = bytearray(body.report)
        raw[at] ^= 1 << secrets.randbelow(8)
        with pytest.raises((EvidenceError, MalformedError)):
            _verify_signature(parse_report(bytes(raw)), leaf)


@pytest.mark.parametrize("place", range(5))
def test_every_covered_byte_of_a_chain_counts(gpu: SoftDevice, place: int) -> None:
    """A sample of each certificate."""
    body = gpu.body(NONCE)
    for at in range(place, len(body.certificates[place]), 11):
        chain = [bytearray(each) for each in body.certificates]
        chain[place][at] ^= 1
        changed = replace(body, certificates=tuple(bytes(each) for each in chain))
        with pytest.raises((EvidenceError, MalformedError)):
            examine(changed)


def test_the_other_form_of_a_signature_changes_no_claim(gpu: SoftDevice) -> None:
    """ECDSA's (r, s) and (r, -s) are both right; evidence is named by all its bytes."""
    body = gpu.body(NONCE)
    r, s = body.report[-96:-48], int.from_bytes(body.report[-48:])
    other = (ORDER_P384 - s).to_bytes(48)
    changed = replace(body, report=body.report[:-96] + r + other)
    assert examine(changed) == examine(body)
    assert changed.to_evidence().digest != body.to_evidence().digest


def test_a_body_holds_five_certificates(gpu: SoftDevice) -> None:
    body = gpu.body(NONCE)
    assert NvidiaBody.parse(body.to_evidence().body) == body
    for number in (0, 4, 6):
        with pytest.raises(MalformedError):
            replace(body, certificates=(body.certificates * 2)[:number])


# --------------------------------------------------------------------------- OCSP


def answered(gpu: SoftDevice, revoked: int | None = None) -> Collateral:
    """An answer for every link of the device's chain and of the manifests'."""
    chains = (gpu.chain, sim.rim_chain())
    pairs = [pair for chain in chains for pair in pairwise(chain)]
    return collateral(
        **{
            f"nvidia/ocsp/{place}": answer(
                *pair, status=REVOKED if place == revoked else GOOD
            )
            for place, pair in enumerate(pairs)
        }
    )


def test_answers_stand_for_lists(gpu: SoftDevice) -> None:
    strict = replace(REFERENCES, revocation="required")
    _, claims = examine(gpu.body(NONCE), references=strict, collateral=answered(gpu))
    assert failed(claims) == []


@pytest.mark.parametrize("place", range(4))
def test_an_answer_that_a_device_is_revoked_is_heard(
    gpu: SoftDevice, place: int
) -> None:
    with pytest.raises(EvidenceError) as caught:
        examine(gpu.body(NONCE), collateral=answered(gpu, place))
    assert caught.value.code == "chain-revoked"


@pytest.mark.parametrize("place", [4, 5])
def test_an_answer_that_a_manifests_signer_is_revoked_is_heard(
    gpu: SoftDevice, place: int
) -> None:
    _, claims = examine(gpu.body(NONCE), collateral=answered(gpu, place))
    assert failed(claims)[:2] == ["chain-revoked", "chain-revoked"]
