"""What an agreement is about: it says what that needs and no more, and allows nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.codec import decode, encode
from sealift.errors import MalformedError, PolicyError
from sealift.feed.terms import load_agreement
from sealift.release.agreement import Agreement, Board, RollbackRule
from sealift.release.agreement.explain import explain
from sealift.release.agreement.holes import find_holes
from sealift.release.agreement.signed import VerifiedAgreement, load_signed, save_signed
from sealift.release.agreement.successors import own_part
from sealift.train.job.settings import JobTable, check_job
from tests.sim.decisions import serving
from tests.worlds.consortium import OUTPUT, Consortium, make_consortium

CONSORTIUM = make_consortium()
NOTHING = {"model_owner": None, "output": None, "travel": None, "training": None}


def grouped(consortium: Consortium) -> Consortium:
    """The same parties about to compute together: nobody brings rows."""
    agreement = consortium.agreement
    operator = replace(agreement.parties[-1], roles=("code_owner", "operator"))
    parties = (*(replace(each, roles=()) for each in agreement.parties[:-1]), operator)
    changes: dict[str, Any] = {"about": "group", "resources": (), "parties": parties}
    return replace(consortium, agreement=replace(agreement, **changes, **NOTHING))


AGREED = {
    "train": CONSORTIUM,
    "serve": serving(CONSORTIUM),
    "group": grouped(CONSORTIUM),
}
TRAIN, SERVE, GROUP = (each.agreement for each in AGREED.values())


@pytest.mark.parametrize("about", AGREED)
def test_each_kind_keeps_its_digest(about: str) -> None:
    agreement = AGREED[about].agreement
    assert agreement.about == about
    again = decode(Agreement, encode(agreement))
    assert again == agreement
    assert again.digest == agreement.digest


def with_model() -> Agreement:
    table = replace(TRAIN.resources[1], part="model")
    return replace(TRAIN, resources=(TRAIN.resources[0], table, *TRAIN.resources[2:]))


BROKEN: dict[str, tuple[Callable[[], object], str]] = {
    "training without output": (lambda: replace(TRAIN, output=None), "output"),
    "training without visits": (lambda: replace(TRAIN, travel=None), "travel"),
    "training without settings": (lambda: replace(TRAIN, training=None), "training"),
    "training for nobody": (lambda: replace(TRAIN, model_owner=None), "model_owner"),
    "training and a model": (with_model, "resources[1].part"),
    "a served model for somebody": (
        lambda: replace(SERVE, model_owner="cleo"),
        "model_owner",
    ),
    "serving with output": (lambda: replace(SERVE, output=OUTPUT), "output"),
    "serving with visits": (lambda: replace(SERVE, travel=TRAIN.travel), "travel"),
    "serving with settings": (
        lambda: replace(SERVE, training=TRAIN.training),
        "training",
    ),
    "serving tables": (
        lambda: replace(TRAIN, about="serve", **NOTHING),
        "resources[0].part",
    ),
    "serving nothing": (lambda: replace(GROUP, about="serve"), "resources"),
    "training that says it serves": (
        lambda: replace(TRAIN, about="serve"),
        "model_owner",
    ),
    "a group with output": (lambda: replace(GROUP, output=OUTPUT), "output"),
    "a group with visits": (lambda: replace(GROUP, travel=TRAIN.travel), "travel"),
    "a group with rows": (
        lambda: replace(TRAIN, about="group", **NOTHING),
        "resources[0].part",
    ),
    "a group with models": (
        lambda: replace(SERVE, about="group"),
        "resources[0].part",
    ),
    "a group that asks owners which agreement is the last": (
        lambda: replace(
            GROUP,
            board=Board(members=("ada",), threshold=1, rollback=RollbackRule(1, 0)),
        ),
        "board.rollback.quorum",
    ),
}


@pytest.mark.parametrize(("build", "field"), BROKEN.values(), ids=BROKEN.keys())
def test_exactly_what_it_needs(build: Callable[[], object], field: str) -> None:
    with pytest.raises(MalformedError) as caught:
        build()
    assert (caught.value.code, caught.value.field) == ("bad-agreement", field)


@pytest.mark.parametrize("written", [b'"about":"dance"', b'"about":null'])
def test_what_it_is_about_is_one_of_three_words(written: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(Agreement, encode(TRAIN).replace(b'"about":"train"', written))
    assert caught.value.field == "about"


def serve_job(agreement: VerifiedAgreement) -> None:
    check_job(
        JobTable(name="serves", agreement="-", bundle="-", plan="serve"), agreement
    )


def travel_job(agreement: VerifiedAgreement) -> None:
    check_job(SimpleNamespace(plan="travel"), agreement)  # type: ignore[arg-type]


USES: dict[str, tuple[str, Callable[[VerifiedAgreement], object]]] = {
    "a job that serves": ("serve", serve_job),
    "a job that trains": ("train", travel_job),
    "a fed device": ("train", load_agreement),
    "what may leave": ("train", lambda each: each.agreement.output_rule),
    "how to visit": ("train", lambda each: each.agreement.travel_rule),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("about", AGREED)
def test_it_is_used_for_nothing_else(use: str, about: str) -> None:
    needed, call = USES[use]
    verified = AGREED[about].verified()
    if about == needed:
        if use != "a job that trains":  # that goes on to what else a job says
            call(verified)
        return
    with pytest.raises(PolicyError) as caught:
        call(verified)
    assert caught.value.code == "other-purpose"
    assert "\n" not in str(caught.value)


def test_who_gets_a_model_that_is_trained() -> None:
    assert (TRAIN.model_to, SERVE.model_to, GROUP.model_to) == (("cleo",), (), ())


def test_what_a_party_loses_needs_its_signature() -> None:
    """No majority turns training into something else behind an owner's back."""
    for name in ("ada", "bern", "cleo"):
        assert own_part(TRAIN, name) != own_part(GROUP, name)
        assert own_part(TRAIN, name) != own_part(SERVE, name)


def test_a_group_is_told_in_plain_words() -> None:
    text = "\n".join(each.text for each in explain(GROUP))
    assert "names no rows and no output" in text
    for foreign in ("scrub", "sandbox", "your rows", "sums"):
        assert foreign not in text
    assert "no-output-rule" in {hole.name for hole in find_holes(GROUP)}
    for control in (TRAIN, SERVE):
        assert "no-output-rule" not in {hole.name for hole in find_holes(control)}


def test_an_owner_that_runs_the_server_of_its_model_is_a_hole() -> None:
    lines = [hole.line for hole in find_holes(SERVE) if hole.name == "two-roles"]
    assert any("cleo runs the machines and brings the model" in each for each in lines)


@pytest.mark.parametrize("version", [b"1", b"2", b"4", b'"3"'])
@pytest.mark.parametrize("left_out", [b"", b'"about":"train",'])
def test_another_version_is_refused_by_that_name(
    tmp_path: Path, version: bytes, left_out: bytes
) -> None:
    """Not by the fields that it lacks."""
    path = tmp_path / "agreement.json"
    save_signed(CONSORTIUM.signed(), path)
    assert load_signed(path).agreement == TRAIN  # control
    raw = path.read_bytes().replace(left_out, b"")
    path.write_bytes(raw.replace(b'"version":3', b'"version":' + version))
    with pytest.raises(MalformedError) as caught:
        load_signed(path)
    assert caught.value.code == "agreement-version"
    assert "version 3" in str(caught.value)
