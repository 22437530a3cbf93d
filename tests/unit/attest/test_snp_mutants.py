"""What passes when one check of SNP evidence is gone: each refusal has its own check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sealift.attest.level import Level
from sealift.attest.snp import endorsement as snpreport
from sealift.attest.snp import verifier as snpchecks
from sealift.attest.snp.evidence import SnpReport
from sealift.attest.verifier import AppraisalCheck
from sealift.errors import RefusedError
from tests.sim import snp_made as made
from tests.sim.snp_case import Case

OLD = made.tcb_bytes("Milan", snp=23)
# One fault each, the name of the refusal, and who makes that comparison.
FAULTS: dict[str, tuple[Case, str]] = {
    "debug": (Case(fields={"policy": 0x3001F | 1 << 19}), "snp-debug"),
    "migration": (Case(fields={"policy": 0x3001F | 1 << 18}), "snp-migration-agent"),
    "agent": (Case(fields={"report_id_ma": b"\5" * 32}), "snp-migration-agent"),
    "policy": (Case(fields={"policy": 0x3001F | 1 << 40}), "snp-policy-unknown"),
    "vmpl": (Case(fields={"vmpl": 3}), "snp-vmpl"),
    "launch": (Case(fields={"measurement": b"\6" * 48}), "snp-measurement"),
    "host data": (Case(fields={"host_data": bytes(32)}), "snp-host-data"),
    "reported": (
        Case(fields={"reported_tcb": OLD}, signer=made.vcek("Milan", snp=23)),
        "snp-tcb",
    ),
    "committed": (Case(fields={"committed_tcb": OLD}), "snp-tcb"),
    "launched": (Case(fields={"launch_tcb": OLD}), "snp-tcb"),
    "chip": (Case(references=made.references(chips=(bytes(64),))), "snp-chip"),
    "operator": (
        Case(
            fields={"flags": 1 << 2, "chip_id": bytes(64)},
            signer=made.vlek("Milan"),
            issuer="asvk",
        ),
        "snp-operator",
    ),
    "host": (Case(references=made.references(platform=("smt-off",))), "snp-platform"),
    "bound value": (Case(fields={"report_data": bytes(64)}), "evidence-unbound"),
}


def without(
    code: str, real: Callable[..., AppraisalCheck]
) -> Callable[..., AppraisalCheck]:
    """The comparison, blind to what it would refuse under that name."""

    def blind(*args: Any, **kwargs: Any) -> AppraisalCheck:
        found = real(*args, **kwargs)
        passed = AppraisalCheck(subject=found.subject, expected="", found="")
        return passed if found.code == code else found

    return blind


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_passes_only_without_its_check(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case, code = FAULTS[name]
    with pytest.raises(RefusedError) as caught:
        case.appraise()
    assert caught.value.code == code
    for comparison in ("check", "check_among", "check_bound"):
        real = getattr(snpchecks, comparison)
        monkeypatch.setattr(snpchecks, comparison, without(code, real))
    if name == "debug":  # the trust vector refuses it a second time
        with pytest.raises(RefusedError) as caught:
            case.appraise()
        assert caught.value.code == "tier-refused"
    else:
        assert case.appraise().level is Level.TEE


@pytest.mark.parametrize(
    "case",
    [
        Case(signer=made.vcek("Milan", snp=25)),
        Case(signer=made.vcek("Milan", chip_id=b"\1" * 64)),
        Case(fields={"chip_id": bytes(64)}),
        Case(fields={"cpuid": bytes(made.CPUID["Genoa"])}),
    ],
    ids=["newer firmware", "other chip", "hidden chip", "other product"],
)
def test_a_foreign_key_passes_only_if_nobody_compares_it(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    with pytest.raises(RefusedError) as caught:
        case.appraise()
    assert caught.value.code == "snp-key-foreign"
    monkeypatch.setattr(snpreport, "_difference", lambda *args: "")
    assert case.appraise().level is Level.TEE


def test_a_changed_report_passes_only_if_nobody_verifies_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stranger = made.vcek("Milan")
    forged = made.Signer(stranger.key, made.vcek("Milan").certificate)
    case = Case(signer=forged)
    with pytest.raises(RefusedError) as caught:
        case.appraise()
    assert caught.value.code == "snp-signature"
    monkeypatch.setattr(SnpReport, "verify_signature", lambda *args: None)
    assert case.appraise().level is Level.TEE
