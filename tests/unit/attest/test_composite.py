"""Composite evidence: relay, swap, omission and addition of a device are refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from sealift.attest import Evidence, Level, Tier
from sealift.attest.collateral import Collateral
from sealift.attest.composite import (
    MEDIA_TYPE,
    CompositeAttester,
    CompositeBody,
    device_bound,
    examine_composite,
    lead_bound,
    worst,
)
from sealift.attest.level import TrustVector
from sealift.attest.reference import AppraisalBasis, NvidiaReferences, ReferenceValues
from sealift.attest.runtimelog import GPU_BINDING, RuntimeEvent
from sealift.errors import (
    EvidenceError,
    MalformedError,
    PolicyError,
    UsageError,
)
from tests.sim import nvidia_device as sim
from tests.sim.gpu_machine import (
    BUNDLE,
    CODE,
    LEAD,
    LEAD_MEDIA_TYPE,
    DeviceAttester,
    LeadAttester,
    Machine,
    appraise,
    protected_pcie,
    refusal,
)
from tests.sim.kinds import loaded
from tests.sim.nvidia_device import SoftDevice

BOUND = bytes(range(32))
OTHER = bytes(32)


@pytest.fixture(autouse=True)
def _our_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    sim.trust(monkeypatch)


@pytest.fixture(scope="module")
def gpus() -> list[SoftDevice]:
    return [SoftDevice(), SoftDevice()]


@pytest.fixture(scope="module")
def joined() -> list[SoftDevice]:
    return protected_pcie()


def assemble(machine: Machine, devices: tuple[Evidence, ...]) -> Evidence:
    """The lead's honest answer over whatever devices the host hands it."""
    lead = machine.lead.collect(lead_bound(BOUND, devices))
    return CompositeBody(devices=devices, lead=lead).to_evidence()


def answers(devices: list[SoftDevice], bound: bytes = BOUND) -> list[Evidence]:
    return [
        device.body(device_bound(bound, place)).to_evidence()
        for place, device in enumerate(devices)
    ]


# ----------------------------------------------------------------------- controls


def test_zeros_behind_a_devices_report_do_no_harm(gpus: list[SoftDevice]) -> None:
    """Some drivers leave them there; the lead covers them, so nobody adds any later."""
    machine = Machine(gpus)
    padded = [
        replace(body, report=body.report + bytes(3)).to_evidence()
        for body in (
            gpu.body(device_bound(BOUND, place)) for place, gpu in enumerate(gpus)
        )
    ]
    found = appraise(assemble(machine, tuple(padded)), BOUND)
    assert found.claims.level is Level.GPU_TEE
    lead = machine.lead.collect(lead_bound(BOUND, tuple(answers(gpus))))
    later = CompositeBody(devices=tuple(padded), lead=lead).to_evidence()
    assert "evidence-unbound" in refusal(later, BOUND)


@pytest.mark.parametrize("count", [1, 2])
def test_gpus_of_a_tee_count_as_protected(gpus: list[SoftDevice], count: int) -> None:
    """Control of everything below."""
    result = appraise(Machine(gpus[:count]).collect(BOUND), BOUND)
    assert result.level is Level.GPU_TEE
    assert result.tier is Tier.AFFIRMING
    assert result.claims.trust.runtime_opaque == 2
    assert result.claims.code_bundle == BUNDLE
    assert f"device {count - 1}: SPDM nonce" in [
        c.subject for c in result.claims.checks
    ]


def test_protected_pcie_with_its_switches(joined: list[SoftDevice]) -> None:
    machine = Machine(joined, multi_gpu="ppcie", binding={"confidential": False})
    assert appraise(machine.collect(BOUND), BOUND).level is Level.GPU_TEE


def test_the_registered_verifier_takes_the_leads_that_have_a_log() -> None:
    found = loaded(MEDIA_TYPE)
    assert isinstance(found, partial)
    leads = found.keywords["leads"]
    assert MEDIA_TYPE not in leads
    assert not any("nvidia" in each for each in leads)
    assert any("tdx" in each for each in leads)


