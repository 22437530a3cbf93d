"""Private steps: what is drawn, clipped and noised, and what of a step is told.

Bounds on what is drawn by chance are 8 standard deviations wide: one test in 10^14 fails by
chance alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from sealift.errors import JobError, UsageError
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.buckets import Bucket, Trained
from sealift.train.loop.faults import REASONS
from sealift.train.loop.tasks import SliceId, SliceTask, Together
from sealift.train.sandboxed import mechanism, privatesteps
from sealift.train.sandboxed.mechanism import (
    add_clipped,
    add_noise,
    draw_rows,
    room_for,
)
from sealift.train.sandboxed.privatesteps import SharedNoise
from sealift.train.sandboxed.training import Training
from tests.unit.train.recipes import LIGHTNING, PLAIN, SETTINGS, load, table

FIRST = SliceId(0, "north", 0)
TERMS = PrivateSteps(clip=0.5, noise=1.0, batch=8)
LINEAR = """
import torch
from torch import nn
from torch.nn import functional as F


def build():
    return nn.Linear(4, 2)


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=1.0)


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])
"""


def train(
    text: str = LINEAR, count: int = 64, terms: PrivateSteps = TERMS, *, steps: int = 8
) -> Training:
    training = Training(load(text), SETTINGS)
    training.train_privately(table(count), [FIRST], terms, steps=steps)
    return training


def weights(training: Training) -> Tensor:
    return torch.cat([each.detach().flatten() for each in training.model.parameters()])


def test_each_row_is_drawn_by_itself_with_the_same_chance() -> None:
    count, rate = 1 << 20, 0.25
    first, second = draw_rows(count, rate), draw_rows(count, rate)
    wide = 8 * math.sqrt(count * rate * (1 - rate))
    assert abs(len(first) - count * rate) < wide
    both = len(set(first.tolist()) & set(second.tolist()))
    assert abs(both - count * rate**2) < wide
    pairs = int((first[1:] - first[:-1] == 1).sum())
    assert abs(pairs - count * rate**2) < 2 * wide
    assert bool((first[1:] > first[:-1]).all())


def test_the_ends_of_the_range_of_chances() -> None:
    assert draw_rows(5, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert draw_rows(5, 0.0).tolist() == []


def test_no_seed_decides_what_is_drawn() -> None:
    drawn, noised = list[list[int]](), list[list[float]]()
    for _ in range(2):
        torch.manual_seed(1)
        drawn.append(draw_rows(1 << 10, 0.5).tolist())
        noised.append(add_noise(torch.zeros(8, dtype=torch.float64), 1.0).tolist())
    assert drawn[0] != drawn[1]
    assert noised[0] != noised[1]


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 37.5])
def test_noise_is_normal_and_lies_on_a_grid(sigma: float) -> None:
    count = 1 << 20
    noise = add_noise(torch.zeros(count, dtype=torch.float64), sigma)
    scaled = noise / sigma
    root = math.sqrt(count)
    assert abs(float(scaled.mean())) < 8 / root
    assert abs(float(scaled.square().mean()) - 1) < 8 * math.sqrt(2) / root
    assert abs(float((scaled**4).mean()) - 3) < 8 * math.sqrt(96) / root
    inside = float((scaled.abs() < 1).double().mean())
    assert abs(inside - math.erf(math.sqrt(0.5))) < 8 * 0.5 / root
    halves = scaled.view(2, -1)
    assert abs(float((halves[0] * halves[1]).mean())) < 8 / math.sqrt(count / 2)
    grid = 2.0 ** (math.floor(math.log2(sigma)) - 12)
    assert bool((torch.round(noise / grid) * grid == noise).all())


@pytest.mark.parametrize("units", [0, 1 << 24])
def test_gradients_that_are_one_memory_are_clipped_once(units: int) -> None:
    """Autograd gives `w + d` one gradient for both, which may be spread of one number too."""
    one = torch.full((1, 8), 1e6, dtype=torch.float64)
    spread = torch.full((1, 1), 3e6, dtype=torch.float64).expand(1, 8)
    totals = {name: torch.zeros(8, dtype=torch.float64) for name in "wds"}
    counts = torch.tensor([True])
    add_clipped({"w": one, "d": one, "s": spread}, counts, 0.5, totals, units=units)
    norm = math.sqrt(sum(float(each.square().sum()) for each in totals.values()))
    largest = units or 0.5
    assert 0.99 * largest < norm <= largest * (1 if units else 1 + 1e-12)
    assert torch.equal(totals["w"], totals["d"])
    assert float(one.max()) == 1e6


def test_the_sum_is_rounded_together_with_its_noise() -> None:
    """Else its last bits would be those of the rows (Mironov 2012)."""
    odd = torch.full((1 << 10,), 1 / 3, dtype=torch.float64)
    found = add_noise(odd, 1.0) * 2**12
    assert bool((found == found.round()).all())


def test_a_rows_gradient_is_clipped_over_all_parameters_together() -> None:
    found = {"a": torch.tensor([[3.0, 0.0], [0.3, 0.0]]), "b": torch.tensor([4.0, 0.4])}
    totals = {
        "a": torch.zeros(2, dtype=torch.float64),
        "b": torch.zeros((), dtype=torch.float64),
    }
    add_clipped(found, torch.tensor([True, True]), 1.0, totals)
    assert totals["a"].tolist() == pytest.approx([0.6 + 0.3, 0.0])
    assert float(totals["b"]) == pytest.approx(0.8 + 0.4)


def test_in_units_no_rows_norm_is_above_the_clip() -> None:
    """Cut towards zero, a row alone and a row beside others: what it adds is the same."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(64, 100_000, generator=generator)
    alone = torch.zeros(100_000, dtype=torch.float64)
    for each in (rows[:1], rows[:1] * 1e-3, rows[:1] * 1e9):
        alone.zero_()
        one = torch.tensor([True])
        add_clipped({"a": each}, one, 0.5, {"a": alone}, units=1 << 24)
        assert bool((alone == alone.round()).all())
        assert float(alone.norm()) <= 1 << 24
        expected = min(0.5, float(each.double().norm())) / 0.5 * (1 << 24)
        assert float(alone.norm()) == pytest.approx(expected, rel=1e-4)
    beside, without = (torch.zeros(100_000, dtype=torch.float64) for _ in range(2))
    for totals, counted in ((beside, 64), (without, 63)):
        counts = torch.arange(64) < counted
        add_clipped({"a": rows}, counts, 0.5, {"a": totals}, units=1 << 24)
    assert float((beside - without).norm()) <= 1 << 24


