"""Attacks on what a private step lets out: inversion, membership, and an audit with canaries.

The audit estimates epsilon from below, with many canaries in one run (Steinke, Nasr and
Jagielski 2023): each has a direction of its own, so that scores of different canaries are
independent. A threshold that is fixed beforehand gives how many were rightly and how many
wrongly taken for members; the exact bounds of Clopper and Pearson, at 10^-7 each, give what
epsilon is at least. So a true claim is contradicted once in 5 million runs. Sabotaged
steps miss the claim by so much that they are found as surely.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import beta
from torch import Tensor

from sealift.collective import masked
from sealift.collective.announcement import Algorithm, Reduction
from sealift.collective.masked import MaskedSums
from sealift.data.loader.rowtensors import column_views
from sealift.data.schema.document import parse_schema
from sealift.numeric.gaussian import draw_discrete_gaussian
from sealift.release.accountant import PrivateRound, spent_epsilon
from sealift.release.agreement import Between
from sealift.release.agreement.sums import COUNTS, SumEncoding
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.buckets import Trained
from sealift.train.loop.stepsums import StepSums
from sealift.train.loop.tasks import SliceId, Together
from sealift.train.ranks.sumsonly import NoisedSteps, step_group
from sealift.train.sandboxed import privatesteps
from sealift.train.sandboxed.mechanism import add_noise
from sealift.train.sandboxed.privatesteps import SharedNoise
from sealift.train.sandboxed.training import GroupRows, Training
from sealift.travel.settings import TrainingSettings
from tests.unit.collective.test_masked import heard_wires, masked_of, on_ranks
from tests.unit.train.recipes import load
from tests.worlds.consortium import TRAINING

DELTA: Final = 1e-5
DOUBT: Final = 1e-7  # of each bound
NORMAL: Final = NormalDist()
WHERE: Final = SliceId(0, "north", 0)

CANARIES = """
import torch
from torch import nn


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Parameter(torch.zeros(COUNT))


def build():
    return Weights()


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=1.0)


def loss(model, batch):
    its_own = (torch.arange(COUNT) == batch["place"]) * batch["length"]
    return -(model.each @ its_own.float())
"""
SCHEMA = """
[[fields]]
name = "place"
dtype = "int64"
classes = COUNT

[[fields]]
name = "length"
dtype = "float32"
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small operations wait for each other's threads longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def canary_table(members: Tensor) -> GroupRows:
    """A row for each canary; of one that is no member it has no gradient.

    A member's gradient is ten times as long as the clip lets it be.
    """
    schema = parse_schema(SCHEMA.replace("COUNT", str(len(members))).encode())
    raw = torch.zeros(len(members), schema.row_bytes, dtype=torch.uint8)
    columns = column_views(raw, schema)
    columns["place"][:] = torch.arange(len(members))
    columns["length"][:] = members * 10.0
    return GroupRows([raw], schema)


def increments(members: Tensor, terms: PrivateSteps) -> list[Tensor]:
    """What each step of one round told: all sums, as any reader of all states has them."""
    recipe = load(CANARIES.replace("COUNT", str(len(members))))
    training = Training(recipe, TrainingSettings(seed=3, batch_rows=terms.batch))
    (weights,) = training.model.parameters()
    seen = [weights.detach().clone()]

    def look() -> None:
        seen.append(weights.detach().clone())

    training.train_privately(
        canary_table(members),
        [WHERE],
        terms,
        steps=terms.steps(len(members)),
        after_step=look,
    )
    look()
    return [(after - before) * terms.batch for before, after in pairwise(seen)]


def accounted(terms: PrivateSteps, rows: int) -> float:
    """Epsilon of one round of drawn rows; less than brokers count, who round it up."""
    event = PoissonSampledDpEvent(terms.rate(rows), GaussianDpEvent(terms.noise))
    accountant = PLDAccountant()
    accountant.compose(event, terms.steps(rows))
    tight = float(accountant.get_epsilon(DELTA))
    ran = PrivateRound(terms.noise, terms.rate(rows), terms.steps(rows))
    assert tight < spent_epsilon([ran], DELTA)
    return tight


def rates(scores: Tensor, members: Tensor, threshold: float) -> tuple[float, float]:
    """Of members at least so many are found, and of others at most so many wrongly."""
    found, others = (scores > threshold)[members], (scores > threshold)[~members]
    hits, wrong = int(found.sum()), int(others.sum())
    least = beta.ppf(DOUBT, hits, len(found) - hits + 1) if hits else 0.0
    most = beta.ppf(1 - DOUBT, wrong + 1, len(others) - wrong)
    return float(least), float(most)


