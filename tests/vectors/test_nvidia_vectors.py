"""Every recorded report and manifest of NVIDIA gets its verdict, for the right reason."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sealift.attest import collateral as anchors
from sealift.attest.collateral import Collateral
from sealift.attest.nvidia.attester import NvidiaAttester
from sealift.attest.nvidia.evidence import parse_report
from sealift.attest.nvidia.rim import Rim, read_rim
from sealift.attest.nvidia.verifier import Device, examine_device, wanted_rims
from sealift.attest.reference import AppraisalBasis, ReferenceValues
from sealift.attest.tools.collateral import wanted
from sealift.attest.tools.vendorfiles import wrap
from sealift.attest.verifier import AppraisalCheck, Claims
from sealift.crypto.certificate import Certificate
from sealift.errors import EvidenceError, MalformedError, SealiftError, UnavailableError
from sealift.ids import Digest
from tests.sim import nvidia_vectors as sim
from tests.sim.nvml import FakeNvml, Replayed
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors
NAMES = [*(f"{name}[{i}]" for name, count in zip(sim.LISTS, (1, 4, 8, 4), strict=True)
           for i in range(count)), *sim.PAIRS]  # fmt: skip
PADDED = "hopper_coco_report1"
DEVICE_ROOTS = tuple(anchors.NVIDIA_DEVICE_ROOTS.values())
RIM_ROOTS = tuple(anchors.NVIDIA_RIM_ROOTS.values())


def by_name(name: str) -> sim.Recorded:
    listed, _, place = name.partition("[")
    if place:
        return sim.recorded_list(listed)[int(place[:-1])]
    return sim.recorded(name)


def examine(
    found: sim.Recorded,
    collateral: Collateral | None = None,
    *,
    references: ReferenceValues | None = None,
    at_s: int = sim.JUNE_2025,
) -> tuple[Device, Claims]:
    return examine_device(
        found.evidence,
        AppraisalBasis(
            bound=found.nonce,
            references=references or sim.references(),
            collateral=collateral or sim.triple_collateral(at_s=at_s),
            at_s=at_s,
        ),
    )


def failed(claims: Claims) -> list[tuple[str, str]]:
    return [(each.subject, each.code) for each in claims.checks if not each.passed]


def one(claims: Claims, subject: str) -> AppraisalCheck:
    (found,) = [each for each in claims.checks if each.subject == subject]
    return found


def test_the_list_is_whole() -> None:
    assert [each.name for each in sim.everything()] == NAMES
    assert len(NAMES) == 27


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_report_is_genuine(name: str) -> None:
    """Chain to NVIDIA's root, signature, firmware id where stated, nonce."""
    found = by_name(name)
    device, claims = examine(found)
    passed = {each.subject for each in claims.checks if each.passed}
    assert {"SPDM nonce", "kind of device", "firmware of the signing key"} <= passed
    assert device.kind == ("switch" if device.chip == "LS10" else "gpu")
    assert claims.level is None
    assert claims.trust.runtime_opaque == 96


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_report_with_one_changed_bit_is_not(name: str) -> None:
    found = by_name(name)
    body = found.body
    raw = bytearray(body.report)
    raw[len(raw) // 2] ^= 1
    changed = replace(body, report=bytes(raw)).to_evidence()
    with pytest.raises((EvidenceError, MalformedError)):
        examine_device(
            changed,
            AppraisalBasis(
                bound=found.nonce,
                references=sim.references(),
                collateral=sim.triple_collateral(),
                at_s=sim.JUNE_2025,
            ),
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_report_with_anothers_chain_is_refused(name: str) -> None:
    found = by_name(name)
    other = sim.recorded(
        "sample_hopperAttestationReport" if name == sim.TRIPLE else sim.TRIPLE
    )
    mixed = replace(found.body, certificates=other.certificates).to_evidence()
    with pytest.raises(EvidenceError) as caught:
        examine_device(
            mixed,
            AppraisalBasis(
                bound=found.nonce,
                references=sim.references(),
                collateral=sim.triple_collateral(),
                at_s=sim.JUNE_2025,
            ),
        )
    assert caught.value.code == "nvidia-signature"


def test_a_padded_report_passes_at_every_door() -> None:
    """Parser, verifier, file of a vendor, attester; so the composite, which has these."""
    found = sim.recorded(PADDED)
    bare = replace(found, report=found.report[:-1])
    for each in (found, bare):
        device, claims = examine(each)
        wrapped = wrap(each.report, found.certificates).evidence
        assert wrapped == each.evidence
        assert wrap(each.report.hex().encode(), found.certificates).evidence == wrapped
        nvml = FakeNvml([Replayed(each.report, found.pem)])
        assert NvidiaAttester(nvml, 0).collect(found.nonce) == wrapped
        assert (device, failed(claims)) == (examine(bare)[0], failed(examine(bare)[1]))
    with pytest.raises(MalformedError, match="after its signature"):
        examine(replace(found, report=found.report + b"\1"))


def test_only_one_report_carries_padding() -> None:
    """A driver left a zero behind the signature: no part of what was signed."""
    for found in sim.everything():
        if found.name == PADDED:
            assert parse_report(found.report) == parse_report(found.report[:-1])
        else:
            assert parse_report(found.report).signed == found.report[:-96]


def test_what_the_reports_say() -> None:
    said = {
        (report.kind, report.driver, report.vbios, report.mode)
        for report in (parse_report(each.body.report) for each in sim.everything())
    }
    assert said == {
        ("gpu", "535.86.09", "96.00.5E.00.01", "unstated"),
        ("gpu", "545.00", "96.00.5E.00.01", "unstated"),
        ("gpu", "550.90.07", "96.00.9F.00.01", "unstated"),
        ("gpu", "570.124.03", "96.00.5E.00.04", "unstated"),
        ("gpu", "575.32", "97.00.88.00.0F", "unstated"),
        ("gpu", "580.95.05", "96.00.74.00.1A", "spt"),
        ("gpu", "580.159.03", "96.00.74.00.20", "spt"),
        ("gpu", "590.12", "96.00.A5.00.01", "ppcie"),
        ("gpu", "595.58.03", "98.02.81.00.01", "spt"),
        ("switch", "", "96.10.55.00.01", "unstated"),
        ("switch", "", "96.10.73.00.01", "unstated"),
    }


def test_the_device_id_is_nvidias() -> None:
    claims = json.loads(vector("nvidia/sample_hopperClaimsv3_decoded.json"))["GPU-0"]
    device, _ = examine(sim.recorded("nvtrust_hopperAttestationReport"))
    assert device.id == claims["ueid"]


def test_fields_as_others_parse_them() -> None:
    """Oracle: NVIDIA's own parser, and Trustee's."""
    theirs = json.loads(vector("nvidia/sdk_spdm_parsed_output.json"))
    report = parse_report(sim.recorded("sdk_hopperAttestationReport").body.report)
    blocks = theirs["MeasurementRecord"]["MeasurementBlocks"]
    for number, measured in enumerate(report.measurements, start=1):
        assert f"0x{measured.hex()}" == blocks[str(number)]["DMTFSpecMeasurementValue"]
    fwid = theirs["OpaqueData"]["OpaqueDataField"]["OPAQUE_FIELD_ID_FWID"]
    assert report.fwid is not None
    assert fwid == f"0x{report.fwid.hex()}"
    claims = json.loads(vector("nvidia/hopperAttestationReport-claims.txt"))
    ours = parse_report(sim.recorded("nvtrust_hopperAttestationReport").body.report)
    config = claims["config"]
    assert (config["driver_version"], config["vbios_version"].upper()) == (
        ours.driver,
        ours.vbios,
    )
    assert (config["project"], config["project_sku"], config["chip_sku"]) == ours.board


def test_links_of_the_eight_gpu_machine_fit() -> None:
    gpus = [examine(each)[0] for each in sim.recorded_list("ppcie_gpu_evidence")]
    switches = [examine(each)[0] for each in sim.recorded_list("ppcie_switch_evidence")]
    assert {gpu.neighbours for gpu in gpus} == {frozenset(s.pdi for s in switches)}
    assert {switch.neighbours for switch in switches} == {
        frozenset(gpu.pdi for gpu in gpus)
    }
    assert len({gpu.id for gpu in gpus}) == 8


# ------------------------------------------------------------------ golden values


def test_the_complete_triple_passes() -> None:
    """33 golden values; 35 is exempt, since the video decoder is off."""
    device, claims = examine(sim.recorded(sim.TRIPLE))
    assert failed(claims) == []
    assert one(claims, "golden measurements").expected.startswith("33,")
    assert device.chip == "GH100"
    assert claims.trust.executables == 3


@pytest.mark.parametrize(
    "vbios",
    [
        "nvtrust_1010_0200_882_96005E0001_PROD.swidtag",
        "NV_GPU_VBIOS_1010_0200_882_96005E0001_measurement_mismatch.xml",
    ],
)
def test_another_vbios_manifest_differs_where_it_must(vbios: str) -> None:
    _, claims = examine(sim.recorded(sim.TRIPLE), sim.triple_collateral(vbios=vbios))
    assert failed(claims) == [("golden measurements", "nvidia-measurement-differs")]
    assert one(claims, "golden measurements").found == "differing: [1, 2, 3, 9]"
    assert claims.trust.executables == 33


@pytest.mark.parametrize("name", [n for n in NAMES if "multi_switch" in n or "sw" in n])
def test_switches_match_their_manifest(name: str) -> None:
    found = by_name(name)
    if parse_report(found.body.report).vbios != "96.10.55.00.01":
        _, claims = examine(found)
        assert ("switch BIOS RIM", "collateral-missing") in failed(claims)
        return
    text = sim.rim("sdk_switchVBIOSRim_NV_SWITCH_BIOS_5612_0002_890_9610550001.xml")
    collateral = Collateral(as_of_s=sim.NOVEMBER_2026, items={sim.SWITCH_RIM: text})
    _, claims = examine(found, collateral, at_s=sim.NOVEMBER_2026)
    assert failed(claims) == []
    assert one(claims, "golden measurements").expected.startswith("31,")


def test_a_report_without_its_manifest_is_refused() -> None:
    _, claims = examine(sim.recorded("sample_blackwellAttestationReport"))
    assert ("driver RIM", "collateral-missing") in failed(claims)
    assert ("golden measurements", "nvidia-measurement-differs") in failed(claims)


def test_manifests_of_blackwell_are_asked_for_by_nvidias_names() -> None:
    """Oracle: what Trustee's parser and NVIDIA's SDK make of the same reports."""
    said = json.loads(vector("nvidia/trustee_blackwellAttestationReport-claims.txt"))
    newer = sim.recorded("trustee_blackwellAttestationReport")
    report = parse_report(newer.body.report)
    device, claims = examine(newer)
    config = said["config"]
    assert (device.id, report.chip) == (said["ueid"], config["chip_info"])
    assert device.chip == "GB20X"
    names = [each.id for each in wanted_rims(report, device.chip)]
    assert names == [
        "NV_GPU_CC_DRIVER_GB202_595.58.03",
        "NV_GPU_VBIOS_G153_0210_895_9802810001",
    ]
    assert {s for s, _ in failed(claims)} == {
        "driver", "VBIOS", "mode of GPUs", "driver RIM", "VBIOS RIM",
        "golden measurements",
    }  # fmt: skip
    assert one(claims, "golden measurements").found.startswith("not compared")
    asked = [each.url.rpartition("/")[2] for each in wanted(newer.evidence)]
    assert asked == names
    older = parse_report(sim.recorded("sample_blackwellAttestationReport").body.report)
    assert older.chip == ""
    assert [each.id for each in wanted_rims(older, "GB100")] == [
        "NV_GPU_CC_DRIVER_GB100_575.32",
        "NV_GPU_VBIOS_G525_0220_886_970088000F",
    ]


def test_manifests_of_hopper_serve_no_blackwell() -> None:
    """Genuine ones of NVIDIA's, under the names that a Blackwell asks for."""
    newer = sim.recorded("trustee_blackwellAttestationReport")
    wanted = wanted_rims(parse_report(newer.body.report), "GB20X")
    hopper = sim.triple_collateral().items.values()
    items = {f"nvidia/rim/{w.id}": raw for w, raw in zip(wanted, hopper, strict=True)}
    _, claims = examine(newer, Collateral(as_of_s=sim.JUNE_2025, items=items))
    assert ("driver RIM", "nvidia-rim-version") in failed(claims)
    assert ("VBIOS RIM", "nvidia-rim-version") in failed(claims)


def test_a_manifest_of_another_version_is_a_failed_check() -> None:
    """Not the warning that it is elsewhere."""
    other = sim.triple_collateral(driver="sdk_NV_GPU_DRIVER_GH100_550.144.03.xml")
    _, claims = examine(sim.recorded(sim.TRIPLE), other)
    assert ("driver RIM", "nvidia-rim-version") in failed(claims)


# --------------------------------------------------------------------- manifests


def read(name: str, at_s: int = sim.JUNE_2025) -> Rim:
    return read_rim(sim.rim(name), roots=RIM_ROOTS, at_s=at_s)


@pytest.mark.parametrize(
    ("name", "version", "active"),
    [
        ("NV_GPU_VBIOS_1010_0200_882_96005E0001_measurement_mismatch.xml",
         "96.00.5E.00.01", 12),
        ("nvtrust_1010_0200_882_96005E0001_PROD.swidtag", "96.00.5E.00.01", 12),
        ("nvtrust_1010_0200_882_96005E0001_test_no_gpu.swidtag", "96.00.5E.00.01", 12),
        ("nvtrust_Driver_RIM_test_no_gpu.swidtag", "545.00", 21),
        ("nvtrust_g520_0202_885_96006D0027_PROD.swidtag", "96.00.6D.00.27", 12),
        ("nvtrust_g520_0228_889_96006D0029_PROD.swidtag", "96.00.6D.00.29", 12),
        ("sdk_NV_GPU_DRIVER_GH100_550.144.03.xml", "550.144.03", 21),
        ("trustee_vbios_rim.b64", "96.00.74.00.1C", 12),
    ],
)  # fmt: skip
def test_a_manifest_is_genuine(name: str, version: str, active: int) -> None:
    found = read(name)
    assert (found.product, found.version) == ("GH100", version)
    assert len(found.golden) == active


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("NV_GPU_DRIVER_GH100_535.86.09_measurement_mismatch.xml", "rim-not-genuine"),
        ("sdk_incorrect_signature_driver_rim.xml", "rim-not-genuine"),
        ("NV_GPU_DRIVER_GH100_570.124.03_expired.xml", "chain-expired"),
    ],
)
def test_a_bad_manifest_is_refused(name: str, code: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        read(name)
    assert caught.value.code == code
    collateral = sim.triple_collateral(driver=name)
    _, claims = examine(sim.recorded(sim.TRIPLE), collateral)
    assert ("driver RIM", code) in failed(claims)


def test_a_manifest_is_judged_at_the_time_asked_for() -> None:
    name = "nvtrust_Driver_RIM_test_no_gpu.swidtag"
    with pytest.raises(EvidenceError) as caught:
        read(name, sim.NOVEMBER_2026)
    assert caught.value.code == "chain-expired"
    later = sim.triple_collateral(at_s=sim.NOVEMBER_2026)
    _, claims = examine(sim.recorded(sim.TRIPLE), later, at_s=sim.NOVEMBER_2026)
    assert ("driver RIM", "chain-expired") in failed(claims)


def test_the_device_root_signs_no_manifest() -> None:
    text = sim.rim("nvtrust_Driver_RIM_test_no_gpu.swidtag")
    with pytest.raises(EvidenceError) as caught:
        read_rim(text, roots=DEVICE_ROOTS, at_s=sim.JUNE_2025)
    assert caught.value.code == "chain-root"


@pytest.mark.parametrize(
    ("pem", "roots"),
    [
        ("nvtrust_verifier_device_root.pem", DEVICE_ROOTS),
        ("nvtrust_verifier_RIM_root.pem", RIM_ROOTS),
        ("sdk_rim_root.crt", RIM_ROOTS),
    ],
)
def test_the_anchors_are_nvidias(pem: str, roots: tuple[Digest, ...]) -> None:
    root = Certificate.from_pem(vector(f"nvidia/{pem}"))
    assert (root.spki_digest,) == roots


# ------------------------------------------------------------------------ chains


def chain_error(certificates: tuple[bytes, ...], at_s: int = sim.JUNE_2025) -> str:
    found = sim.recorded(sim.TRIPLE)
    changed = replace(found.body, certificates=certificates).to_evidence()
    with pytest.raises(SealiftError) as caught:
        examine_device(
            changed,
            AppraisalBasis(
                bound=found.nonce,
                references=sim.references(),
                collateral=sim.triple_collateral(at_s=at_s),
                at_s=at_s,
            ),
        )
    return caught.value.code


def test_bad_chains_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf, rom, provisioner, identity, root = sim.recorded(sim.TRIPLE).certificates
    other = sim.recorded("sample_hopperAttestationReport").certificates
    blackwell = sim.recorded("sample_blackwellAttestationReport").certificates
    assert chain_error((leaf, rom, identity, provisioner, root)) == "chain-broken"
    assert chain_error((leaf, other[1], provisioner, identity, root)) == "chain-broken"
    assert chain_error((leaf, rom, blackwell[2], identity, root)) == "chain-broken"
    assert chain_error((leaf, rom, provisioner, identity, identity)) == "chain-broken"
    assert chain_error((rom, leaf, provisioner, identity, root)) == "chain-broken"
    assert chain_error((leaf, rom, provisioner, identity, root), 1) == "chain-expired"
    monkeypatch.setattr(anchors, "NVIDIA_DEVICE_ROOTS", {"": Digest(bytes(32))})
    assert chain_error((leaf, rom, provisioner, identity, root)) == "chain-root"


# ---------------------------------------------------------------------- through NVML


@pytest.mark.parametrize("name", [sim.TRIPLE, PADDED])
def test_the_attester_carries_a_recorded_report(name: str) -> None:
    """NVML's stand-in replays it, trailing zero and all."""
    found = sim.recorded(name)
    nvml = FakeNvml([Replayed(found.report, found.pem)])
    evidence = NvidiaAttester(nvml, 0).collect(found.nonce)
    assert evidence == found.evidence
    with pytest.raises(UnavailableError):
        NvidiaAttester(nvml, 0).collect(bytes(32))
