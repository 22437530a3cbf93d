"""`sealift train` and `join` as real processes: equal to `local`, approved, opened."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load

from sealift.demo.job import World
from sealift.release.agreement.signed import load_signed, verify
from sealift.train.output.opening import open_output
from sealift.train.plans.local import LocalRun
from tests.sim.jobrun import Running, job_run
from tests.sim.jobworld import Wishes, fresh_world, identities, plain_world, train_here
from tests.sim.sealedrun import Sealing

pytestmark = pytest.mark.distributed

OWNERS = ("north", "east", "south")
APPROVED = 'false\napproved_by = ["north", "south"]'
WISHES = Wishes(owners=OWNERS, rule={"recipe_text": APPROVED, "baseline_alone": "true"})


@dataclass(frozen=True)
class Finished:
    """A run that ended well, by `sealift train` here and `sealift join` at each owner's.

    Attributes:
        found: The result that the command printed.
        holders: Those of the owners.
        said: What the command said besides.
    """

    world: World
    found: dict[str, Any]
    holders: list[dict[str, Any]]
    said: list[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    world = fresh_world(tmp_path_factory.mktemp("train"), WISHES)
    with job_run(world) as run:
        train = run.train()
        holders = [run.holder(owner) for owner in OWNERS]
        results = [summary(each) for each in (train, *holders)]
    return Finished(world, results[0], results[1:], train.errors)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    """The same job by the plan ``local``, which knows no approval."""
    wishes = replace(WISHES, rule={"baseline_alone": "true"})
    return train_here(fresh_world(tmp_path_factory.mktemp("local"), wishes))


def summary(role: Running) -> dict[str, Any]:
    assert role.end() == 0, role.errors
    return role.results[-1]


def output(world: World, verb: str, party: str, *more: str | Path) -> Running:
    words = ("output", verb, world.run, *world.home(party).unlocking)
    role = Running(
        verb, [*words, "--agreement", world.agreement, *more], cwd=world.path
    )
    role.end()
    return role


@pytest.mark.plan
def test_it_equals_local(finished: Finished, local: LocalRun) -> None:
    """Baselines of each owner alone beside it."""
    assert finished.found["weights"] == local.weights.to_text()
    assert finished.found["metrics"] == local.metrics
    assert set(local.metrics) == {"loss", *(f"alone.{owner}.loss" for owner in OWNERS)}
    assert any("in a sandbox (" in line for line in finished.said)
    assert any("epoch 1 of 2: 3 visits" in line for line in finished.said)
    lines = (finished.world.run / "history.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["purpose"] for row in rows] == ["train"] * 6 + ["heldout"] * 3
    measured = [row for row in rows if row["purpose"] == "heldout"]
    told = {
        row["owner"]: {n: pytest.approx(v) for n, v in row.items() if "loss" in n}
        for row in measured
    }
    expected = [{"receipts": 3, "failed": 0, "heldout": told[o]} for o in OWNERS]
    assert finished.holders == expected
    mean = sum(row["loss"] * row["rows"] for row in measured)
    mean /= sum(row["rows"] for row in measured)
    assert round(mean, 3) == local.metrics["loss"]  # digits of the output rule


@pytest.mark.plan
def test_the_model_opens_once_both_approved(
    finished: Finished,
    local: LocalRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(shutil.copytree(finished.world.path, tmp_path / "world"))
    names = {path.name for path in world.run.iterdir()}
    shares = {f"model.share.{owner}.json" for owner in ("north", "south")}
    history = {"history.jsonl", "history.csv", "report.html", "receipt.json"}
    sealed = {"manifest.json", "model.sealed", "model.key.json"}
    assert names == sealed | history | shares
    place = tmp_path / "model.safetensors"
    opening = ("open", "lab", "-o", place)
    assert "[approval-missing]" in output(world, *opening).error()
    assert output(world, "approve", "north", "--yes").process.returncode == 0
    assert "south must approve" in output(world, *opening).error()
    assert not place.exists()
    sealing = Sealing(world, tmp_path / "lab-serves", capsys)
    assert "south must approve" in sealing.refused(world.run)
    assert output(world, "approve", "south", "--yes").process.returncode == 0
    assert output(world, *opening).process.returncode == 0
    agreement = verify(load_signed(world.agreement))
    opened = open_output(world.run, identities()["lab"], agreement)
    assert opened.weights.to_text() == finished.found["weights"]
    assert opened.content == local.model
    assert "seccomp" in opened.manifest.sandbox
    model = load(place.read_bytes())  # with its facts in front
    assert model.keys() == load(opened.content).keys()
    assert all((model[n] == each).all() for n, each in load(opened.content).items())
    seal_for_serving(sealing, tmp_path, opened.content)


def seal_for_serving(sealing: Sealing, folder: Path, content: bytes) -> None:
    """`model seal RUN`: what is refused leaves nothing; then it is the run's model."""
    run, refused = sealing.world.run, sealing.refused
    assert refused(run, "north").endswith("[other-key]")
    assert refused(folder / "nowhere").endswith("[cannot-read]")
    assert refused(folder).endswith("[cannot-read]")  # no run's folder
    assert refused(run, agreement=plain_world().agreement).endswith("[other-agreement]")
    assert refused(run, form=sealing.world.job).endswith("[bad-form]")
    for name in ("model.sealed", "model.key.json", "manifest.json"):
        changed = folder / f"changed-{name}"
        shutil.copytree(run, changed)
        raw = bytearray((changed / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (changed / name).write_bytes(raw)
        line = refused(changed)
        assert line.endswith("]")
        assert not line.endswith("[bug]")
    assert not sealing.there().keys() - {"form.toml"}
    assert sealing.seal(run) == 0
    assert sealing.opened() == content
    assert "It is sealed already" in refused(run)  # what was there stays as it was
    elsewhere = folder / "elsewhere"
    assert refused(run, out=elsewhere).endswith("[key-exists]")  # in the vault
    assert not elsewhere.exists()


def test_a_run_without_asserts_ends_in_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`PYTHONOPTIMIZE` takes the asserts out of every role; nothing may hang on one."""
    wishes = Wishes(epochs=1)
    model = train_here(fresh_world(tmp_path / "local", wishes)).weights.to_text()
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    with job_run(fresh_world(tmp_path / "train", wishes)) as run:
        roles = run.train(), run.holder("north"), run.holder("east")
        assert summary(roles[0])["weights"] == model
        assert [summary(each)["receipts"] for each in roles[1:]] == [
            2,
            2,
        ]  # heldout, too