def test_a_rehearsal_stays_one(gpus: list[SoftDevice]) -> None:
    machine = Machine(gpus, level=Level.DEVELOPMENT, rehearsing=Level.ATTESTED_HOST)
    evidence = machine.collect(BOUND)
    result = appraise(evidence, BOUND, accept=(Level.DEVELOPMENT,))
    assert result.standing == "development (rehearsing attested-host)"
    assert result.tier is Tier.CONTRAINDICATED
    assert refusal(evidence)[0] == "development-refused"


def test_a_host_with_gpus_stays_a_host(gpus: list[SoftDevice]) -> None:
    evidence = Machine(gpus, level=Level.ATTESTED_HOST).collect(BOUND)
    assert appraise(evidence, BOUND, accept=(Level.ATTESTED_HOST,)).level is (
        Level.ATTESTED_HOST
    )
    assert refusal(evidence)[0] == "level-refused"


# ------------------------------------------------- relay, swap, omission, addition


def test_a_report_for_another_nonce_is_refused(gpus: list[SoftDevice]) -> None:
    """Relay of an old answer, which the lead covers honestly."""
    stale = answers(gpus, OTHER)
    evidence = assemble(Machine(gpus), (stale[0], answers(gpus)[1]))
    assert refusal(evidence) == ("evidence-unbound", "device 0: SPDM nonce")


def test_the_leads_own_nonce_is_no_devices(gpus: list[SoftDevice]) -> None:
    """An answer to the bound value itself could be to anybody's challenge."""
    direct = gpus[0].body(BOUND).to_evidence()
    evidence = assemble(Machine(gpus[:1]), (direct,))
    assert refusal(evidence) == ("evidence-unbound", "device 0: SPDM nonce")


def test_swapped_answers_are_refused(gpus: list[SoftDevice]) -> None:
    first, second = answers(gpus)
    evidence = assemble(Machine(gpus), (second, first))
    assert refusal(evidence) == ("evidence-unbound", "device 0: SPDM nonce")


def test_swapped_devices_are_refused(gpus: list[SoftDevice]) -> None:
    """They answer for the other's place; the binding names them in its order."""
    machine = Machine(gpus[::-1], bound=gpus)
    assert refusal(machine.collect(BOUND)) == (
        "gpu-binding-devices",
        "devices of the machine",
    )


def test_a_device_left_out_is_refused(gpus: list[SoftDevice]) -> None:
    machine = Machine(gpus[:1], bound=gpus)
    assert refusal(machine.collect(BOUND))[0] == "gpu-binding-devices"


def test_a_device_added_is_refused(gpus: list[SoftDevice]) -> None:
    machine = Machine(gpus, bound=gpus[:1])
    assert refusal(machine.collect(BOUND))[0] == "gpu-binding-devices"


def test_another_machines_gpu_is_refused(gpus: list[SoftDevice]) -> None:
    """Relay as it happens: a genuine, fresh answer of a GPU that is elsewhere."""
    machine = Machine([gpus[0], SoftDevice()], bound=gpus)
    assert refusal(machine.collect(BOUND))[0] == "gpu-binding-devices"


def test_one_gpu_in_two_places_is_refused(gpus: list[SoftDevice]) -> None:
    machine = Machine([gpus[0], gpus[0]])
    assert refusal(machine.collect(BOUND))[0] == "gpu-binding-devices"


def test_another_key_under_the_same_id_is_refused(gpus: list[SoftDevice]) -> None:
    named = Machine(gpus[:1]).events[0]
    other = SoftDevice().leaf.spki_digest.to_text().encode()
    key = gpus[0].leaf.spki_digest.to_text().encode()
    forged = RuntimeEvent(GPU_BINDING, named.content.replace(key, other))
    machine = Machine(gpus[:1], bindings=0, before=(forged,))
    assert refusal(machine.collect(BOUND))[0] == "gpu-binding-devices"


