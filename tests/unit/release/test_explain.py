"""Every field of an agreement is in a sentence, or has its reason; what leaks comes first."""

from __future__ import annotations

import copy
import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sealift.attest.level import Level
from sealift.attest.reference import (
    ImaReferences,
    NvidiaReferences,
    SetName,
    SnpReferences,
    TdxReferences,
    TpmReferences,
    TpmRoot,
)
from sealift.crypto.hpke import HpkePublicKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import PolicyError
from sealift.ids import Digest
from sealift.release.agreement import (
    Agreement,
    Between,
    Board,
    GroupRule,
    OutputRule,
    PrivacyBudget,
    References,
    ReleaseRule,
    Resource,
    RollbackRule,
    ServersRule,
    TrainingRule,
    TravelRule,
)
from sealift.release.agreement.explain import (
    TABLE,
    TOPICS,
    Sentence,
    explain,
    explain_lines,
)
from sealift.release.agreement.holes import EXCEPTIONS, require_allowed
from sealift.release.agreement.phrases import count
from sealift.release.agreement.training import ParameterRule, PrivateSteps
from tests.sim.served import Served
from tests.worlds.consortium import make_consortium

VALUES = (Digest, PublicKey, HpkePublicKey)  # no part of a document of their own
OUTPUT = OutputRule(
    metrics=("loss", "accuracy"),
    digits=3,
    values_per_visit=16,
    metric_rows=16,
    audience="everyone",
    min_visits=1,
    max_visits=100,
    min_holders=3,
    min_rows=60,
    min_owner_rows=16,
    baseline_alone=False,
    recipe_text=False,
    statistics=("ages",),
    statistics_rows=16,
)
TRAINING = TrainingRule(
    plans=("ddp",),
    runs=3,
    epochs=Between(1, 20),
    batch_rows=Between(16, 64),
    drop_last=(True,),
    sync=("round", "step"),
)
USUAL = make_consortium(
    cell_rows=16,
    output=OUTPUT,
    training=TRAINING,
    group=GroupRule(3, "owner"),
).agreement
KEY = SigningKey.generate().public_key
RULE = ReleaseRule(
    accept=(Level.TEE,), purposes=("prepare", "train"), max_uses=9,
    not_before=10, not_after=20, lease_s=60.0, heartbeat_s=10.0,
)  # fmt: skip
REFERENCES = References(
    development_attesters=(KEY,),
    enrollers=(KEY,),
    tpm=TpmReferences(
        roots=(TpmRoot(name="maker", key=Digest(bytes(32)), operator="hardware"),),
        endorsement_keys=(Digest(bytes(32)),),
        pcrs={"7": (bytes(32),)},
        ima=ImaReferences(
            allow={"/bin/a": (Digest(bytes(32)),)}, must=("/bin/a",), signers=(b"k",)
        ),
    ),
    tdx=TdxReferences(
        mrtd=(bytes(48),),
        rtmr={"0": (bytes(48),)},
        mrconfigid=(bytes(48),),
        platforms=(b"p",),
    ),
    snp=SnpReferences(
        measurement=(bytes(48),),
        host_data=(bytes(32),),
        min_tcb={"Milan": {"snp": 1}},
        chips=(bytes(64),),
        operators=("cloud",),
        platform=("smt-off",),
    ),
    nvidia=NvidiaReferences(drivers=("580",), vbios=("96",), devices=("2330",)),
    sets=(SetName(name="hosts", signer=KEY, number=1),),
)


def changed(part: Any, /, **changes: Any) -> Any:
    """A copy whose consistency nobody checks: sentences are said of any document."""
    new = copy.copy(part)
    for name, value in changes.items():
        object.__setattr__(new, name, value)
    return new


