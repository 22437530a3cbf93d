"""Every rule of the decision against every kind of secret (rule N1).

Each cell of the table either refuses with its code, or the rule says why it cannot apply.
Dropping any rule from the decision lets the cells of its row through, which is shown.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import sealift
from sealift.attest.policy import AttestationResult
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    MalformedError,
    PolicyError,
    RefusedError,
    SealiftError,
    UnavailableError,
    is_about_peer,
)
from sealift.ids import Role
from sealift.release import decision
from sealift.release.agreement import GroupRule, PrivacyBudget
from sealift.release.agreement.signed import verify
from sealift.release.decision import (
    GRACE_S,
    RULES,
    require_home,
    require_reader,
)
from sealift.release.facts import Owner, ReleaseKind, Sighting, Spending
from sealift.release.grant import ReleaseRequest
from tests.sim.decisions import (
    CASES,
    OTHER,
    Case,
    away_from_home,
    late,
    left,
    level,
    of_another,
    ruled,
    unsigned,
    wrong_purpose,
)
from tests.sim.owners import NOW_S, accelerator_peer, broker_peer, evidence_result
from tests.worlds import private
from tests.worlds.consortium import RUN, TRAINING, make_consortium
from tests.worlds.private import with_budget

EARLY, LATE = int(NOW_S) - 9, int(NOW_S) + 9
# By rule: how it is broken, and the code that says so.
Breaks = dict[str, list[tuple[Callable[[Case], str], str | dict[ReleaseKind, str]]]]
SPENT = "privacy-budget-spent"
PARTS = dict.fromkeys(ReleaseKind, "privacy-not-enforced")


def budgeted(case: Case, *, after: float | None, visits: int = 1) -> str:
    """Under an agreement in which ada's tables have a budget of epsilon 3."""
    budget = PrivacyBudget(epsilon=3.0, delta=1e-5)
    agreement = replace(
        case.consortium.agreement,
        resources=with_budget(case.consortium, budget, "ada"),
        training=private.training(),
        output=private.OUTPUT_KEPT,
        group=GroupRule(3, "owner"),
    )
    peer = replace(case.ask.peer, identity=case.state.owner.key)  # type: ignore[type-var]
    few = visits if case.ask.kind is ReleaseKind.PASSES else 0
    ask = replace(case.ask, peer=peer, run=private.RUN, visits=few)
    spent = {} if after is None else {"ada-train": Spending(1.0, after)}
    facts = replace(case.state, epsilons=spent)
    verified = replace(case.consortium, agreement=agreement).verified()
    return replace(case, ask=ask, state=facts).under(verified)


