"""EAR tokens over composite evidence: a submodule for the machine and each device."""

from __future__ import annotations

from typing import Any

import pytest

from sealift.attest import AttestationResult
from sealift.attest.ear import Binding, token_claims, verify
from sealift.crypto.jws import TokenSigner
from sealift.errors import EvidenceError
from sealift.ids import Digest
from tests.sim import nvidia_device
from tests.sim.gpu_machine import BOUND, Machine, appraise, protected_pcie
from tests.sim.nvidia_device import SoftDevice

AT_S = 1_800_000_000
BINDING = Binding(nonce=bytes(32), key=Digest.of(b"key"), agreement=Digest.of(b"a"))


@pytest.fixture(autouse=True)
def _our_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_device.trust(monkeypatch)


def result_of(machine: Machine) -> AttestationResult:
    return appraise(machine.collect(BOUND), BOUND)


def claims_of(result: AttestationResult) -> dict[str, Any]:
    return token_claims(result, BINDING, at_s=AT_S, software="0")


def test_each_device_has_its_own_status() -> None:
    claims = claims_of(result_of(Machine([SoftDevice(), SoftDevice()])))
    assert list(claims["submods"]) == ["cpu0", "gpu0", "gpu1"]
    for each in claims["submods"].values():
        assert each["ear.status"] == "affirming"
    gpu = claims["submods"]["gpu0"]
    assert gpu["ear.trustworthiness-vector"]["executables"] == 3
    assert gpu["sealift.attester"].startswith("nvidia:")
    signer = TokenSigner.generate()
    assert verify(signer.sign(claims), signer.public_key, BINDING, at_s=AT_S)


def test_switches_are_counted_by_themselves() -> None:
    machine = Machine(protected_pcie(), multi_gpu="ppcie")
    names = list(claims_of(result_of(machine))["submods"])
    assert names == ["cpu0", "gpu0", "gpu1", "switch0", "switch1"]


def test_the_first_submodule_says_the_worst_of_all() -> None:
    """A reader of cpu0 alone learns of a device that is not to be relied on."""
    result = result_of(Machine([SoftDevice()]))
    gpu = result.claims.devices["gpu0"]
    assert result.claims.trust.executables == gpu.trust.executables == 3


def test_a_device_whose_status_was_made_better_is_refused() -> None:
    claims = claims_of(result_of(Machine([SoftDevice()])))
    gpu = claims["submods"]["gpu0"]
    gpu["ear.trustworthiness-vector"]["runtime-opaque"] = 96
    signer = TokenSigner.generate()
    with pytest.raises(EvidenceError) as caught:
        verify(signer.sign(claims), signer.public_key, BINDING, at_s=AT_S)
    assert caught.value.code == "token-foreign"
    gpu["ear.status"] = "contraindicated"  # control: honest, and so accepted
    assert verify(signer.sign(claims), signer.public_key, BINDING, at_s=AT_S)