def epsilon_at_least(scores: Tensor, members: Tensor, threshold: float) -> float:
    """Of any mechanism: (epsilon, delta) bounds how many can be found."""
    least, most = rates(scores, members, threshold)
    return math.log(max(least - DELTA, 1e-9) / most)


def epsilon_of_normal(scores: Tensor, members: Tensor, threshold: float) -> float:
    """Of normal noise on whole sums, which two rates determine (Nasr and others 2023)."""
    least, most = rates(scores, members, threshold)
    shift = NORMAL.inv_cdf(least) - NORMAL.inv_cdf(most)
    if shift <= 0:
        return 0.0
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(1 / shift))
    return float(accountant.get_epsilon(DELTA))


def coins(count: int) -> Tensor:
    return torch.tensor([secrets.randbits(1) for _ in range(count)], dtype=torch.bool)


def genuine(_patch: pytest.MonkeyPatch) -> None:
    """As it is."""


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        privatesteps, "add_noise", lambda total, sigma: add_noise(total, sigma / 2)
    )


def no_clip(patch: pytest.MonkeyPatch) -> None:
    made = privatesteps.add_clipped

    def unclipped(
        found: Any, counts: Any, clip: float, totals: Any, *, units: int
    ) -> None:
        unit = 1e9 / clip  # of whole numbers, a unit stays what it is
        made(found, counts, 1e9, totals, units=round(units * unit))

    patch.setattr(privatesteps, "add_clipped", unclipped)