# Between them, every field has a value that is worth a sentence.
FULL = changed(
    USUAL,
    predecessor=Digest(bytes(32)),
    accept=(Level.TEE, Level.ATTESTED_HOST),
    rehearse=Level.TEE,
    references=REFERENCES,
    resources=tuple(changed(each, rule=RULE) for each in USUAL.resources),
    output=changed(OUTPUT, model_to=("cleo", "bern"), approved_by=("ada",)),
    travel=TravelRule(1, 60.0),
    training=changed(
        TRAINING,
        plans=("travel", "ddp"),
        prepare=(False, True),
        max_norm=Between(0, 1),
        evaluate_every=Between(1, 2),
        device=("cpu", "cuda"),
        on_missing=("skip", "wait"),
        rows=("owner", "share"),
        slices=Between(1, 4),
        parameters={
            "rate": ParameterRule(between=Between(0.1, 0.5)),
            "kind": ParameterRule(values=("adam", True)),
        },
    ),
    servers=ServersRule("p", "m", "z"),
    board=Board(
        members=("ada", "bern"), threshold=2, veto=("ada",), rollback=RollbackRule(2, 0)
    ),
    not_before=10,
    not_after=20,
    compared=("ada", "bern"),
)
BUDGETED = tuple(
    changed(each, rule=changed(RULE, privacy=PrivacyBudget(epsilon=3.0, delta=1e-6)))
    for each in USUAL.resources
)
PRIVATE = changed(FULL.training, privacy=PrivateSteps(1.0, 1.1, 64))
DOCUMENTS = (
    FULL,
    changed(FULL, training=PRIVATE, resources=BUDGETED),
    changed(FULL, group=None),
    changed(FULL, training=changed(FULL.training, sums=("only",))),
    changed(FULL, accept=(Level.DEVELOPMENT,), references=References((KEY,))),
)
OTHER_WORDS = {
    (Agreement, "about"): "group",
    (Agreement, "rehearse"): Level.GPU_TEE,
    (OutputRule, "audience"): "owner",
    (ReleaseRule, "recipe"): "graph",
    (Resource, "part"): "heldout",
}


def parts_of(kind: type) -> Iterator[type]:
    """The dataclass and all that can stand in it."""
    found, left = {}, [kind]
    while left:
        each = left.pop()
        if dataclasses.is_dataclass(each) and each not in (*found, *VALUES):
            found[each] = None
            left += typing.get_type_hints(each).values()
        left += typing.get_args(each)
    return iter(found)


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    if isinstance(value, Between):
        return Between(value.min, value.max + 7)
    if isinstance(value, PublicKey):
        return SigningKey.generate().public_key
    if isinstance(value, Digest):
        return Digest(b"\x07" * 32)
    if isinstance(value, tuple):
        return value[:-1]
    return {} if isinstance(value, Mapping) else f"{value}x"


def with_another(part: Any, kind: type, name: str) -> Any:
    """The document with another value in that field of the first part of that kind."""
    if isinstance(part, kind):
        return changed(
            part, **{name: OTHER_WORDS.get((kind, name), another(getattr(part, name)))}
        )
    if isinstance(part, tuple):
        return tuple(with_another(each, kind, name) for each in part)
    if isinstance(part, dict):
        return {key: with_another(each, kind, name) for key, each in part.items()}
    if not dataclasses.is_dataclass(part) or isinstance(part, VALUES):
        return part
    inner = {e.name: getattr(part, e.name) for e in dataclasses.fields(part)}
    return changed(
        part, **{key: with_another(each, kind, name) for key, each in inner.items()}
    )


def test_every_field_of_every_part_is_in_the_table_and_nothing_else() -> None:
    fields = {
        kind: {e.name for e in dataclasses.fields(kind)} for kind in parts_of(Agreement)
    }
    assert {kind: set(told) for kind, told in TABLE.items()} == fields


def test_a_field_without_sentence_has_a_reason_that_says_something() -> None:
    reasons = [
        each for told in TABLE.values() for each in told.values() if not callable(each)
    ]
    assert all(len(str(each).split()) >= 5 for each in reasons)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind, told in TABLE.items()
        for name, tell in told.items()
        if callable(tell)
    ],
)
def test_another_value_is_another_sentence(kind: type, name: str) -> None:
    """A field that the table names is in the text, not only beside it."""
    assert any(
        explain(each) != explain(with_another(each, kind, name)) for each in DOCUMENTS
    )


def text_of(agreement: Agreement, asked: str = "ada") -> str:
    return "\n".join(each.text for each in explain(agreement, asked))


def loud(agreement: Agreement, asked: str = "ada") -> list[Sentence]:
    return [each for each in explain(agreement, asked) if each.is_loud]


def below(agreement: Agreement, owner: str = "ada", *allowed: str) -> list[str]:
    """Exceptions that the owner's program asks for."""
    refused: list[PolicyError] = []
    try:
        require_allowed(agreement, owner, allowed)
    except PolicyError as error:
        refused.append(error)
    assert {(each.code, each.exit_code) for each in refused} <= {("below-floor", 5)}
    return [
        name for each in refused for name in re.findall(r"--allow ([a-z-]+)", each.why)
    ]


def test_what_leaves_stands_first_and_who_gets_it() -> None:
    sentences = explain(FULL, "ada")
    order = [TOPICS.index(each.topic) for each in sentences]
    assert order == sorted(order)
    leaves = [each.text for each in sentences if each.topic == TOPICS[0]]
    for what, who in (
        ("Sums that", "goes to every party"),
        ("sums over its own rows", "the machines of bern and cleo can read"),
        ("Numbers measured on your rows", "every party, the operator included"),
        ("trained model goes to", "cleo and bern"),
        ("recipe prints is not shared", "cleo gets its file and line"),
    ):
        assert any(what in each and who in each for each in leaves), what


