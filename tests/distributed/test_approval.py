"""A model that two owners must approve of, over real processes, by command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sealift.lab.demo.world import World
from sealift.release.signed import load_signed, verify
from sealift.train.handover import open_output
from tests.sim.jobrun import Running, job_run, key_words
from tests.sim.jobworld import Wishes, fresh_world, identities, plain_world
from tests.sim.sealedrun import Sealing

pytestmark = pytest.mark.distributed

OWNERS = ("north", "south")
RULE = {"recipe_text": 'false\napproved_by = ["north", "south"]'}


def output(world: World, verb: str, party: str, *more: str | Path) -> Running:
    words = ("output", verb, world.run, *key_words(world.home(party)))
    role = Running(
        verb, [*words, "--agreement", world.agreement, *more], cwd=world.path
    )
    role.end()
    return role


def test_the_model_opens_once_both_approved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wishes = Wishes(owners=OWNERS, rule=RULE)
    world = fresh_world(tmp_path, wishes)
    with job_run(world) as run:
        run.everybody(*OWNERS)
        assert run["orchestrator"].end() == 0, run["orchestrator"].errors
        found = run["orchestrator"].results[-1]
    names = {path.name for path in world.run.iterdir()}
    shares = {f"model.share.{owner}.json" for owner in OWNERS}
    assert names == {"manifest.json", "model.sealed", "model.key.json", *shares}
    place = tmp_path / "model.safetensors"
    opening = ("open", "lab", "-o", place)
    assert "[approval-missing]" in output(world, *opening).error()
    assert output(world, "approve", "north", "--yes").process.returncode == 0
    assert "approval of south" in output(world, *opening).error()
    assert not place.exists()
    sealing = Sealing(world, tmp_path / "lab-serves", capsys)
    assert "approval of south" in sealing.refused(world.run)
    assert output(world, "approve", "south", "--yes").process.returncode == 0
    assert output(world, *opening).process.returncode == 0
    agreement = verify(load_signed(world.agreement))
    opened = open_output(world.run, identities()["lab"], agreement)
    assert opened.weights.to_text() == found["weights"]
    assert place.read_bytes() == opened.content
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
