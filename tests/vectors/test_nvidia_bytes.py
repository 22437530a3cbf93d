"""Recorded reports, chains and manifests of NVIDIA with single changed bytes."""

from __future__ import annotations

from dataclasses import replace
from random import Random  # noqa: TID251 - a seeded sample, the same in every run

import pytest

from sealift.attest import collateral as anchors
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia import verifier as nvidia
from sealift.attest.nvidia.evidence import parse_report
from sealift.attest.nvidia.rim import read_rim
from sealift.attest.nvidia.verifier import (
    _verify_path,
    _verify_signature,
    examine_device,
)
from sealift.attest.reference import AppraisalBasis
from sealift.attest.verifier import Claims
from sealift.crypto.certificate import Certificate
from sealift.crypto.chain import Revocations
from sealift.errors import EvidenceError, MalformedError
from tests.sim import nvidia_vectors as sim

pytestmark = pytest.mark.vectors
REFUSED = (EvidenceError, MalformedError)
RIM_ROOTS = tuple(anchors.NVIDIA_RIM_ROOTS.values())
DRIVER = "nvtrust_Driver_RIM_test_no_gpu.swidtag"
REPORTS = [
    sim.TRIPLE,
    "sample_blackwellAttestationReport",
    "sample_switchAttestationReport",
]


def spoilt(raw: bytes, at: int, random: Random) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1 << random.randrange(8)]) + raw[at + 1 :]


def test_every_byte_of_a_switchs_report_counts() -> None:
    """The smallest: all of it."""
    random = Random(1)
    body = sim.recorded("sdk_switchAttestationReport").body
    leaf = Certificate(body.certificates[0])
    _verify_signature(parse_report(body.report), leaf)  # control
    for at in range(len(body.report)):
        with pytest.raises(REFUSED):
            _verify_signature(parse_report(spoilt(body.report, at, random)), leaf)


@pytest.mark.parametrize("name", REPORTS)
def test_bytes_of_a_report_count(name: str) -> None:
    random = Random(2)
    body = sim.recorded(name).body
    leaf = Certificate(body.certificates[0])
    _verify_signature(parse_report(body.report), leaf)  # control
    for at in random.sample(range(len(body.report)), 300):
        with pytest.raises(REFUSED):
            _verify_signature(parse_report(spoilt(body.report, at, random)), leaf)


@pytest.mark.parametrize("name", REPORTS)
def test_bytes_of_a_chain_count(name: str) -> None:
    random = Random(3)
    chain = sim.recorded(name).certificates
    _verify_path(chain, Revocations(), sim.JUNE_2025)  # control
    for _ in range(300):
        place = random.randrange(5)
        changed = list(chain)
        changed[place] = spoilt(
            chain[place], random.randrange(len(chain[place])), random
        )
        with pytest.raises(REFUSED):
            _verify_path(tuple(changed), Revocations(), sim.JUNE_2025)


def test_bytes_of_a_manifest_count_or_change_nothing() -> None:
    """A character may be written otherwise where the canonical form is the same."""
    random = Random(4)
    raw = sim.rim(DRIVER)
    before = read_rim(raw, roots=RIM_ROOTS, at_s=sim.JUNE_2025)
    same = 0
    for at in random.sample(range(len(raw)), 600):
        try:
            after = read_rim(
                spoilt(raw, at, random), roots=RIM_ROOTS, at_s=sim.JUNE_2025
            )
        except REFUSED:
            continue
        same += 1
        assert replace(after, chain=after.chain[:-1]) == (
            replace(before, chain=before.chain[:-1])
        )
    assert same < 12


def claims_of(evidence: Evidence, nonce: bytes) -> Claims:
    return examine_device(
        evidence,
        AppraisalBasis(
            bound=nonce,
            references=sim.references(),
            collateral=sim.triple_collateral(),
            at_s=sim.JUNE_2025,
        ),
    )[1]


def test_which_measurements_the_manifests_compare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: without the signature, only the golden values tell, each by itself."""
    monkeypatch.setattr(nvidia, "_verify_signature", lambda *_: None)
    found = sim.recorded(sim.TRIPLE)
    told = []
    for index in range(64):
        at = 45 + 55 * index + 7
        raw = found.body.report
        raw = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        claims = claims_of(replace(found.body, report=raw).to_evidence(), found.nonce)
        wrong = [each for each in claims.checks if not each.passed]
        if wrong:
            assert [each.found for each in wrong] == [f"differing: [{index}]"]
            told.append(index)
    assert len(told) == 32  # of 33 golden ones: 35 is exempt
    assert 35 not in told
