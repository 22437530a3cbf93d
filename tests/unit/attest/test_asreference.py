"""Evidence becomes reference values; the same evidence passes, anything changed does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sealift.attest import Evidence, Level, ReferenceValues
from sealift.attest.collateral import Collateral
from sealift.attest.composite import CompositeAttester
from sealift.attest.nvidia.attester import bind_gpus, gpu_attesters
from sealift.attest.nvidia.evidence import MEDIA_TYPE as NVIDIA
from sealift.attest.policy import VERIFIER_FOR_MEDIA_TYPE, Appraiser
from sealift.attest.reference import (
    AppraisalBasis,
    ReferenceSet,
    sign_set,
)
from sealift.attest.snp.evidence import MEDIA_TYPE as SNP
from sealift.attest.snp.evidence import SnpBody
from sealift.attest.tdx.evidence import MEDIA_TYPE as TDX
from sealift.attest.tdx.evidence import TdxBody
from sealift.attest.tools import asreference
from sealift.attest.tools.asreference import Trusted, to_references
from sealift.attest.verifier import Claims
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    EvidenceError,
    PolicyError,
    RefusedError,
    SealiftError,
    UsageError,
)
from tests.sim import nvidia_device, snp_made
from tests.sim.intel_world import IntelWorld
from tests.sim.kinds import with_roots
from tests.sim.made_chain import AT_S
from tests.sim.mutants import without
from tests.sim.nvidia_device import SoftDevice
from tests.sim.nvml import FakeNvml
from tests.sim.paperwork import bound_evidence
from tests.sim.tpmhost import TpmHost, changed, now_s, tpm_host
from tests.worlds.consortium import make_consortium

BOUND = bytes(range(32))


def judge(evidence: Evidence, values: ReferenceValues, trusted: Trusted) -> Claims:
    """As any party would, with references from the file."""
    return trusted.verifiers[evidence.media_type].examine(
        evidence,
        AppraisalBasis(
            bound=trusted.bound,
            references=values,
            collateral=trusted.collateral,
            at_s=trusted.at_s,
        ),
    )


def failed(claims: Claims) -> set[str]:
    return {each.code for each in claims.checks if not each.passed}


# ------------------------------------------------------------------------------ TDX


def tdx_trusted(world: IntelWorld, **changes: Any) -> Trusted:
    basis = Trusted(
        at_s=AT_S,
        bound=BOUND,
        collateral=world.collateral(),
        verifiers={TDX: world.verifier()},
    )
    return replace(basis, **changes)


def td_evidence(world: IntelWorld) -> Evidence:
    return TdxBody(quote=world.quote(BOUND + bytes(32))).to_evidence()


def test_a_tdx_guest() -> None:
    world = IntelWorld()
    trusted = tdx_trusted(world)
    values = to_references(td_evidence(world), trusted)
    assert values == world.references()
    appraiser = Appraiser(
        accept=(Level.TEE,),
        references=values,
        collateral=trusted.collateral,
        clock=lambda: AT_S,
        verifiers=trusted.verifiers,
    )
    assert appraiser.appraise(td_evidence(world), BOUND).tier == "affirming"
    world.guest.rtmr[2] = b"\x33" * 48
    assert failed(judge(td_evidence(world), values, trusted)) == {"tdx-rtmr"}


def test_one_tdx_platform() -> None:
    world = IntelWorld()
    values = to_references(td_evidence(world), tdx_trusted(world, pin=True))
    assert values.tdx is not None
    assert values.tdx.platforms
    world.pck = world.make_pck(ppid=bytes(16))
    trusted = tdx_trusted(world)
    assert "tdx-platform" in failed(judge(td_evidence(world), values, trusted))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"attributes": 1 << 28 | 1}, "tdx-debug"),
        ({"attributes": 1 << 28 | 1 << 29}, "tdx-migratable"),
    ],
)
def test_a_guest_that_nobody_should_trust_is_no_reference(
    changes: dict[str, Any], code: str
) -> None:
    world = IntelWorld()
    world.guest = replace(world.guest, **changes)
    with pytest.raises(PolicyError) as caught:
        to_references(td_evidence(world), tdx_trusted(world))
    assert caught.value.code == code


def test_without_the_proof_a_debugged_guest_would_become_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: what the proof on its own evidence keeps out."""
    without(asreference, "_prove")(monkeypatch)
    world = IntelWorld()
    world.guest = replace(world.guest, attributes=1 << 28 | 1)
    assert to_references(td_evidence(world), tdx_trusted(world)).tdx


def test_evidence_that_is_not_genuine_is_no_reference() -> None:
    world = IntelWorld()
    evidence = td_evidence(world)
    with pytest.raises(EvidenceError) as caught:  # Intel never signed the made world
        to_references(evidence, tdx_trusted(world, verifiers=VERIFIER_FOR_MEDIA_TYPE))
    assert caught.value.code == "chain-root"
    with pytest.raises(EvidenceError) as caught:
        to_references(evidence, tdx_trusted(world, collateral=Collateral()))
    assert caught.value.code == "collateral-missing"


