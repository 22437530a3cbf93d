"""GPUs of a host with a TPM: from the measured boot to the verdict, all but hardware.

The TPM is swtpm, the GPUs are of our making, NVML is a stand-in: so the whole path of
level `attested-host` with GPUs is rehearsed, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sealift.attest import Evidence, Level, Tier
from sealift.attest.collateral import Collateral
from sealift.attest.composite import CompositeAttester, CompositeBody
from sealift.attest.nvidia.attester import bind_gpus, gpu_attesters
from sealift.attest.policy import AttestationResult
from sealift.attest.reference import NvidiaReferences, ReferenceValues
from sealift.attest.runtimelog import CODE_BUNDLE, MODULE, RuntimeEvent
from sealift.errors import PolicyError, RefusedError
from sealift.ids import Digest
from tests.sim import nvidia_device as sim
from tests.sim.nvidia_device import SoftDevice
from tests.sim.nvml import FakeNvml
from tests.sim.tpmhost import BOUND, TpmHost, appraiser, now_s, tpm_host

pytestmark = pytest.mark.swtpm
BUNDLE = Digest.of(b"code")


@pytest.fixture(autouse=True)
def _our_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    sim.trust(monkeypatch)


@pytest.fixture(scope="module")
def host() -> Iterator[TpmHost]:
    with tpm_host() as host:
        yield host


@pytest.fixture(scope="module")
def nvml() -> FakeNvml:
    return FakeNvml([SoftDevice(), SoftDevice()])


@pytest.fixture
def booted(host: TpmHost, nvml: FakeNvml) -> TpmHost:
    """A machine whose measured boot code bound its GPUs, then loaded the bundle."""
    host.boot()
    nvml.ready = 0
    bind_gpus(nvml, host.attester.measure)
    host.attester.measure(RuntimeEvent(CODE_BUNDLE, BUNDLE.raw))
    return host


def references(host: TpmHost) -> ReferenceValues:
    nvidia = NvidiaReferences(
        drivers=("545.00",), vbios=("96.00.5E.00.01",), revocation="if-known"
    )
    return replace(host.references(), nvidia=nvidia, code_bundle=BUNDLE)


def judge(host: TpmHost, evidence: Evidence) -> AttestationResult:
    collateral = Collateral(as_of_s=int(now_s()), items=sim.rims())
    return appraiser(references(host), collateral=collateral).appraise(evidence, BOUND)


def collect(host: TpmHost, nvml: FakeNvml, bound: bytes = BOUND) -> Evidence:
    return CompositeAttester(host.attester, gpu_attesters(nvml)).collect(bound)


def test_the_whole_path_is_rehearsed(booted: TpmHost, nvml: FakeNvml) -> None:
    result = judge(booted, collect(booted, nvml))
    assert result.standing == "development (rehearsing attested-host)"
    assert result.tier is Tier.CONTRAINDICATED
    assert result.claims.code_bundle == BUNDLE
    assert "device 1: golden measurements" in [c.subject for c in result.claims.checks]


def test_it_is_no_other_level(booted: TpmHost, nvml: FakeNvml) -> None:
    collateral = Collateral(as_of_s=int(now_s()), items=sim.rims())
    strict = appraiser(
        references(booted),
        accept=(Level.GPU_TEE, Level.ATTESTED_HOST),
        rehearse=None,
        collateral=collateral,
    )
    with pytest.raises(PolicyError) as caught:
        strict.appraise(collect(booted, nvml), BOUND)
    assert caught.value.code == "development-refused"


def test_a_gpu_from_elsewhere_is_refused(booted: TpmHost, nvml: FakeNvml) -> None:
    """The host asks another machine's GPU, which answers the right nonce."""
    elsewhere = FakeNvml([nvml.devices[0], SoftDevice()])
    with pytest.raises(RefusedError) as caught:
        judge(booted, collect(booted, elsewhere))
    assert caught.value.code == "gpu-binding-devices"


def test_a_log_without_the_binding_does_not_replay(
    booted: TpmHost, nvml: FakeNvml
) -> None:
    """Nor can a host that has bound itself to other GPUs unsay it: the PCR holds it."""
    bind_late = FakeNvml([SoftDevice()])
    bind_gpus(bind_late, booted.attester.measure)
    with pytest.raises(RefusedError) as caught:
        judge(booted, collect(booted, bind_late))
    assert caught.value.code == "gpu-binding-count"


def test_code_before_the_binding_is_refused(host: TpmHost, nvml: FakeNvml) -> None:
    host.boot()
    host.attester.measure(RuntimeEvent(MODULE, b"early"))
    nvml.ready = 0
    bind_gpus(nvml, host.attester.measure)
    host.attester.measure(RuntimeEvent(CODE_BUNDLE, BUNDLE.raw))
    with pytest.raises(RefusedError) as caught:
        judge(host, collect(host, nvml))
    assert caught.value.code == "gpu-binding-late"


def test_the_quote_covers_the_devices(booted: TpmHost, nvml: FakeNvml) -> None:
    body = CompositeBody.parse(collect(booted, nvml).body)
    fewer = replace(body, devices=body.devices[:1]).to_evidence()
    with pytest.raises(RefusedError) as caught:
        judge(booted, fewer)
    assert caught.value.code == "evidence-unbound"