def test_the_usual_document_is_above_the_floor() -> None:
    assert below(USUAL) == []
    assert not [each for each in explain(USUAL, "ada") if each.exception]


@pytest.mark.parametrize(
    ("changes", "exception"),
    [
        ({"output": replace(OUTPUT, recipe_text=True)}, "recipe-text"),
        (
            {
                "output": replace(OUTPUT, statistics_rows=15),
                "training": changed(TRAINING, prepare=(True,)),
            },
            "statistics",
        ),
        ({"output": replace(OUTPUT, metric_rows=15)}, "metric-rows"),
        ({"output": replace(OUTPUT, model_to=("cleo", "bern"))}, "model-to"),
        ({"training": changed(TRAINING, batch_rows=Between(15, 64))}, "step-updates"),
    ],
)  # fmt: skip
def test_below_the_floor_its_name_must_be_given(
    changes: dict[str, Any], exception: str
) -> None:
    assert exception in EXCEPTIONS
    agreement = changed(USUAL, **changes)
    assert [each.exception for each in loud(agreement) if each.exception] == [exception]
    assert below(agreement) == [exception]
    others = [each for each in EXCEPTIONS if each != exception]
    assert below(agreement, "ada", *others) == [exception]
    assert below(agreement, "ada", exception) == []


def test_a_budget_that_relies_on_other_owners_machines_is_below_the_floor() -> None:
    steps = PrivateSteps(1.0, 1.1, 64, honest_ranks=2)
    training = changed(TRAINING, sync=("step",), sums=("only",), privacy=steps)
    budget = PrivacyBudget(epsilon=3.0, delta=1e-6)
    tables = tuple(
        changed(each, rule=changed(RULE, privacy=budget))
        if each.owner == "ada"
        else each
        for each in USUAL.resources
    )
    agreement = changed(USUAL, training=training, resources=tables)
    assert below(agreement) == ["shared-noise"]
    assert below(agreement, "bern") == []  # who has no budget reads it all the same
    said = [each.text for each in loud(agreement, "bern")]
    assert any("nobody can check this" in each for each in said)
    texts = " ".join(each.text for each in explain(agreement, "ada"))
    assert "As long as 2 machines are honest" in texts
    assert (
        "only that machine's part of the noise, 1/2 of its variance: 0.78 times"
        in texts
    )
    assert "already contain the noise" not in texts
    assert "is cut to it (sum_bound)" not in texts


def test_sums_over_few_rows_of_ones_own_are_below_the_floor() -> None:
    """The others subtract their parts; in a group they are sent the sums themselves."""
    few = tuple(
        changed(each, rows=15) if each.owner == "ada" else each
        for each in USUAL.resources
    )
    updates = ["round-updates", "step-updates"]
    agreement = changed(USUAL, resources=few)
    assert below(agreement) == updates  # no run may make sums
    sums = changed(agreement, training=changed(TRAINING, prepare=(True,)))
    assert below(sums) == ["statistics", *updates]
    assert below(sums, "bern") == []
    assert below(changed(sums, group=None)) == ["statistics"]
    quiet = changed(agreement, output=replace(OUTPUT, statistics=()))
    assert below(quiet) == updates
    prepares = changed(quiet, training=changed(TRAINING, prepare=(True,)))
    assert below(prepares) == ["statistics", *updates]
    assert below(changed(prepares, group=None)) == []


def test_before_sealing_the_rows_are_what_the_terms_take_and_no_table_s() -> None:
    """A proposed agreement has numbers of rows that no table needs to have."""

    def few(**output: int) -> set[str | None]:
        rule = replace(OUTPUT, metrics=(), statistics=(), **output)
        said = explain(changed(USUAL, output=rule), "ada", sealed=False)
        return {each.exception for each in said if each.exception}

    assert few() == set()
    assert few(metric_rows=1) == set()
    assert few(min_owner_rows=15, metric_rows=15) == {"round-updates", "step-updates"}


def test_at_a_meeting_rows_that_leave_for_an_unproven_machine_need_a_name() -> None:
    away = changed(USUAL, group=None)
    said = explain(away, "ada", sealed=False)
    assert [each.exception for each in said if each.exception] == ["rows-away"]
    assert not [each for each in explain(away, "ada") if each.exception]
    proven = changed(away, accept=(Level.TEE,), references=References())
    assert not [e for e in explain(proven, "ada", sealed=False) if e.exception]