def test_devices_changed_after_the_lead_answered_are_refused(
    gpus: list[SoftDevice],
) -> None:
    """Whoever carries the evidence cannot change what the lead covers."""
    body = CompositeBody.parse(Machine(gpus).collect(BOUND).body)
    again = (body.devices[0], answers(gpus)[1])  # fresh, right, but not the same bytes
    for devices in (again, body.devices[:1], (*body.devices, body.devices[0])):
        changed = replace(body, devices=devices).to_evidence()
        assert refusal(changed) == ("evidence-unbound", "lead: bound value")


def test_another_challenge_is_refused(gpus: list[SoftDevice]) -> None:
    evidence = Machine(gpus).collect(OTHER)
    assert refusal(evidence) == ("evidence-unbound", "lead: bound value")


def test_without_a_bound_value_nothing_passes(gpus: list[SoftDevice]) -> None:
    found = examine_composite(
        Machine(gpus).collect(BOUND),
        AppraisalBasis(
            bound=None,
            references=ReferenceValues(nvidia=NvidiaReferences(drivers=(), vbios=())),
            collateral=Collateral(),
            at_s=sim.AT_S,
        ),
        leads={LEAD_MEDIA_TYPE: LEAD},
    )
    unbound = [c.subject for c in found.checks if c.code == "evidence-unbound"]
    assert unbound == [
        "lead: bound value",
        "device 0: SPDM nonce",
        "device 1: SPDM nonce",
    ]


# ---------------------------------------------------------------- the binding event


@pytest.mark.parametrize("bindings", [0, 2])
def test_exactly_one_binding_is_taken(gpus: list[SoftDevice], bindings: int) -> None:
    evidence = Machine(gpus, bindings=bindings).collect(BOUND)
    assert refusal(evidence) == ("gpu-binding-count", "binding of the GPUs")


def test_an_unbound_gpu_proves_no_level(gpus: list[SoftDevice]) -> None:
    found = examine_composite(
        Machine(gpus, bindings=0).collect(BOUND),
        AppraisalBasis(
            bound=BOUND,
            references=ReferenceValues(nvidia=NvidiaReferences(drivers=(), vbios=())),
            collateral=Collateral(),
            at_s=sim.AT_S,
        ),
        leads={LEAD_MEDIA_TYPE: LEAD},
    )
    assert found.level is None
    assert found.trust.runtime_opaque == 96


@pytest.mark.parametrize("early", [CODE[:1], CODE[1:], CODE])
def test_a_binding_behind_code_is_refused(
    gpus: list[SoftDevice], early: tuple[RuntimeEvent, ...]
) -> None:
    """By then somebody else's code could have written it."""
    machine = Machine(gpus, before=early, after=())
    assert refusal(machine.collect(BOUND))[0] == "gpu-binding-late"


def test_another_kind_of_event_may_come_first(gpus: list[SoftDevice]) -> None:
    machine = Machine(gpus, before=(RuntimeEvent("boot", b"1"),))
    assert appraise(machine.collect(BOUND), BOUND).level is Level.GPU_TEE


@pytest.mark.parametrize(
    "changes",
    [
        {"devtools": True},
        {"confidential": False},
        {"environment": "simulation"},
        {"environment": "unavailable"},
    ],
)
def test_gpus_that_the_host_can_look_into_are_refused(
    gpus: list[SoftDevice], changes: dict[str, object]
) -> None:
    evidence = Machine(gpus, binding=changes).collect(BOUND)
    assert refusal(evidence) == ("gpu-not-protected", "state of the GPUs")


def test_debug_tools_are_refused_with_protected_pcie_too(
    joined: list[SoftDevice],
) -> None:
    machine = Machine(joined, multi_gpu="ppcie", binding={"devtools": True})
    assert refusal(machine.collect(BOUND))[0] == "gpu-not-protected"


@pytest.mark.parametrize(
    ("mode", "multi_gpu"), [(0, "ppcie"), (0, "nvle"), (1, "none"), (1, "ppcie")]
)
def test_a_driver_that_contradicts_the_gpus_is_refused(
    mode: int, multi_gpu: str
) -> None:
    machine = Machine([SoftDevice(mode=mode)], binding={"multi_gpu": multi_gpu})
    assert refusal(machine.collect(BOUND))[0] == "gpu-mode-differs"