def test_a_wrong_challenge_is_refused_and_an_unknown_one_is_not() -> None:
    world = IntelWorld()
    with pytest.raises(EvidenceError) as caught:
        to_references(td_evidence(world), tdx_trusted(world, bound=bytes(32)))
    assert caught.value.code == "evidence-unbound"
    assert to_references(td_evidence(world), tdx_trusted(world, bound=None))


# ------------------------------------------------------------------------------ SNP


def snp_evidence(product: str = "Milan", **fields: Any) -> Evidence:
    authority, signer = snp_made.authority(product), snp_made.vcek(product)
    fields = {"report_data": snp_made.BOUND.ljust(64, b"\0"), **fields}
    raw = signer.sign(snp_made.report(product, 3, **fields))
    chain = (signer.certificate, authority.der("ask"), authority.der("ark"))
    return SnpBody(report=raw, certificates=chain).to_evidence()


def snp_trusted(product: str = "Milan", **changes: Any) -> Trusted:
    authority = snp_made.authority(product)
    basis = Trusted(
        at_s=snp_made.AT_S,
        bound=snp_made.BOUND,
        collateral=authority.collateral(),
        verifiers={SNP: with_roots(SNP, roots=authority.roots)},
    )
    return replace(basis, **changes)


@pytest.mark.parametrize("product", ["Milan", "Genoa", "Turin"])
def test_a_snp_guest(product: str) -> None:
    trusted = snp_trusted(product)
    values = to_references(snp_evidence(product), trusted)
    assert values.snp is not None
    assert values.snp.min_tcb[product]["microcode"] == snp_made.TCB["microcode"]
    assert not failed(judge(snp_evidence(product), values, trusted))
    other = snp_evidence(product, measurement=b"\7" * 48)
    assert failed(judge(other, values, trusted)) == {"snp-measurement"}
    older = snp_made.tcb_bytes(product, snp=1)
    other = snp_evidence(product, launch_tcb=older)
    assert failed(judge(other, values, trusted)) == {"snp-tcb"}


def test_snp_revocation_is_waived_only_where_somebody_says_so() -> None:
    bare = snp_trusted(collateral=Collateral())
    with pytest.raises(EvidenceError) as caught:
        to_references(snp_evidence(), bare)
    assert caught.value.code == "collateral-missing"
    values = to_references(snp_evidence(), replace(bare, revocation=False))
    assert values.snp is not None
    assert values.snp.revocation == "waived"


def test_one_snp_chip() -> None:
    values = to_references(snp_evidence(), snp_trusted(pin=True))
    assert values.snp is not None
    assert values.snp.chips == (snp_made.CHIP["Milan"],)


def test_a_report_without_its_keys_certificate() -> None:
    evidence = SnpBody(report=snp_made.report("Milan", 3)).to_evidence()
    with pytest.raises(EvidenceError) as caught:
        to_references(evidence, snp_trusted())
    assert caught.value.code == "snp-key-missing"


# --------------------------------------------------------------------------- NVIDIA


def gpu_trusted(**changes: Any) -> Trusted:
    basis = Trusted(
        at_s=nvidia_device.AT_S,
        bound=BOUND,
        collateral=Collateral(as_of_s=nvidia_device.AT_S, items=nvidia_device.rims()),
        revocation=False,
    )
    return replace(basis, **changes)


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_device.trust(monkeypatch)
    device, trusted = SoftDevice(), gpu_trusted()
    values = to_references(device.body(BOUND).to_evidence(), trusted)
    assert values.nvidia is not None
    assert (values.nvidia.drivers, values.nvidia.modes) == (("545.00",), ("spt",))
    twin = SoftDevice().body(BOUND).to_evidence()
    assert not failed(judge(twin, values, trusted))
    mode = SoftDevice(mode=1).body(BOUND).to_evidence()
    assert failed(judge(mode, values, trusted)) == {"nvidia-mode"}
    pinned = to_references(device.body(BOUND).to_evidence(), replace(trusted, pin=True))
    assert failed(judge(twin, pinned, trusted)) == {"nvidia-device"}


def test_a_gpu_whose_firmware_nvidia_did_not_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvidia_device.trust(monkeypatch)
    evidence = SoftDevice(measurements={1: b"\1" * 48}).body(BOUND).to_evidence()
    with pytest.raises(RefusedError) as caught:
        to_references(evidence, gpu_trusted())
    assert caught.value.code == "nvidia-measurement-differs"
    assert evidence.media_type == NVIDIA


# ------------------------------------------------------------------------------ TPM


@pytest.fixture(scope="module")
def host() -> Iterator[TpmHost]:
    with tpm_host() as host:
        yield host


def tpm_trusted(**changes: Any) -> Trusted:
    basis = Trusted(
        at_s=int(now_s()), bound=BOUND, operator="software", revocation=False
    )
    return replace(basis, **changes)


