"""A second run of the same parties with other settings: no new signature, and no old model."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.distributed.test_meeting import OWNERS, YES, Parties
from tests.sim.typed import Typed

pytestmark = pytest.mark.distributed
RECIPE = """
import torch
from torch import nn
from torch.nn import functional as F


class Reader(nn.Module):
    def __init__(self, hidden, rate):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.GELU(), nn.Linear(hidden, 10))
        self.rate = rate

    def forward(self, pixel):
        return self.layers(pixel / 16.0)

    def training_step(self, batch, step):
        return F.cross_entropy(self(batch["pixel"]), batch["digit"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.rate)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
        return [optimizer], [{"scheduler": warm, "interval": "step"}]


def build(hidden, rate=1e-2):
    return Reader(hidden, rate)


def evaluate(model, batch):
    right = (model(batch["pixel"]).argmax(dim=1) == batch["digit"]).sum()
    return {"accuracy": float(right)}
"""
JOB = """
[training]
epochs = {epochs}
batch_rows = 32
seed = 7
clip_norm = 1.0
evaluate_every = 1
measure = "accuracy"
keep = "best"
stop_after = 4

[parameters]
hidden = 16
rate = {rate}

[agreed]
runs = 3
epochs = {{ max = 6 }}
seed = {{ max = 9 }}
parameters.rate = {{ min = 0.001, max = 0.1 }}
"""


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    made = Parties(tmp_path)
    (tmp_path / "host" / "digits" / "recipe.py").write_text(RECIPE)
    yield made
    for each in made.typed:
        if each.process.poll() is None:
            each.kill()


def ask_for(parties: Parties, epochs: int = 1, rate: float = 0.01) -> None:
    job = parties.folder / "host" / "digits" / "job.toml"
    job.write_text(JOB.format(epochs=epochs, rate=rate))


def again(parties: Parties) -> Typed:
    """The host's command, once more."""
    words = ["host", "digits", "--listen", parties.address]
    return parties.type("host", *words)


def begin(parties: Parties) -> tuple[Typed, dict[str, Typed]]:
    """The host's command, and those of owners who stay."""
    host = parties.host("--invite", *OWNERS)
    owners = {}
    for name in OWNERS:
        parties.save(name)
        words = ["join", "invitation.txt", "train.csv", "--heldout", "heldout.csv"]
        owners[name] = parties.type(name, *words, "--stay", answers=YES)
    return host, owners


def test_owners_stay_and_the_host_changes_its_job(parties: Parties) -> None:
    ask_for(parties)
    host, owners = begin(parties)
    assert host.end() == 0, host.text[-3000:]
    asked = re.sub(r"\s+", " ", owners["north"].text.replace("sealift: ", ""))
    assert "rate 0.001 to 0.1" in asked
    assert "hidden 16" in asked
    assert "At most 3 different runs" in asked
    home = parties.folder / "host"
    first = (home / "model.safetensors").read_bytes()

    ask_for(parties, epochs=3, rate=0.02)
    second = again(parties)
    assert second.end() == 0, second.text[-3000:]
    assert (home / "model-2.safetensors").read_bytes() != first
    assert (home / "model.safetensors").read_bytes() == first
    for name in OWNERS:
        owners[name].wait_text("waiting for the host's next run")
        kept = parties.folder / name / "run-2" / "receipt.json"
        assert kept.read_bytes() == (home / "run-2" / "receipt.json").read_bytes()
    words = ["receipt", "verify", "run-2/receipt.json", "--with-log", "audit.db"]
    model = str(home / "model-2.safetensors")
    proved = parties.type("north", *words, "--model", model)
    assert proved.end() == 0, proved.text

    unchanged = again(parties)
    assert unchanged.end() == 0
    assert "model-2.safetensors" in unchanged.text
    ask_for(parties)
    first_again = again(parties)
    assert first_again.end() == 0
    assert "model.safetensors" in first_again.text

    ask_for(parties, epochs=7)
    outside = again(parties)
    assert outside.end() == 5
    assert "training.epochs = 7" in outside.text
    assert "0 to 6" in outside.text
    ask_for(parties, epochs=2)
    third = again(parties)
    assert third.end() == 0, third.text[-3000:]
    ask_for(parties, epochs=4)
    fourth = again(parties)
    assert fourth.end() == 5
    assert "[too-many-runs]" in fourth.text
    assert all(each.process.poll() is None for each in owners.values())


def test_owners_that_stay_follow_a_host_that_was_killed_into_another_run(
    parties: Parties,
) -> None:
    """Their ranks refuse it under the first run's job file, and their commands ask for it."""
    ask_for(parties, epochs=6)
    host, owners = begin(parties)
    host.wait_text("train epoch 1")
    host.kill()
    ask_for(parties, epochs=2, rate=0.02)
    second = again(parties)
    assert second.end() == 0, second.text[-3000:]
    assert (parties.folder / "host" / "model-2.safetensors").exists()
    for name in OWNERS:
        owners[name].wait_text("waiting for the host's next run")
        assert (parties.folder / name / "run-2" / "receipt.json").exists()


def test_a_run_that_was_cut_off_hands_out_the_best_epoch_of_a_calm_one(
    parties: Parties,
) -> None:
    """A rank and the host are killed in turn: schedulers and the best state go on."""

    def ask(stop_after: int) -> None:
        ask_for(parties, epochs=6)
        job = parties.folder / "host" / "digits" / "job.toml"
        text = job.read_text().replace("stop_after = 4", f"stop_after = {stop_after}")
        text = text.replace("[agreed]", "[agreed]\nstop_after = { max = 99 }")
        kept = "[run]\ncheckpoint_every = 1\ngather_s = 600\nrejoin_s = 600\n"
        job.write_text(f"{kept}{text}")

    def join(name: str, answers: tuple[tuple[str, str], ...] = ()) -> Typed:
        parties.save(name)
        words = ["join", "invitation.txt", "train.csv", "--heldout", "heldout.csv"]
        return parties.type(name, *words, "--stay", answers=answers)

    ask(98)
    host = parties.host("--invite", *OWNERS)
    owners = {name: join(name, YES) for name in OWNERS}
    host.wait_text("train epoch 2")
    owners["east"].kill()
    owners["east"] = join("east")
    host.wait_text("train epoch 4")
    host.kill()
    host = again(parties)
    assert host.end() == 0, host.text[-3000:]
    ask(99)  # an end that does not come either: the same bits
    calm = again(parties)
    assert calm.end() == 0, calm.text[-3000:]
    home = parties.folder / "host"
    cut_off = load_file(home / "model.safetensors")
    wanted = load_file(home / "model-2.safetensors")
    assert {n: each.tobytes() for n, each in cut_off.items()} == {
        n: each.tobytes() for n, each in wanted.items()
    }


def wait_for_receipt(owner: Typed, folder: Path) -> None:
    """Until an owner has what it gets last of a run."""
    while not (folder / "receipt.json").exists():
        assert owner.process.poll() is None, owner.text[-3000:]
        time.sleep(0.05)


def test_a_run_with_more_epochs_goes_on_from_the_one_before(parties: Parties) -> None:
    """Its model is that of a run which had as many epochs from the beginning."""
    home = parties.folder / "host"

    def ask(epochs: int, stop_after: int = 0) -> None:
        ask_for(parties, epochs=epochs)
        job = home / "digits" / "job.toml"
        text = job.read_text().replace("seed = 7", "seed = 7\nkeep_state = true")
        text = text.replace("evaluate_every = 1", "evaluate_every = 2")
        text = text.replace("stop_after = 4", f"stop_after = {stop_after}")
        text = text.replace("runs = 3", "runs = 4\nstop_after = { max = 99 }")
        job.write_text(text)

    ask(3)  # a measurement at its end that the longer run does not make
    host, owners = begin(parties)
    assert host.end() == 0, host.text[-3000:]
    asked = re.sub(r"\s+", " ", owners["north"].text.replace("sealift: ", ""))
    assert "its last checkpoint may stay, encrypted" in asked
    ask(5)
    second = again(parties)
    assert second.end() == 0, second.text[-3000:]
    assert "continues from the state that run 1 left, with epoch 4" in second.text
    assert "train epoch 1 of" not in second.text
    ask(6)
    third = again(parties)
    assert third.end() == 0, third.text[-3000:]
    assert "continues from the state that run 2 left, with epoch 6" in third.text
    owners["north"].wait_text("it continues from the state that run 2 left")
    wait_for_receipt(owners["north"], parties.folder / "north" / "run-3")
    verified = parties.type("north", "receipt", "verify", "run-3/receipt.json")
    assert verified.end() == 0, verified.text
    said = " ".join(verified.text.split())
    assert "at first from the last one of job digits" in said
    ask(6, stop_after=99)  # an end that does not come: all of it from the beginning
    calm = again(parties)
    assert calm.end() == 0, calm.text[-3000:]
    assert "It begins with epoch 1" in calm.text
    wanted = load_file(home / "model-4.safetensors")
    assert {n: each.tobytes() for n, each in wanted.items()} == {
        n: each.tobytes() for n, each in load_file(home / "model-3.safetensors").items()
    }
    wait_for_receipt(owners["north"], parties.folder / "north" / "run-4")
    assert not [*(parties.folder / "north").glob("run-4/state/rank-0/checkpoint-*")]
    assert not (parties.folder / "north" / "state").exists()