def test_ranks_that_share_the_noise_step_by_the_mean_of_all_ranks() -> None:
    """The parent is asked for each sum, also when this rank's own rows are used up."""
    asked = list[Tensor]()

    class Parent:
        def begin_sums(self, trained: Trained) -> None:
            assert trained.names == ("weight", "bias")

        def add_up(self, bucket: Bucket, gradient: memoryview) -> bytes:
            assert bucket.dtype == "int64"
            asked.append(torch.frombuffer(bytearray(gradient), dtype=torch.int64))
            return (asked[-1] * 3).numpy().tobytes()

    found = list[Training]()
    terms = PrivateSteps(clip=0.5, noise=1e-6, batch=16, honest_ranks=2)
    for own in (False, True):
        training, together = Training(load(LINEAR), SETTINGS), Together((16, 32, 16))
        shared = SharedNoise(
            together, training.state(), training.model, guard=training.guard,
            parent=cast(Any, Parent()), room=lambda length: memoryview(bytearray(length)),
        )  # fmt: skip
        training.train_privately(
            table(16), [FIRST], terms, steps=1, beside=int(own), shared=shared
        )
        found.append(training)
    alone = train(count=16, terms=terms, steps=1)
    assert torch.allclose(weights(found[0]), weights(alone), atol=1e-5)
    assert [bool(each.any()) for each in asked] == [True, True, False]
    assert found[1].step == 2


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_row_that_gives_no_number_and_one_that_fills_the_room_count_nothing(
    odd: float,
) -> None:
    found = {"a": torch.tensor([[1.0, odd], [0.5, 0.0], [7.0, 7.0], [0.0, odd]])}
    totals = {"a": torch.zeros(2, dtype=torch.float64)}
    add_clipped(found, torch.tensor([True, True, False, False]), 1.0, totals)
    assert totals["a"].tolist() == [0.5, 0.0]


def test_without_noise_it_is_the_mean_of_the_clipped_gradients() -> None:
    """Against autograd, row by row; every row is drawn."""
    terms = PrivateSteps(clip=0.5, noise=1e-6, batch=16)
    training = Training(load(LINEAR), SETTINGS)
    before, data = weights(training), table(16)
    total = torch.zeros_like(before)
    for row in range(16):
        batch = data.batch(torch.tensor([row]))
        loss, _ = training.loss(batch, "alone")
        loss.backward()
        own = torch.cat([p.grad.flatten() for p in training.model.parameters()])
        total += own * min(1.0, 0.5 / float(own.norm()))
    training.train_privately(data, [FIRST], terms, steps=1)
    assert torch.allclose(before - weights(training), total / 16, atol=1e-5)