BREAKS: Breaks = {
    "ended by nobody": [
        (
            lambda c: c.run(ended=PolicyError("vetoed", code="agreement-vetoed")),
            "agreement-vetoed",
        )
    ],
    "signed by this owner": [
        (unsigned, "owner-unsigned"),
        (left, "owner-left"),
        (
            lambda c: c.run(owner=Owner("ada", SigningKey.generate().public_key)),
            "owner-unsigned",
        ),
        (lambda c: c.run(owner=Owner("zoe", c.state.owner.key)), "not-a-party"),
    ],
    "in force here": [
        (lambda c: c.run(in_force=OTHER), "agreement-superseded"),
        (lambda c: c.run(in_force=None), "agreement-superseded"),
    ],
    "the last one": [
        (lambda c: c.run(sightings=c.state.sightings[:1]), "quorum-missing"),
        (
            lambda c: c.run(sightings=(Sighting("bern", 9, OTHER),)),
            "agreement-rolled-back",
        ),
    ],
    "the same agreement": [(lambda c: c.by(agreement=OTHER), "other-agreement")],
    "an accelerator": [
        (partial(Case.by, role=role), "role-refused")
        for role in Role
        if role is not Role.ACCELERATOR
    ],
    "its evidence": [
        (lambda c: c.by(result=None), "evidence-missing"),
        (lambda c: level(c, "agreement"), "level-refused"),
        (lambda c: c.proving(role=Role.HOLDER.value), "role-refused"),
        (lambda c: c.proving(code_bundle=OTHER), "code-bundle-differs"),
    ],
    "the owner's": [
        (
            of_another,
            dict.fromkeys(ReleaseKind, "not-the-owner")
            | dict.fromkeys(
                (
                    ReleaseKind.CHECKPOINT_SHARE,
                    ReleaseKind.FED_DEVICE,
                    ReleaseKind.PASSES,
                ),
                "not-a-data-owner",
            ),
        )
    ],
    "the purpose": [
        (wrong_purpose, "purpose-refused"),
        (lambda c: c.asking(purpose=""), "purpose-refused"),
    ],
    "in its time": [
        (lambda c: c.agreed(not_after=EARLY), "agreement-expired"),
        (lambda c: c.agreed(not_before=LATE), "agreement-not-yet"),
        (lambda c: c.ruled(not_after=EARLY), "resource-expired"),
        (lambda c: c.ruled(not_before=LATE), "resource-not-yet"),
    ],
    "the owner's levels": [(lambda c: level(c, "owner"), "owner-level-refused")],
    "not revoked": [(lambda c: c.run(revoked="ima-not-allowed"), "lease-revoked")],
    "the host of its lease": [
        (lambda c: c.run(host="tpm:another"), "attester-differs")
    ],
    "fresh evidence": [
        (late, "evidence-old"),
        (lambda c: c.run(evidence_age_s=math.inf), "evidence-old"),
    ],
    "uses": [
        (
            lambda c: c.run(
                uses={c.last_resource: 3},
                held=frozenset({"ada-train"}) - {c.last_resource},
            ),
            dict.fromkeys(ReleaseKind, "uses-exhausted")
            | dict.fromkeys(
                (ReleaseKind.CHECKPOINT_SHARE, ReleaseKind.PASSES), "share-before-keys"
            ),
        ),
        (
            lambda c: c.run(uses={}, held=frozenset()),
            dict.fromkeys(ReleaseKind, "uses-exhausted")
            | dict.fromkeys(
                (ReleaseKind.CHECKPOINT_SHARE, ReleaseKind.PASSES), "share-before-keys"
            ),
        ),
    ],
    "a fresh challenge": [(lambda c: c.run(fresh=False), "challenge-replayed")],
    "at home": [(away_from_home, "not-at-home")],
    "the job's settings": [
        (lambda c: c.asking(run=None), "settings-differ"),
        (lambda c: c.asking(run=replace(RUN, plan="ddp")), "settings-differ"),
        (lambda c: c.asking(run=replace(RUN, batch_rows=4097)), "settings-differ"),
    ],
    "runs": [
        (lambda c: c.agreed(training=replace(TRAINING, runs=1)), "too-many-runs"),
        (
            lambda c: replace(c, state=replace(c.state, runs=None)).agreed(
                training=replace(TRAINING, runs=9)
            ),
            "too-many-runs",
        ),
    ],
    "visits": [
        (lambda c: c.run(visits=48), "too-many-visits"),
        (lambda c: c.asking(visits=49), "too-many-visits"),
        (lambda c: c.run(visits=math.inf), "too-many-visits"),
    ],
    "the privacy budget": [
        (lambda c: budgeted(c, after=3.01), PARTS | {ReleaseKind.PASSES: SPENT}),
        (lambda c: budgeted(c, after=math.nan), PARTS | {ReleaseKind.PASSES: SPENT}),
        (lambda c: budgeted(c, after=None), PARTS | {ReleaseKind.PASSES: SPENT}),
        (lambda c: budgeted(c, after=1.0, visits=2), PARTS),
    ],
}
CELLS = [
    pytest.param(rule, kind, id=f"{rule.name}, {kind}")
    for rule in RULES
    for kind in ReleaseKind
]


def test_every_kind_may_leave_as_agreed() -> None:
    """Control: with all facts as they should be, everything is allowed."""
    assert {kind: case.run() for kind, case in CASES.items()} == dict.fromkeys(
        ReleaseKind, "allowed"
    )