@pytest.mark.parametrize("sabotage", [genuine, half_the_noise, no_clip])
def test_an_audit_of_whole_sums(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps of all rows: mu is 1, and 2 with half of the noise."""
    members = coins(2000)
    terms = PrivateSteps(clip=1.0, noise=2.0, batch=500)
    monkeypatch.setattr(PrivateSteps, "rate", lambda self, rows: 1.0)
    sabotage(monkeypatch)
    scores = torch.stack(increments(members, terms)).mean(0)
    steps = [PrivateRound(terms.noise, 1.0, 1)] * terms.steps(len(members))
    low = epsilon_of_normal(scores, members, 0.5)
    assert (low > spent_epsilon(steps, DELTA)) is (sabotage is not genuine)


def test_an_audit_finds_a_debit_that_was_forgotten() -> None:
    """Of four equal rounds one was counted: mu is 2, and 1 of the one."""
    members = coins(2000)
    terms = PrivateSteps(clip=1.0, noise=1.0, batch=len(members))
    rounds = [increments(members, terms)[0] for _ in range(4)]
    debits = [PrivateRound(terms.noise, 1.0, 1)] * len(rounds)
    low = epsilon_of_normal(torch.stack(rounds).mean(0), members, 0.5)
    assert spent_epsilon(debits[:1], DELTA) < low < spent_epsilon(debits, DELTA)


SHARED: Final = PrivateSteps(clip=1.0, noise=1.0, batch=2000, honest_ranks=4)
RANKS: Final = 5


def told_by_ranks(members: Tensor, silent: set[int]) -> Tensor:
    """What one step of all ranks told in whole: rows of rank 0, and noise.

    Args:
        members: Rows of rank 0; the other ranks bring zeros.
        silent: Ranks that add no noise, and mask what they send as agreed.
    """
    rule = replace(
        TRAINING, plans=("ddp",), rows=("owner",), prepare=(False,), sums=("only",),
        sync=("step",), slices=Between(RANKS, RANKS), privacy=SHARED,
    )  # fmt: skip
    recipe = load(CANARIES.replace("COUNT", str(len(members))))
    settings = TrainingSettings(seed=3, batch_rows=SHARED.batch)
    training = Training(recipe, settings)
    (weights,) = training.model.parameters()
    before, state = weights.detach().clone(), training.state()
    together = Together((len(members),) * RANKS, units=True)

    class Silent(NoisedSteps):
        def all_reduce(self, tensor: Any) -> None:
            self._sums.add_up(tensor, COUNTS)

    def work(rank: int, sums: MaskedSums) -> None:
        group: Any = step_group(sums._group, sums, rule)
        if rank in silent:
            group = Silent(sums, SHARED)
        steps = StepSums(group, rank, together, batch_rows=SHARED.batch, state=state)
        if rank:
            steps.begin(Trained(("each",)))
            for bucket in steps._buckets:
                steps.add_up(bucket, bytes(8 * bucket.elements))
            return
        shared = SharedNoise(
            together, state, training.model, guard=training.guard,
            parent=cast(Any, SimpleNamespace(begin_sums=steps.begin, add_up=steps.add_up)),
            room=lambda length: memoryview(bytearray(length)),
        )  # fmt: skip
        training.train_privately(
            canary_table(members), [WHERE], SHARED, steps=1, shared=shared
        )

    assert on_ranks(work, world=RANKS) == [None] * RANKS
    return (weights.detach() - before) * SHARED.batch * RANKS


def half_of_each_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        masked,
        "draw_discrete_gaussian",
        lambda count, variance: draw_discrete_gaussian(count, variance // 4),
    )


@pytest.mark.parametrize(
    ("sabotage", "silent"),
    [
        (genuine, set()),
        (genuine, {4}),
        (genuine, {1, 2, 3, 4}),
        (half_of_each_part, {4}),
        (no_clip, {4}),
    ],
)
def test_an_audit_of_noise_that_ranks_share(
    sabotage: Callable[[pytest.MonkeyPatch], None],
    silent: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim holds as long as four of five ranks add their parts: mu is then 1.

    It is 2 with the part of one rank alone, and with four halves.
    """
    members = coins(SHARED.batch)
    sabotage(monkeypatch)
    scores = told_by_ranks(members, silent)
    step = PrivateRound(SHARED.noise, SHARED.rate(len(members)), 1)
    low = epsilon_of_normal(scores, members, 0.5)
    holds = sabotage is genuine and len(silent) <= RANKS - SHARED.honest_ranks
    assert (low > spent_epsilon([step], DELTA)) is not holds


def in_order(patch: pytest.MonkeyPatch) -> None:
    """Every row once, in the table's order: its step is known."""
    at = 0

    def next_rows(rows: int, rate: float) -> Tensor:
        nonlocal at
        count = round(rows * rate)
        at += count
        return torch.arange(at - count, at)

    patch.setattr(privatesteps, "draw_rows", next_rows)


@pytest.mark.parametrize("sabotage", [genuine, in_order])
def test_an_audit_of_rows_that_are_drawn(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 steps of 10 of 4,000 rows: the claim rests on nobody knowing which."""
    members = coins(4000)
    terms = PrivateSteps(clip=1.0, noise=0.8, batch=10)
    sabotage(monkeypatch)
    told = torch.stack(increments(members, terms))
    places = torch.arange(len(members))
    scores = told[places // terms.batch, places]
    low = epsilon_at_least(scores, members, 1.6 * terms.noise)
    claimed = accounted(terms, len(members))
    assert (low > claimed) is (sabotage is not genuine)


# Inversion: of a layer's gradient and its bias's, rows that alone use a unit can be read off.

WIDE = 32
UNITS = 64
INVERTED = f"""
import torch
from torch import nn
from torch.nn import functional as F


def build():
    return nn.Sequential(nn.Linear({WIDE}, {UNITS}), nn.ReLU(), nn.Linear({UNITS}, 2))


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=1.0)


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])
"""
INVERTED_SCHEMA = f"""
[[fields]]
name = "x"
dtype = "float32"
shape = [{WIDE}]
min = -3.0
max = 3.0

