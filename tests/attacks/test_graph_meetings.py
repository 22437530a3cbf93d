"""Graphs in a meeting, over a real relay: what a host gets that calls something else a graph."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.data.schema.document import load_schema
from sealift.errors import IntegrityError, PolicyError
from sealift.graph.document import read_graph
from sealift.graph.export import export_recipe
from sealift.ids import Digest
from sealift.meet import owner as owner_side
from sealift.meet.messages import REASONS, BringCard, FromHost
from sealift.meet.owner import MeetingProgress
from sealift.meet.proposal import graph_digest
from sealift.release.agreement import Agreement, PrivacyBudget
from sealift.release.agreement.code import load_assets, load_bundle, measure_bundle
from sealift.release.agreement.resources import ReleaseRule
from sealift.release.agreement.terms import (
    GRAPH_ENTRY,
    GRAPH_FILES,
    GRAPH_WEIGHTS,
    CodeBundle,
    bundle_digest,
)
from sealift.train.sandboxed.recipe import Recipe, let_through
from tests.sim import lyinghost
from tests.sim.lyinghost import SCHEMA, LyingHost, Owner

RECIPE = b"""
import torch
from torch import nn


def build():
    return nn.Linear(1, 2)


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch["age"].reshape(-1, 1)), batch["ward"])


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """A graph of the columns that every lying host declares."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "schema.toml").write_text(SCHEMA)
    recipe = Recipe({"recipe.py": RECIPE}, "recipe.py", guard=let_through)
    return export_recipe(recipe, load_schema(folder / "schema.toml"), rows=8)


@pytest.fixture(autouse=True)
def quick_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost a third of a second, and are compared by people."""
    monkeypatch.setattr(owner_side, "words_of", lambda terms: ("words",) * 8)


@pytest.fixture
def host(tmp_path: Path, written: Mapping[str, bytes]) -> Iterator[LyingHost]:
    """A host that declares a graph."""
    put(tmp_path / "host" / "graph", written)
    meeting = LyingHost(tmp_path)
    yield meeting
    meeting.close()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[LyingHost]:
    """A host that declares a program."""
    meeting = LyingHost(tmp_path)
    yield meeting
    meeting.close()


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def both(host: LyingHost, **north: Any) -> tuple[Owner, Owner]:
    owners = (host.owner("north", **north), host.owner("east"))
    for each in owners:
        each.begin()
    return owners


def agreed_by(*owners: Owner) -> Agreement:
    """What all of them signed."""
    kept = [each.end() for each in owners]
    assert all(isinstance(each, MeetingProgress) for each in kept), kept
    agreed = [each.agreement for each in kept]  # type: ignore[union-attr]
    assert agreed[0] is not None
    assert agreed == agreed[:1] * len(agreed)
    return agreed[0]


def declares(host: LyingHost, files: Mapping[str, bytes], **changes: Any) -> None:
    """From now on the host sends these files, and declares what fits them."""

    def lie(_name: str, told: FromHost) -> FromHost:
        if not isinstance(told, BringCard):
            return told
        return BringCard(replace(told.declaration, **changes), dict(files))

    host.lie = lie


def refused_unasked(host: LyingHost, code: str) -> str:
    north = host.owner("north").begin()
    error = north.refused()
    assert (error.code, north.questions) == (code, [])
    return str(error)


def test_all_sign_a_graph_whose_operations_they_are_told(
    host: LyingHost, capsys: pytest.CaptureFixture[str]
) -> None:
    north, east = both(host, options={"only_graph": True})
    agreed, home = agreed_by(north, east), north.folder
    assert agreed.code.kind == "graph"
    assert [e.rule.recipe for e in agreed.resources] == ["graph", "any"]
    count = sum(
        read_graph((home / "graph" / GRAPH_ENTRY).read_bytes()).counts().values()
    )
    said = " ".join(capsys.readouterr().err.replace("sealift:", "").split())
    assert (
        f"No program of host runs on your machine: the recipe is a graph, a list of {count} tensor"
        in said
    )
    assert graph_digest(home / "graph") == agreed.code.digest
    assert not [*home.rglob("*.py")]


def test_an_owners_rule_refuses_a_program_before_any_question(
    program: LyingHost,
) -> None:
    north, east = both(program, options={"only_graph": True})
    assert north.refused().code == "code-recipe"
    assert north.questions == []
    told = east.refused()
    assert f"north: {REASONS['code-recipe']}" in str(told)


def test_an_owners_budget_refuses_a_job_without_noise_before_any_question(
    host: LyingHost,
) -> None:
    budget = PrivacyBudget(epsilon=3.0, delta=1e-6)
    north, _east = both(host, options={"privacy": budget})
    refused = north.refused()
    assert refused.code == "privacy-refused"
    assert "[privacy]" in str(refused)
    assert north.questions == []