def test_every_rule_has_its_row() -> None:
    assert [rule.name for rule in RULES] == list(BREAKS)


@pytest.mark.parametrize(("rule", "kind"), CELLS)
def test_each_rule_against_each_kind(rule: decision.Rule, kind: ReleaseKind) -> None:
    if kind in rule.not_for:
        assert len(rule.not_for[kind]) > 9, "a reason stands there"
        return
    for broken, code in BREAKS[rule.name]:
        expected = code if isinstance(code, str) else code[kind]
        assert broken(CASES[kind]) == expected


@pytest.mark.parametrize(("dropped", "kind"), CELLS)
def test_without_the_rule_its_cell_lets_it_through(
    dropped: decision.Rule, kind: ReleaseKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutants: each rule dropped once. What else refuses says another thing."""
    if kind in dropped.not_for:
        return
    rest = tuple(rule for rule in RULES if rule is not dropped)
    monkeypatch.setattr(decision, "RULES", rest)
    for broken, code in BREAKS[dropped.name]:
        expected = code if isinstance(code, str) else code[kind]
        assert broken(CASES[kind]) != expected or expected in ELSEWHERE


# What two rules say in the same word, each of its own matter.
ELSEWHERE = {"role-refused", "not-a-party"}


def test_heartbeats_are_short_for_keys_and_leases_for_fed_devices() -> None:
    for kind, longest_s in (
        (ReleaseKind.DATA_KEY, 4.0 + GRACE_S),
        (ReleaseKind.CHECKPOINT_SHARE, 4.0 + GRACE_S),
        (ReleaseKind.FED_DEVICE, 60.0),
    ):
        case = CASES[kind]
        assert case.run(evidence_age_s=longest_s - 0.01) == "allowed"
        assert case.run(evidence_age_s=longest_s) == "evidence-old"


def test_what_goes_without_a_lease_goes_on_fresh_evidence_too() -> None:
    """By the owner's rule, or as models' keys do: nothing bounds it afterwards."""
    for kind in (ReleaseKind.DATA_KEY, ReleaseKind.MODEL_KEY):
        for age_s, expected in ((60.0, "allowed"), (61.0, "evidence-old")):
            case = replace(
                CASES[kind], state=replace(CASES[kind].state, evidence_age_s=age_s)
            )
            assert case.ruled(lease_s=0.0, heartbeat_s=None) == expected


def test_a_run_that_was_counted_goes_on() -> None:
    """At the limit of runs, and of visits: the last one that is allowed."""
    key = CASES[ReleaseKind.DATA_KEY]
    training = replace(TRAINING, runs=1)
    agreement = replace(key.consortium.agreement, training=training)
    known = frozenset({RUN.digest(agreement.digest)})
    again = replace(key, state=replace(key.state, runs=known))
    assert again.agreed(training=training) == "allowed"
    other = replace(again, ask=replace(again.ask, run=replace(RUN, seed=1)))
    assert other.agreed(training=training) == "too-many-runs"
    assert CASES[ReleaseKind.PASSES].run(visits=47) == "allowed"


def test_a_round_goes_up_to_the_budget_and_no_further() -> None:
    case = CASES[ReleaseKind.PASSES]
    assert budgeted(case, after=3.0) == "allowed"
    assert budgeted(case, after=math.nextafter(3.0, 4.0)) == SPENT


def test_a_key_of_rows_is_no_key_of_a_model() -> None:
    model, rows = CASES[ReleaseKind.MODEL_KEY], CASES[ReleaseKind.DATA_KEY]
    assert rows.asking(kind=ReleaseKind.MODEL_KEY) == "purpose-refused"
    assert rows.asking(kind=ReleaseKind.MODEL_KEY, purpose="model") == "purpose-refused"
    assert model.asking(kind=ReleaseKind.DATA_KEY) == "purpose-refused"


def test_a_visit_is_for_what_the_owners_rule_names() -> None:
    rows = CASES[ReleaseKind.ROWS]
    assert rows.asking(purpose="prepare") == "allowed"
    strict = ruled(rows.consortium, "ada-train", {"purposes": ("train",)})
    agreement = replace(rows.consortium.agreement, resources=strict)
    verified = replace(rows.consortium, agreement=agreement).verified()
    assert rows.under(verified) == "allowed"
    preparing = replace(rows, ask=replace(rows.ask, purpose="prepare"))
    assert preparing.under(verified) == "purpose-refused"


def test_unknown_resources_are_refused() -> None:
    for kind in (ReleaseKind.DATA_KEY, ReleaseKind.MODEL_KEY, ReleaseKind.ROWS):
        assert CASES[kind].asking(resource="zoe-train") == "no-resource"
        assert CASES[kind].asking(resource="") == "no-resource"


def test_every_kind_has_a_door_that_asks() -> None:
    """A kind that nobody asks about would be a secret that leaves another way."""
    named: set[str] = set()
    kinds = {f"ReleaseKind.{name}" for name in ReleaseKind.__members__}
    product = Path(sealift.__file__).parent
    for path in product.rglob("*.py"):
        if path.name in ("decision.py", "facts.py"):
            continue
        tree = ast.parse(path.read_text())
        asks = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for node in ast.walk(tree):
            if "ReleaseQuestion" in asks and ast.unparse(node) in kinds:
                assert isinstance(node, ast.Attribute)
                named.add(node.attr)
    assert named == set(ReleaseKind.__members__)


def test_at_home_the_owner_learns_what_is_wrong_there() -> None:
    case = CASES[ReleaseKind.FED_DEVICE]
    owner, verified = case.state.owner, case.state.verified
    require_home(owner, verified, NOW_S)
    for wrong, code in (
        (Owner("ada", SigningKey.generate().public_key), "owner-unsigned"),
        (Owner("zoe", owner.key), "not-a-party"),
    ):
        with pytest.raises(PolicyError) as caught:
            require_home(wrong, verified, NOW_S)
        assert caught.value.code == code
    ended = replace(case.consortium.agreement, not_after=EARLY)
    late = verify(replace(case.consortium, agreement=ended).signed())
    with pytest.raises(PolicyError) as caught:
        require_home(owner, late, NOW_S)
    assert caught.value.code == "agreement-expired"


def test_heads_are_for_parties_and_accelerators() -> None:
    consortium = make_consortium()
    verified = consortium.verified()
    peer = accelerator_peer(consortium, HpkePrivateKey.generate().public)
    require_reader(peer, verified)
    for name in consortium.identities:
        holder = replace(broker_peer(consortium, name), role=Role.HOLDER)
        require_reader(holder, verified)
    stranger = replace(
        broker_peer(consortium, "ada"), identity=SigningKey.generate().public_key
    )
    nobody = replace(peer, result=None)
    elsewhere = replace(broker_peer(consortium, "ada"), agreement=OTHER)
    for refused in (stranger, nobody, elsewhere):
        with pytest.raises(PolicyError):
            require_reader(refused, verified)


def test_evidence_of_another_code_or_role_is_what_the_agreement_says() -> None:
    """Control of the table's own evidence: it comes from a real appraisal."""
    case = CASES[ReleaseKind.DATA_KEY]
    for changes in ({"role": Role.HOLDER}, {"code": OTHER}):
        result: AttestationResult = evidence_result(case.consortium, **changes)  # type: ignore[arg-type]
        assert case.by(result=result) in ("role-refused", "code-bundle-differs")


def test_challenge_has_its_length() -> None:
    with pytest.raises(MalformedError):
        ReleaseRequest("ada-train", "train", b"short")


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("the vault /home/ada/x does not open", code="vault-locked"),
        MalformedError("/home/ada/x is not a database", code="bad-database"),
        UnavailableError("cannot read /home/ada/x"),
    ],
)
def test_lines_about_own_files_are_not_for_peers(error: SealiftError) -> None:
    assert not is_about_peer(error)
    assert is_about_peer(PolicyError("no", code="role-refused"))
