"""GPUs asked through NVML: a stand-in answers (tests/sim/nvml.py), no real driver."""

from __future__ import annotations

import importlib
from typing import Any

import pynvml
import pytest

from sealift.attest.nvidia.attester import (
    NvidiaAttester,
    bind_gpus,
    gpu_attesters,
    open_nvml,
    read_gpu_state,
)
from sealift.attest.nvidia.evidence import NvidiaBody, parse_report
from sealift.attest.runtimelog import BoundDevice, GpuBinding, RuntimeEvent
from sealift.attest.verifier import check_bound
from sealift.codec import decode
from sealift.errors import UnavailableError, UsageError
from tests.sim import nvidia_device as sim
from tests.sim.gpu_machine import Machine, appraise, bound_device
from tests.sim.nvidia_device import SoftDevice
from tests.sim.nvml import FakeNvml

BOUND = bytes(range(32))


@pytest.fixture(autouse=True)
def _our_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    sim.trust(monkeypatch)


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml([SoftDevice(), SoftDevice()])


def why(call: Any) -> str:
    with pytest.raises(UnavailableError) as caught:
        call()
    assert caught.value.code == "gpu-unavailable"
    return caught.value.why


@pytest.mark.parametrize("padding", [0, 3])
def test_a_gpu_answers_its_nonce(nvml: FakeNvml, padding: int) -> None:
    nvml.padding = padding
    body = NvidiaBody.parse(NvidiaAttester(nvml, 1).collect(BOUND).body)
    assert body.report[4:36] == BOUND
    assert body.certificates == nvml.devices[1].certificates  # type: ignore[attr-defined]


def test_what_a_machine_measures_and_shows_is_accepted(nvml: FakeNvml) -> None:
    """From boot to verdict: bind, then answer with every GPU in NVML's order."""
    measured: list[RuntimeEvent] = []
    bind_gpus(nvml, measured.append)
    machine = Machine(nvml.devices, bindings=0, before=tuple(measured))  # type: ignore[arg-type]
    assert appraise(machine.collect(BOUND), BOUND).level == "gpu-tee"


def test_the_state_is_measured_before_gpus_accept_work(nvml: FakeNvml) -> None:
    measured: list[RuntimeEvent] = []

    def measure(event: RuntimeEvent) -> None:
        nvml.calls.append("measured")
        measured.append(event)

    made = bind_gpus(nvml, measure)
    assert nvml.calls == ["measured", "ready"]
    assert decode(GpuBinding, measured[0].content) == made
    assert made.devices == tuple(bound_device(each) for each in nvml.devices)  # type: ignore[arg-type]


def test_a_failing_measurement_leaves_gpus_shut(nvml: FakeNvml) -> None:
    def measure(event: RuntimeEvent) -> None:
        raise UnavailableError("no register")

    with pytest.raises(UnavailableError):
        bind_gpus(nvml, measure)
    assert nvml.ready == 0


def test_it_binds_once(nvml: FakeNvml) -> None:
    measured: list[RuntimeEvent] = []
    bind_gpus(nvml, measured.append)
    assert "before they were measured" in why(lambda: bind_gpus(nvml, measured.append))
    assert len(measured) == 1


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("devtools", 1, "debug tools on"),
        ("feature", 0, "confidential mode off"),
        ("environment", 1, "simulation"),
        ("environment", 0, "unavailable"),
        ("environment", 9, "does not report"),
        ("multi_gpu", 9, "does not report"),
        ("settings_error", 3, "does not report"),
        ("devices", [], "0 GPUs"),
    ],
)
def test_gpus_that_are_open_are_not_bound(
    nvml: FakeNvml, attribute: str, value: object, said: str
) -> None:
    setattr(nvml, attribute, value)
    measured: list[RuntimeEvent] = []
    assert said in why(lambda: bind_gpus(nvml, measured.append))
    assert not measured
    assert nvml.ready == 0


def test_protected_pcie_stands_for_confidential_mode(nvml: FakeNvml) -> None:
    nvml.feature = pynvml.NVML_CC_SYSTEM_FEATURE_DISABLED
    nvml.multi_gpu = pynvml.NVML_CC_SYSTEM_MULTIGPU_PROTECTED_PCIE
    switch = BoundDevice(kind="switch", id="1", key=sim.device_root().spki_digest)
    made = bind_gpus(nvml, lambda event: None, switches=(switch,))
    assert made.multi_gpu == "ppcie"
    assert made.devices[-1] == switch


def test_the_state_is_what_the_driver_says(nvml: FakeNvml) -> None:
    nvml.multi_gpu = pynvml.NVML_CC_SYSTEM_MULTIGPU_NVLE
    nvml.devtools = pynvml.NVML_CC_SYSTEM_DEVTOOLS_MODE_ON
    found = read_gpu_state(nvml, ())
    assert (found.multi_gpu, found.devtools, found.protects) == ("nvle", True, False)


def test_a_gpu_that_does_not_answer_says_so(nvml: FakeNvml) -> None:
    nvml.broken = True
    attester = gpu_attesters(nvml)[0]
    assert "AttestationReport" in why(lambda: attester.collect(BOUND))
    assert "HandleByIndex" in why(lambda: NvidiaAttester(nvml, 2))


def test_a_gpu_binds_up_to_its_nonce(nvml: FakeNvml) -> None:
    attester = gpu_attesters(nvml)[0]
    for bound in (b"ab", bytes(range(32))):
        report = parse_report(NvidiaBody.parse(attester.collect(bound).body).report)
        assert check_bound(report.nonce, bound, "SPDM nonce").passed
    for bound in (b"a", bytes(33)):
        with pytest.raises(UsageError, match="2 to 32 bytes"):
            attester.collect(bound)


def test_an_answer_of_another_form_says_so(nvml: FakeNvml) -> None:
    class Odd(SoftDevice):
        def report(self, nonce: bytes) -> bytes:
            return b"not a report"

    class Bare(SoftDevice):
        def pem(self) -> bytes:
            return b"not a chain"

    for device in (Odd(), Bare()):
        attester = NvidiaAttester(FakeNvml([device]), 0)
        why(lambda attester=attester: attester.collect(BOUND))


def test_without_the_package_or_the_driver_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    assert "nvmlInit" in why(open_nvml)

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UnavailableError, match=r"\.\[nvidia\]"):
        open_nvml()