[[fields]]
name = "y"
dtype = "int64"
classes = 2
"""


def two_rows() -> GroupRows:
    schema = parse_schema(INVERTED_SCHEMA.encode())
    raw = torch.zeros(2, schema.row_bytes, dtype=torch.uint8)
    columns = column_views(raw, schema)
    columns["x"][:] = torch.randn(2, WIDE, generator=torch.Generator().manual_seed(5))
    columns["y"][:] = torch.tensor([0, 1])
    return GroupRows([raw], schema)


def invert(weight: Tensor, bias: Tensor, rows: Tensor) -> float:
    """How far the best guess is from one of the rows, by its length."""
    guesses = weight / bias.unsqueeze(1)
    guesses = guesses[guesses.isfinite().all(1)]
    far = (guesses.unsqueeze(1) - rows).norm(dim=2) / rows.norm(dim=1)
    return float(far.min()) if len(guesses) else math.inf


def gradients_of(rows: GroupRows, terms: PrivateSteps | None) -> list[Tensor]:
    """Of the first layer, weight and bias: as one step of plain gradient descent tells them."""
    training = Training(load(INVERTED), TrainingSettings(seed=1, batch_rows=2))
    before = [each.detach().clone() for each in training.model.parameters()]
    if terms is None:
        training.train_slice(rows, [WHERE])
    else:
        training.train_privately(rows, [WHERE], terms, steps=1)
    after = [each.detach() for each in training.model.parameters()]
    return [before[0] - after[0], before[1] - after[1]]


def test_two_rows_are_read_off_an_open_step_and_not_off_a_private_one() -> None:
    """Noise makes another row of each guess: none of 64 is that near in 32 dimensions."""
    rows = two_rows()
    own = rows.batch(torch.arange(2))["x"]
    terms = PrivateSteps(clip=1.0, noise=1.0, batch=2)
    assert invert(*gradients_of(rows, None), own) < 1e-3
    assert invert(*gradients_of(rows, terms), own) > 0.3


@pytest.mark.parametrize("how", ["open", "only"])
def test_two_rows_are_read_off_an_open_part_and_not_off_a_masked_one(how: str) -> None:
    """What the first rank hears of the second one's step, where all parts are added up.

    Of a sum of few rows some could be read off as well, whoever they belong to: masks hide
    parts, and noise hides rows.
    """
    rows = two_rows()
    own = rows.batch(torch.arange(2))["x"]
    step = torch.cat([each.flatten() for each in gradients_of(rows, None)]).numpy()
    wires = heard_wires()

    def work(rank: int, sums: MaskedSums) -> None:
        mine = step.copy() if rank == 1 else np.zeros_like(step)
        if how == "open":
            sums._group.all_reduce(mine, Reduction.SUM, Algorithm.ONE_PHASE)
        else:
            sums.add_up(mine, SumEncoding(1.0, 26, 32), Algorithm.ONE_PHASE)

    on_ranks(work, wires=wires)
    best = []
    for heard in masked_of(wires, 0, step.nbytes):
        if how == "open":
            numbers = torch.from_numpy(np.frombuffer(heard, np.float32).copy())
        else:
            codes = torch.from_numpy(np.frombuffer(heard, np.int32).copy())
            numbers = codes.float() * 2.0**-26
        best.append(
            invert(
                numbers[: UNITS * WIDE].view(UNITS, WIDE), numbers[UNITS * WIDE :], own
            )
        )
    assert len(best) >= 2
    assert (min(best) < 1e-3) is (how == "open")
    assert min(best) < 1e-3 or min(best) > 0.3


# Membership: rows with labels that follow from nothing are learned by heart, if at all.

LEARNED: Final = 200


def strangers() -> tuple[GroupRows, GroupRows]:
    """All rows, and the half of them that is learned."""
    schema = parse_schema(INVERTED_SCHEMA.encode())
    raw = torch.zeros(2 * LEARNED, schema.row_bytes, dtype=torch.uint8)
    columns = column_views(raw, schema)
    generator = torch.Generator().manual_seed(7)
    columns["x"][:] = torch.randn(2 * LEARNED, WIDE, generator=generator).clamp(-3, 3)
    columns["y"][:] = torch.randint(2, (2 * LEARNED,), generator=generator)
    return GroupRows([raw], schema), GroupRows([raw[:LEARNED]], schema)


def told_apart(model: torch.nn.Module, rows: GroupRows) -> float:
    """How often a row that was learned has a smaller loss than one that was not (AUC)."""
    batch = rows.batch(torch.arange(2 * LEARNED))
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(
            model(batch["x"]), batch["y"], reduction="none"
        )
    inside, outside = losses[:LEARNED], losses[LEARNED:]
    return float((inside.unsqueeze(1) < outside).float().mean())


def test_members_are_found_by_their_loss_and_not_after_private_steps() -> None:
    """By chance alone 0.65 is met once in 10^7: its standard deviation is 0.029."""
    rows, own = strangers()
    settings = TrainingSettings(seed=1, batch_rows=20)
    learned = load(INVERTED.replace("lr=1.0", "lr=0.5"))
    plain = Training(learned, settings)
    for epoch in range(30):
        plain.train_slice(own, [SliceId(epoch, "north", 0)])
    assert told_apart(plain.model, rows) > 0.8
    terms = PrivateSteps(clip=1.0, noise=4.0, batch=20)
    private = Training(load(INVERTED.replace("lr=1.0", "lr=0.1")), settings)
    private.train_privately(own, [WHERE], terms, steps=10 * terms.steps(LEARNED))
    assert 0.35 < told_apart(private.model, rows) < 0.65