def test_encrypted_links_go_with_their_mode() -> None:
    machine = Machine([SoftDevice(mode=1), SoftDevice(mode=1)], multi_gpu="nvle")
    assert appraise(machine.collect(BOUND), BOUND).level is Level.GPU_TEE


def test_gpus_of_two_modes_are_refused() -> None:
    machine = Machine([SoftDevice(mode=1), SoftDevice(mode=0)], multi_gpu="nvle")
    assert refusal(machine.collect(BOUND))[0] == "gpu-mode-differs"


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[1]"])
def test_a_binding_that_does_not_parse_is_refused(
    gpus: list[SoftDevice], content: bytes
) -> None:
    event = RuntimeEvent(GPU_BINDING, content)
    machine = Machine(gpus, bindings=0, before=(event,))
    assert refusal(machine.collect(BOUND))[0] == "malformed"


# --------------------------------------------------------------------------- parts


def test_a_composite_does_not_lead_or_follow(gpus: list[SoftDevice]) -> None:
    inner = Machine(gpus).collect(BOUND)
    led = CompositeBody(devices=tuple(answers(gpus)), lead=inner).to_evidence()
    assert refusal(led)[0] == "composite-part"
    assert refusal(assemble(Machine(gpus), (inner,)))[0] == "composite-part"


def test_a_device_does_not_lead_and_a_lead_does_not_follow(
    gpus: list[SoftDevice],
) -> None:
    device = answers(gpus)[0]
    led = CompositeBody(devices=(device,), lead=device).to_evidence()
    assert refusal(led)[0] == "composite-part"
    lead = LeadAttester(()).collect(BOUND)
    assert refusal(assemble(Machine(gpus), (lead,)))[0] == "composite-part"


def test_a_devices_kind_is_no_free_text(gpus: list[SoftDevice]) -> None:
    renamed = replace(answers(gpus)[0], kind="other")
    assert refusal(assemble(Machine(gpus[:1]), (renamed,)))[0] == "composite-part"


def test_a_composite_has_devices(gpus: list[SoftDevice]) -> None:
    lead = LeadAttester(()).collect(BOUND)
    for devices in ((), tuple(answers(gpus[:1])) * 33):
        with pytest.raises(MalformedError):
            CompositeBody(devices=devices, lead=lead)
    with pytest.raises(UsageError):
        CompositeAttester(LeadAttester(()), [])
    with pytest.raises(UsageError):
        CompositeAttester(LeadAttester(()), [DeviceAttester(gpus[0])]).collect(b"s")


def test_no_level_of_it_is_a_plain_tee(gpus: list[SoftDevice]) -> None:
    """A composite is not parsed where `tee` is all that is accepted."""
    with pytest.raises(PolicyError) as caught:
        appraise(Machine(gpus).collect(BOUND), BOUND, accept=(Level.TEE,))
    assert caught.value.code == "level-refused"


def test_a_genuine_looking_device_of_other_roots_is_refused(
    gpus: list[SoftDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = Machine(gpus).collect(BOUND)
    monkeypatch.undo()
    with pytest.raises(EvidenceError) as caught:
        appraise(evidence, BOUND)
    assert caught.value.code == "chain-root"


# ----------------------------------------------------------------------- small things


def test_the_worst_of_each_aspect_counts() -> None:
    one = TrustVector(hardware=2, runtime_opaque=2, executables=3)
    two = TrustVector(hardware=97, runtime_opaque=-1, configuration=33)
    assert worst((one, two)) == TrustVector(
        hardware=97, runtime_opaque=2, executables=3, configuration=33
    )


def test_eight_gpus_and_four_switches_fit_into_an_event(
    joined: list[SoftDevice],
) -> None:
    event = Machine(joined * 3).events[0]
    assert len(event.content) < 4096