def test_the_sum_is_divided_by_the_agreed_number() -> None:
    """By how many were drawn it would tell how many."""
    terms = PrivateSteps(clip=1e-3, noise=1e-6, batch=8)
    zeros, moved = weights(Training(load(LINEAR), SETTINGS)), list[Tensor]()
    for some in ([3], [3, 3, 3]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                privatesteps, "draw_rows", lambda rows, rate, s=some: torch.tensor(s)
            )
            moved.append(zeros - weights(train(terms=terms, steps=1)))
    assert torch.allclose(3 * moved[0], moved[1], rtol=1e-2, atol=1e-7)
    assert float(moved[0].norm()) == pytest.approx(1e-3 / 8, rel=1e-2)


def test_a_recipes_own_chance_does_not_follow_from_the_jobs_seed() -> None:
    """Masks go by a row's place: known ones would change with one row more before it."""
    text = LINEAR.replace(
        'model(batch["x"])', 'model(F.dropout(batch["x"], 0.5, model.training))'
    )
    terms = PrivateSteps(clip=0.5, noise=1e-6, batch=64)
    found = [weights(train(text, terms=terms, steps=1)) for _ in range(2)]
    assert not torch.allclose(*found, atol=1e-3)
    same = [weights(train(terms=terms, steps=1)) for _ in range(2)]
    assert torch.allclose(*same, atol=1e-5)


def test_a_step_that_draws_no_row_is_noise_alone() -> None:
    def nobody(count: int, rate: float) -> Tensor:
        return draw_rows(count, 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privatesteps, "draw_rows", nobody)
        assert float(weights(train(steps=1)).norm()) > 0


def test_a_step_computes_as_many_rows_however_many_it_drew() -> None:
    lengths, made = list[int](), privatesteps.row_gradients

    def counted(recipe: object, model: object, batch: dict[str, Tensor], step: int):  # type: ignore[no-untyped-def]
        lengths.append(len(batch["x"]))
        return made(recipe, model, batch, step)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privatesteps, "row_gradients", counted)
        patch.setattr(privatesteps, "_MOST_NUMBERS", 200)  # 20 rows of 10 parameters
        train(count=512, steps=6)
    room = room_for(512, TERMS.rate(512))
    assert len(set(lengths)) == 1
    assert 6 * room <= sum(lengths) < 6 * (room + 20)
    assert len(lengths) > 6


def test_a_sample_that_is_longer_than_its_room_is_not_cut() -> None:
    """A row that is left out would have another chance than the accountant was told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privatesteps, "room_for", lambda rows, rate: 1)
        terms = PrivateSteps(clip=1e-6, noise=1e-6, batch=64)
        zeros = weights(Training(load(LINEAR), SETTINGS))
        moved = (zeros - weights(train(terms=terms, steps=1))) * 64 / 1e-6
    assert float(moved.norm()) > 2  # one row moves it by 1 at most


def test_room_is_rarely_too_small() -> None:
    for count, rate in [(1000, 0.064), (100, 0.01), (60_000, 0.004), (7, 1.0)]:
        assert count * rate <= room_for(count, rate) <= count
    assert room_for(60_000, 256 / 60_000) < 512


def test_the_same_seed_gives_other_bits() -> None:
    assert bool((weights(train()) != weights(train())).any())


def test_what_it_draws_from_is_the_operating_system() -> None:
    asked = list[int]()
    genuine: Callable[[int], bytes] = os.urandom

    def counted(length: int) -> bytes:
        asked.append(length)
        return genuine(length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism.os, "urandom", counted)
        train(steps=1)
    # The recipe's own chance; rows; weights and biases of Linear(4, 2).
    assert asked == [8, 4 * 64, 16 * 4, 16 * 1]


@pytest.mark.parametrize("text", [PLAIN, LIGHTNING])
def test_recipes_of_either_form_train(text: str) -> None:
    training = train(text, terms=PrivateSteps(1.0, 0.5, 16), steps=4)
    assert training.step == 4


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("nn.Linear(4, 2)", "nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))", "batch-norm"),
        ("    return F", "    float(batch['x'].sum())\n    return F", "row-gradients"),
        ("    return F", "    if batch['x'].sum() > 0:\n        pass\n    return F", "row-gradients"),
    ],
)  # fmt: skip
def test_what_mixes_rows_or_cannot_be_taken_apart_is_refused(
    old: str, new: str, reason: str
) -> None:
    with pytest.raises(JobError) as raised:
        train(LINEAR.replace(old, new))
    said, fix = REASONS[reason]
    assert raised.value.why == said
    assert raised.value.fix == fix
    assert raised.value.code == "bad-recipe"


def test_steps_that_others_take_part_in_are_not_private() -> None:
    for more in ({"together": Together((8,))}, {"outsourced": True}):
        with pytest.raises(UsageError):
            SliceTask("train", SETTINGS, private=TERMS, **more)  # type: ignore[arg-type]
