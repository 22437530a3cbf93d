"""Schedulers and bounds of a step: where they are follows from steps and epochs alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sealift.errors import JobError
from sealift.train.loop.faults import REASONS
from sealift.train.loop.held import read_of
from sealift.train.loop.tasks import SliceId
from sealift.train.sandboxed.training import Training
from tests.sim.jobworld import RECIPE, Wishes, fresh_world, train_here
from tests.unit.train.ranked import World
from tests.unit.train.recipes import PLAIN, SETTINGS, load, table

MADE = "return torch.optim.AdamW(model.parameters(), lr=1e-2)"
BEGIN = (
    "from torch.optim import lr_scheduler as S\n"
    "    o = torch.optim.AdamW(model.parameters(), lr=1e-2)\n    "
)


def recipe_of(returns: str) -> str:
    assert MADE in PLAIN
    return PLAIN.replace(MADE, f"{BEGIN}return {returns}")


def rate(training: Training) -> float:
    return float(training.optimizer.param_groups[0]["lr"])


def train(training: Training, epoch: int, rows: int = 24, first: int = 0) -> None:
    training.train_slice(table(rows, epoch), [SliceId(epoch, "north", first)])


HALVES = "S.ExponentialLR(o, 0.5)"
FORMS = {
    "alone": ("o", 1.0),
    "in a list": ("[o]", 1.0),
    "two lists": (f"[o], [{HALVES}]", 0.5**2),
    "a pair": (f"o, {HALVES}", 0.5**2),
    "a dict": (f"{{'optimizer': o, 'lr_scheduler': {HALVES}}}", 0.5**2),
    "each step": (
        f"{{'optimizer': o, 'lr_scheduler': {{'scheduler': {HALVES}, 'interval': 'step'}}}}",
        0.5**9,
    ),
    "every second step": (
        f"[o], [{{'scheduler': {HALVES}, 'interval': 'step', 'frequency': 2}}]",
        0.5**4,
    ),
    "two of them": (
        f"[o], [{HALVES}, {{'scheduler': {HALVES}, 'interval': 'step'}}]",
        0.5**11,
    ),
}


@pytest.mark.parametrize(("returns", "factor"), FORMS.values(), ids=FORMS)
def test_each_form_is_called_when_it_says(returns: str, factor: float) -> None:
    training = Training(load(recipe_of(returns)), SETTINGS)
    for epoch in range(3):  # of three steps each
        train(training, epoch)
    assert rate(training) == pytest.approx(1e-2 * factor)


def test_an_epoch_of_several_visits_is_one_epoch() -> None:
    training = Training(load(recipe_of(f"[o], [{HALVES}]")), SETTINGS)
    for epoch in range(2):
        for visit in range(3):
            train(training, epoch, first=visit)
    assert rate(training) == pytest.approx(0.5e-2)


KINDS = {
    "one cycle": "S.OneCycleLR(o, 0.1, total_steps=40)",
    "cosine": "S.CosineAnnealingWarmRestarts(o, 5)",
    "a function": "S.LambdaLR(o, lambda n: 1 / (1 + n))",
    "in a row": "S.SequentialLR(o, [S.LinearLR(o, 0.1, total_iters=4), S.StepLR(o, 3)], [4])",
    "chained": "S.ChainedScheduler([S.LinearLR(o), S.ExponentialLR(o, 0.9)])",
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_going_on_from_a_state_has_the_same_bits(kind: str, interval: str) -> None:
    text = recipe_of(f"[o], [{{'scheduler': {kind}, 'interval': '{interval}'}}]")
    through = Training(load(text), SETTINGS)
    for epoch in range(4):
        train(through, epoch)
    state = None
    for epoch in range(4):  # a process each, as in a run
        training = Training(load(text), SETTINGS, state)
        train(training, epoch)
        state = training.state()
    assert state == through.state()


@pytest.mark.parametrize(
    ("returns", "reason"),
    [
        ("[o, o], []", "no-optimizer"),
        ("{'lr_scheduler': None}", "no-optimizer"),
        ("{'optimizer': o, 'monitor': 'loss'}", "no-optimizer"),
        ("o, 3", "no-scheduler"),
        ("o, S.StepLR(torch.optim.SGD(model.parameters(), lr=1), 1)", "no-scheduler"),
        (f"o, {{'scheduler': {HALVES}, 'interval': 'batch'}}", "no-scheduler"),
        (f"o, {{'scheduler': {HALVES}, 'frequency': 0}}", "no-scheduler"),
        (f"o, {{'scheduler': {HALVES}, 'strict': True}}", "no-scheduler"),
        (f"o, {{'scheduler': {HALVES}, 'monitor': 'loss'}}", "scheduler-measure"),
        ("o, S.ReduceLROnPlateau(o)", "scheduler-measure"),
    ],
)
def test_what_is_no_optimization_is_refused(returns: str, reason: str) -> None:
    with pytest.raises(JobError) as caught:
        Training(load(recipe_of(returns)), SETTINGS)
    assert REASONS[reason][0] in str(caught.value)


def test_a_state_of_other_schedulers_is_refused() -> None:
    state = Training(load(recipe_of(f"o, {HALVES}")), SETTINGS).state()
    with pytest.raises(JobError):
        Training(load(recipe_of("o")), SETTINGS, state)
    with pytest.raises(JobError):
        Training(load(recipe_of(f"[o], [{HALVES}, {HALVES}]")), SETTINGS, state)


def moved(clip_norm: float) -> float:
    settings = replace(SETTINGS, clip_norm=clip_norm)
    text = PLAIN.replace(MADE, "return torch.optim.SGD(model.parameters(), lr=1.0)")
    training = Training(load(text), settings)
    before = [each.clone() for each in training.model.parameters()]
    train(training, 0, rows=8)
    pairs = zip(training.model.parameters(), before, strict=True)
    return float(torch.cat([(p - was).detach().flatten() for p, was in pairs]).norm())


def test_a_gradient_is_not_longer_than_its_bound() -> None:
    assert moved(0.0) > 0.01
    assert moved(0.01) == pytest.approx(0.01, rel=1e-3)
    assert moved(100.0) == moved(0.0)


def test_steps_of_all_slices_together_are_bounded_and_scheduled() -> None:
    text = recipe_of(f"[o], [{{'scheduler': {HALVES}, 'interval': 'step'}}]")
    states = []
    for clip_norm in (0.0, 0.01):
        settings = replace(SETTINGS, clip_norm=clip_norm)
        slices, _told = World(text, [[20], [9]], settings).here()
        joint = slices[0].trainer.joint
        assert joint.tree == slices[1].trainer.joint.tree
        assert f'["float","{(1e-2 * 0.5**3).hex()}"]'.encode() in joint.tree
        states.append(joint)
    assert states[0].tensors != states[1].tensors


SCHEDULED = RECIPE.replace(
    "return torch.optim.AdamW(self.parameters(), lr=1e-2)",
    "optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)\n"
    "        rate = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)\n"
    "        return [optimizer], [{'scheduler': rate, 'interval': 'step'}]",
)


@pytest.mark.parametrize("sync", ["round", "step"])
def test_slices_of_different_length_have_one_rate_after_a_round(
    tmp_path: Path, sync: str
) -> None:
    """Owners have different numbers of rows: one that made fewer steps catches up."""
    assert SCHEDULED != RECIPE
    found = []
    for name, recipe in (("plain", RECIPE), ("scheduled", SCHEDULED)):
        slices = f'[slices]\ncount = 2\nrows = "owner"\nsync = {json.dumps(sync)}\n'
        wishes = Wishes(epochs=2, plan="local", slices=slices, recipe=recipe)
        model = train_here(fresh_world(tmp_path / name, wishes)).model
        found.append(read_of(model, 0, len(model)))
    assert found[0] != found[1]
