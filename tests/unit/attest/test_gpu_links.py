"""Protected PCIe: GPUs and switches name each other, and all of them must be shown."""

from __future__ import annotations

import pytest

from sealift.attest import Level
from tests.sim import nvidia_device as sim
from tests.sim.gpu_machine import BOUND, Machine, appraise, protected_pcie, refusal
from tests.sim.nvidia_device import SoftDevice


@pytest.fixture(autouse=True)
def _our_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    sim.trust(monkeypatch)


@pytest.fixture(scope="module")
def joined() -> list[SoftDevice]:
    return protected_pcie()


def test_all_of_them_pass(joined: list[SoftDevice]) -> None:
    """Control of everything below."""
    evidence = Machine(joined, multi_gpu="ppcie").collect(BOUND)
    assert appraise(evidence, BOUND).level is Level.GPU_TEE


def test_switches_alone_are_no_gpu(joined: list[SoftDevice]) -> None:
    evidence = Machine(joined[2:], multi_gpu="ppcie").collect(BOUND)
    assert refusal(evidence)[0] == "gpu-mode-differs"


@pytest.mark.parametrize("left_out", [0, 1, 2, 3])
def test_protected_pcie_without_one_of_its_devices_is_refused(
    joined: list[SoftDevice], left_out: int
) -> None:
    """Also where the binding was made without it: the others name it."""
    rest = [each for place, each in enumerate(joined) if place != left_out]
    evidence = Machine(rest, multi_gpu="ppcie").collect(BOUND)
    assert refusal(evidence) == ("gpu-links", "links between devices")


def test_protected_pcie_without_switches_is_refused(joined: list[SoftDevice]) -> None:
    evidence = Machine(joined[:2], multi_gpu="ppcie").collect(BOUND)
    assert refusal(evidence)[0] == "gpu-links"
    unlinked = Machine([SoftDevice(mode=2)], multi_gpu="ppcie").collect(BOUND)
    assert refusal(unlinked)[0] == "gpu-links"


def test_another_machines_switch_is_refused(joined: list[SoftDevice]) -> None:
    foreign = SoftDevice("switch", "LS10", pdi="99" * 8, links=("01" * 8, "02" * 8))
    evidence = Machine([*joined[:3], foreign], multi_gpu="ppcie").collect(BOUND)
    assert refusal(evidence)[0] == "gpu-links"