def test_an_owners_budget_does_not_rest_on_others_without_its_word(
    tmp_path: Path, written: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a question is asked, and whoever else has come: the others need not be there."""
    steps = "[privacy]\nclip = 1.0\nnoise = 1.0\nbatch = 16\nhonest_ranks = 2\n"
    monkeypatch.setattr(lyinghost, "JOB", f"[training]\nbatch_rows = 16\n{steps}")
    put(tmp_path / "host" / "graph", written)
    options = {"privacy": PrivacyBudget(epsilon=50.0, delta=1e-5)}
    with lyinghost.lying_host(tmp_path, "north", "east", "south") as host:
        north = host.owner("north", options=options).begin()
        refused = north.refused()
        assert (refused.code, north.questions) == ("below-floor", [])
        assert "--allow shared-noise" in str(refused)
        hears = host.owner("east").begin()
        assert f"north: {REASONS['below-floor']}" in str(hears.refused())


def test_no_agreement_about_a_program_has_an_owner_that_allows_graphs_alone(
    program: LyingHost,
) -> None:
    """So no broker can be asked for that owner's keys under it."""
    agreed = agreed_by(*both(program))
    rule = ReleaseRule(recipe="graph")
    resources = tuple(replace(each, rule=rule) for each in agreed.resources)
    with pytest.raises(PolicyError) as caught:
        replace(agreed, resources=resources)
    assert caught.value.code == "code-recipe"


def test_a_job_that_says_graph_and_brings_a_program_is_refused(
    program: LyingHost,
) -> None:
    declared = program.host.declaration
    job = declared.job.replace('recipe = "code"', 'recipe = "graph"')
    declares(program, program.host.files, job=job)
    assert "recipe is a program" in refused_unasked(program, "recipe-kind")


def test_what_is_called_a_graph_has_no_other_file(host: LyingHost) -> None:
    """Neither beside it, nor in its place."""
    declared, graph = host.host.declaration, dict(host.host.files)
    more = {**graph, "recipe.py": RECIPE}
    code = forged({**declared.code.files, "recipe.py": Digest.of(RECIPE)})
    declares(host, more, code=code)
    assert "recipe.py is no part of a graph" in refused_unasked(host, "graph-files")


def forged(files: Mapping[str, Digest]) -> CodeBundle:
    """What this program would not make."""
    empty = dict.fromkeys(GRAPH_FILES, Digest.of(b""))
    code = copy.copy(CodeBundle(bundle_digest(empty), GRAPH_ENTRY, empty))
    object.__setattr__(code, "files", dict(files))
    object.__setattr__(code, "digest", bundle_digest(dict(files)))
    return code


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"cross_entropy_loss"', b'"os.system"'),
        (b'"version":1', b'"version":2'),
        (b'"age"', b'"agee"'),
    ],
)
def test_a_graph_that_cannot_be_computed_is_refused_before_any_question(
    host: LyingHost, before: bytes, after: bytes
) -> None:
    declared, files = host.host.declaration, dict(host.host.files)
    assert before in files[GRAPH_ENTRY]
    files[GRAPH_ENTRY] = files[GRAPH_ENTRY].replace(before, after)
    weights = {GRAPH_WEIGHTS: declared.code.files[GRAPH_WEIGHTS]}
    declares(host, files, code=measure_bundle(files, GRAPH_ENTRY, weights))
    refused_unasked(host, "meeting-terms" if after == b'"agee"' else "bad-graph")


def test_weights_that_the_graph_does_not_name_are_refused(host: LyingHost) -> None:
    files = dict(host.host.files)
    weights = {GRAPH_WEIGHTS: Digest.of(b"others")}
    declares(host, files, code=measure_bundle(files, GRAPH_ENTRY, weights))
    assert "other weights" in refused_unasked(host, "meeting-terms")


def test_a_graph_that_is_swapped_after_the_signatures_is_not_computed(
    host: LyingHost, written: Mapping[str, bytes]
) -> None:
    """Neither what the host declares then, nor what somebody puts into the folder."""
    owners = both(host)
    agreed = agreed_by(owners[0], owners[1])
    other = {GRAPH_ENTRY: written[GRAPH_ENTRY].replace(b'"lr":0.1', b'"lr":9.9')}
    assert other[GRAPH_ENTRY] != written[GRAPH_ENTRY]
    weights = {GRAPH_WEIGHTS: agreed.code.files[GRAPH_WEIGHTS]}
    code = measure_bundle(other, GRAPH_ENTRY, weights)
    swapped = BringCard(host.declare(code=code), other)
    host.lie = lambda _name, _told: swapped
    again = host.owner("north").begin().refused()
    assert (again.code, "after this party signed" in str(again)) == (
        "meeting-terms",
        True,
    )

    home = owners[0].folder / "graph"
    (home / GRAPH_ENTRY).write_bytes(other[GRAPH_ENTRY])
    with pytest.raises(IntegrityError) as caught:
        load_bundle(home, agreed.code)
    assert caught.value.code == "code-bundle-differs"
    (home / GRAPH_WEIGHTS).write_bytes(written[GRAPH_WEIGHTS][:-1] + b"\1")
    (asset,) = load_assets(home, agreed.code.files)
    with pytest.raises(IntegrityError) as caught:
        list(asset.pieces())
    assert caught.value.code == "code-bundle-differs"