def as_agreed(host: TpmHost, values: ReferenceValues) -> ReferenceValues:
    """What an agreement adds to a set: whose enrolments count."""
    return replace(values, enrollers=(host.owner.public_key,))


@pytest.mark.swtpm
def test_a_host(host: TpmHost) -> None:
    trusted = tpm_trusted()
    evidence = host.evidence()
    values = to_references(evidence, trusted)
    assert values.tpm is not None
    pinned = {"0", "2", "4", "7", "8", "9", "12", "13"}
    assert set(values.tpm.pcrs) == pinned
    assert values.tpm.ima is not None
    assert set(host.kernel.allowed) <= set(values.tpm.ima.allow)
    assert values.tpm.ima.must == ("/usr/bin/python3.11", "/usr/lib/agent")
    assert not values.enrollers  # a throw-away key vouched for it, and nobody kept it
    agreed = as_agreed(host, values)
    assert not failed(judge(evidence, agreed, trusted))
    host.kernel.run("/usr/bin/other", b"another program")
    assert failed(judge(host.evidence(), agreed, trusted)) == {"ima-entry-unlisted"}


@pytest.mark.swtpm
def test_a_host_that_is_not_enrolled_yet(host: TpmHost) -> None:
    bare = changed(host.evidence(), lambda body: replace(body, enrolments=()))
    values = to_references(bare, tpm_trusted())
    with pytest.raises(EvidenceError) as caught:
        judge(bare, as_agreed(host, values), tpm_trusted())
    assert caught.value.code == "tpm-not-enrolled"


@pytest.mark.swtpm
def test_only_what_the_quote_covers_is_allowed(host: TpmHost) -> None:
    evidence = host.evidence()
    count = len(host.kernel.allowed)
    host.kernel.run("/usr/bin/later", b"after the quote")
    longer = (host.folder / "ima").read_bytes()
    shown = changed(evidence, lambda body: replace(body, ima_list=longer))
    values = to_references(shown, tpm_trusted())
    assert values.tpm is not None
    assert values.tpm.ima is not None
    assert "/usr/bin/later" not in values.tpm.ima.allow
    assert len(host.kernel.allowed) == count + 1


@pytest.mark.swtpm
@pytest.mark.parametrize(
    ("spoil", "trusted", "code"),
    [
        ({}, {"operator": None}, "references-operator"),
        ({"ima_list": b""}, {}, "tpm-ima-list"),
        ({"signature": b"\0" * 72}, {}, None),
        ({"event_log": b""}, {"bound": bytes(32)}, "evidence-unbound"),
    ],
)
def test_hosts_that_become_no_reference(
    host: TpmHost, spoil: dict[str, Any], trusted: dict[str, Any], code: str | None
) -> None:
    evidence = changed(host.evidence(), lambda body: replace(body, **spoil))
    with pytest.raises(SealiftError) as caught:
        to_references(evidence, tpm_trusted(**trusted))
    assert code is None or caught.value.code == code
    assert isinstance(caught.value, (RefusedError, UsageError, SealiftError))


@pytest.mark.swtpm
def test_a_tpm_that_nobody_vouches_for(host: TpmHost) -> None:
    alone = changed(
        host.evidence(),
        lambda body: replace(body, certificates=body.certificates[:1]),
    )
    with pytest.raises(EvidenceError) as caught:
        to_references(alone, tpm_trusted())
    assert caught.value.code == "references-no-root"
    issuers = {f"tpm/issuer/{n}": raw for n, raw in enumerate(host.tpm.maker.issuers)}
    found = to_references(alone, tpm_trusted(collateral=Collateral(items=issuers)))
    assert found.tpm is not None
    assert found.tpm.roots[0].key == host.tpm.maker.root.spki_digest


# ------------------------------------------------------------------------ composite


@pytest.mark.swtpm
def test_a_host_with_its_gpus(host: TpmHost, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_device.trust(monkeypatch)
    host.boot()
    nvml = FakeNvml([SoftDevice(), SoftDevice()])
    bind_gpus(nvml, host.attester.measure)
    evidence = CompositeAttester(host.attester, gpu_attesters(nvml)).collect(BOUND)
    bundle = Collateral(as_of_s=int(now_s()), items=nvidia_device.rims())
    trusted = tpm_trusted(collateral=bundle, revocation=False)
    values = to_references(evidence, trusted)
    assert values.tpm is not None
    assert values.nvidia is not None
    assert not failed(judge(evidence, as_agreed(host, values), trusted))


# ---------------------------------------------------------------------------- kinds


def test_development_evidence_is_no_reference() -> None:
    with pytest.raises(PolicyError) as caught:
        to_references(bound_evidence(make_consortium()), Trusted(at_s=0))
    assert caught.value.code == "references-kind"


def test_what_comes_out_fits_a_signed_set() -> None:
    world = IntelWorld()
    values = to_references(td_evidence(world), tdx_trusted(world))
    made = ReferenceSet(name="guest", number=3, made_at_s=AT_S, values=values)
    assert sign_set(made, SigningKey.generate()).set.number == 3