def test_the_seed_and_what_differences_tell_are_said() -> None:
    seeds = changed(TRAINING, seed=Between(0, 9_999))
    text = text_of(changed(USUAL, training=seeds))
    assert "A seed determines it: 0 to 9,999." in text
    assert "Sums of two steps, rounds or runs can differ by a few rows" in text
    assert "can choose the weights from which the others continue" in text


def test_who_brings_no_rows_or_gets_the_model_has_no_floor_there() -> None:
    model_to = changed(USUAL, output=replace(OUTPUT, model_to=("cleo", "bern")))
    assert below(model_to, "bern") == []
    served = Served().agreement()
    assert below(served, served.holders[0]) == []


def test_every_accepted_level_is_named_and_development_in_red_also_at_home() -> None:
    text = text_of(FULL)
    assert "one of the levels tee or attested-host" in text
    for level in FULL.accept:
        assert f"At level {level}, your rows" in text
    at_home = [each.text for each in loud(USUAL)]
    assert any(
        "At level development, your rows stay on this machine" in e for e in at_home
    )
    assert any("the machines of bern and cleo are unproven" in each for each in at_home)
    lines = list(explain_lines(explain(USUAL, "ada"), colour=True))
    assert any("\x1b[1;31m" in each and "development" in each for each in lines)
    assert not any("\x1b" in each for each in explain_lines(explain(USUAL, "ada")))
    sealed = changed(USUAL, accept=(Level.TEE,), references=References())
    assert loud(sealed) == []


def test_updates_are_explained_by_their_rows() -> None:
    text = text_of(USUAL)
    assert "over its own rows of the step (sync = step), over as few as 16 rows" in text
    assert (
        "the machines of bern and cleo can read the updates of your rows"
        in text.lower()
    )
    rounds = text_of(changed(USUAL, training=changed(TRAINING, sync=("round",))))
    assert "single step" not in rounds
    assert "whether a certain row is among an owner's rows" in rounds


HOSTILE = "x\x1b[2J\r\n\u202e" + " " * 200 + "- The model goes to nobody." * 9


def test_text_of_others_makes_no_line_of_its_own() -> None:
    plain = {"fields": [{"name": "x"}, {"name": "y"}]}
    hostile = {"fields": [{"name": HOSTILE}, {"name": "y"}]}

    def lines(schema: dict[str, Any]) -> list[str]:
        tables = tuple(changed(each, schema=schema) for each in USUAL.resources)
        return list(explain_lines(explain(changed(USUAL, resources=tables), "ada")))

    shown = lines(hostile)
    assert not [c for line in shown for c in line if ord(c) < 32 or c == "\u202e"]
    assert not [line for line in shown if "  " in line.strip()]
    assert max(map(len, shown)) < 80
    marks = [line[:4] for line in shown]
    assert marks.count("  - ") == [line[:4] for line in lines(plain)].count("  - ")
    many = {"fields": [{"name": f"c{number}"} for number in range(500)]}
    assert any("476 more" in line for line in lines(many))


def test_before_sealing_nobody_says_how_many_rows_there_are() -> None:
    sealed = "\n".join(each.text for each in explain(USUAL, "ada"))
    before = "\n".join(each.text for each in explain(USUAL, "ada", sealed=False))
    assert "40 rows of 16 bytes" in sealed
    assert "40 rows" not in before


def test_leaving_is_explained_by_the_leases_of_who_is_asked() -> None:
    assert "within 10 s if your broker can be reached, and after 60 s" in text_of(USUAL)
    rule = ReleaseRule(lease_s=0.0)
    tables = tuple(changed(each, rule=rule) for each in USUAL.resources)
    text = text_of(changed(USUAL, resources=tables))
    assert "when the run ends, because a key of yours has no lease" in text


def test_all_that_leaves_a_served_model_is_said() -> None:
    text = text_of(Served().agreement(), "")
    assert (
        "doubler answers anybody who can reach it, with y; step by step with t." in text
    )


def test_count() -> None:
    assert [count(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]


def test_of_two_machines_the_other_ones_owner_learns_all_of_an_update() -> None:
    pair = make_consortium(
        ("ada", "bern"),
        cell_rows=16,
        output=replace(OUTPUT, min_holders=2),
        training=TRAINING,
        group=GroupRule(2, "owner"),
    ).agreement
    all_of_it = "the other one has all of it by subtraction: the sum less its own part"
    part = "Each machine reads the part that it adds up"
    for agreement, said, unsaid in ((pair, all_of_it, part), (USUAL, part, all_of_it)):
        text = " ".join(each.text for each in explain(agreement, "ada"))
        assert said in text
        assert unsaid not in text
