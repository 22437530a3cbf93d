"""A rank that lies: others compute what it says, or compare it, and name it (rules O5, N4).

Real trainers, rounds and groups of two or three ranks in one process; one of them is odd.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from sealift.codec import decode, encode
from sealift.collective.group import SealedGroup
from sealift.data.schedule.visits import Stop, VisitBatch
from sealift.errors import MalformedError, SealiftError
from sealift.ids import Digest
from sealift.release.agreement import Purpose
from sealift.train.loop.averaging import Contribution, mean_state
from sealift.train.loop.held import read_of
from sealift.train.loop.states import (
    TensorBytes,
    TrainerState,
    TrainingState,
    pack_tensors,
    state_digest,
)
from sealift.train.loop.trainer import Trainer
from sealift.train.output.accounts import TableUse, Uses
from sealift.train.ranks.rounds import (
    GroupRounds,
    PassReport,
    RankIntroduction,
    RankNumbers,
)
from sealift.train.ranks.sumsonly import SumsOnly
from sealift.train.sandboxed.recipe import let_through
from tests.sim.inplace import InPlace
from tests.sim.wires import simulated_wires
from tests.unit.train.joints import cargo_of, resource
from tests.unit.train.recipes import PLAIN, SETTINGS, rows

ROWS, STEPS = 32, -(-32 // SETTINGS.batch_rows)
RECIPE = PLAIN.replace("nn.Dropout(0.2), ", "")
GROWS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(2))
    def training_step(self, batch, step):
        found = self.layer(batch["x"])
        self.seen = torch.cat([self.seen, found.detach().mean(0)[:1]])
        return nn.functional.cross_entropy(found, batch["y"])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
def build():
    return Model()
"""
_ONE = threading.Lock()  # torch's random streams are the process's
Tell = Callable[[PassReport], PassReport]


def honest(report: PassReport) -> PassReport:
    return report


@dataclass
class Ranked:
    """One of the ranks, and what ended it."""

    number: int
    trainer: Trainer
    rounds: Any = None
    error: SealiftError | None = None
    reports: tuple[PassReport, ...] = ()

    def train(self, epoch: int) -> None:
        self.reports = self.rounds.run("train", epoch)


@dataclass
class World:
    """Ranks of 32 rows each.

    Attributes:
        ranks: How many.
        odd: The number of the one that lies.
        tell: What it makes of its reports.
        group: The kind of its end of the group.
        max_norm: Of a round.
        sums: Of ranks that learn sums alone.
    """

    ranks: int = 3
    odd: int = 2
    tell: Tell = honest
    group: type[SealedGroup] = SealedGroup
    recipe: str = RECIPE
    max_norm: float = 0.0
    sums: Callable[[SealedGroup], SumsOnly] | None = None
    epochs: int = 2
    found: list[Ranked] = field(default_factory=list)

    @property
    def plans(self) -> list[list[VisitBatch]]:
        return [
            [
                VisitBatch(epoch, "train", epoch, (self._stop(rank, epoch),))
                for epoch in range(self.epochs)
            ]
            for rank in range(self.ranks)
        ]

    def run(self, work: Callable[[Ranked], None] | None = None) -> list[Ranked]:
        """What each rank came to."""
        wires = simulated_wires(self.ranks)
        work = work or (lambda rank: rank.train(0))
        self.found = [self._rank(number) for number in range(self.ranks)]

        def one(rank: Ranked) -> None:
            odd = rank.number == self.odd
            kind = self.group if odd else SealedGroup
            try:
                with kind(rank.number, wires[rank.number]) as group:
                    rank.rounds = GroupRounds(
                        group,
                        rank.trainer,
                        self.plans,
                        self._work(rank),
                        max_norm=self.max_norm,
                        sums=self.sums(group) if self.sums else None,
                    )
                    if odd:
                        share = rank.rounds._share
                        rank.rounds._share = lambda own: share(
                            self.tell(own) if isinstance(own, PassReport) else own
                        )
                    work(rank)
            except SealiftError as error:
                rank.error = error

        threads = [threading.Thread(target=one, args=(each,)) for each in self.found]
        for each in threads:
            each.start()
        for each in threads:
            each.join(120)
            assert not each.is_alive()
        return self.found

    def named(self) -> list[tuple[str, tuple[int, ...]]]:
        """What every honest rank says of whom."""
        return [
            (each.error.code, each.error.ranks) if each.error else ("", ())
            for each in self.found
            if each.number != self.odd
        ]

    def _rank(self, number: int) -> Ranked:
        place = InPlace(
            {"recipe.py": self.recipe.encode()}, "recipe.py", guard=let_through
        )
        trainer = Trainer(place, SETTINGS, number=number)
        with _ONE:
            trainer.build()
        return Ranked(number, trainer)

    def _work(self, rank: Ranked) -> Any:
        def work(purpose: Purpose, epoch: int) -> tuple[tuple[RankNumbers, ...], Uses]:
            own, seed = self._stop(rank.number, epoch), rank.number + 5
            loaded = cargo_of(
                resource(own.holder, ROWS), rows(ROWS, seed=seed), epoch=epoch
            )
            with _ONE:
                rank.trainer.work([loaded], "train")
            use = TableUse(resource=own.resource, purpose="train", visits=1)
            receipt = Digest.of(f"{rank.number}/{epoch}".encode())
            return (RankNumbers(stop=own, metrics={}),), Uses((use,), (receipt,))

        return work

    def _stop(self, rank: int, epoch: int) -> Stop:
        return Stop(epoch, f"o{rank}", f"o{rank}-train", "train", 0, ROWS)


def test_honest_ranks_hold_the_same_state_and_statistics() -> None:
    """Control: the model, the optimizer and the steps of a round on every rank."""

    def twice(rank: Ranked) -> None:
        rank.train(0)
        rank.train(1)

    found = World().run(twice)
    assert [each.error for each in found] == [None] * 3
    assert len({each.trainer.joint for each in found}) == 1
    assert found[0].trainer.steps == 2 * STEPS


@pytest.mark.parametrize("place", [0, 1])
def test_a_bit_that_changes_beside_the_training_is_in_no_mean(place: int) -> None:
    """H1: what a round began with and what it came to are digested before the mean."""

    def damage(rank: Ranked) -> None:
        train = rank.rounds._work

        def work(purpose: Purpose, epoch: int) -> Any:
            began = rank.trainer.joint
            told = train(purpose, epoch)
            if rank.number == 1:
                state = (began, rank.trainer.joint)[place]
                tensors = bytearray(read_of(state.tensors, 0, len(state.tensors)))
                tensors[-1] ^= 1
                object.__setattr__(state, "tensors", bytes(tensors))
            return told

        rank.rounds._work = work
        rank.train(0)

    found = World(odd=-1).run(damage)
    codes = [each.error and each.error.code for each in found]
    assert codes == ["state-changed"] * 3


def of_itself(**lie: Any) -> Tell:
    return lambda report: replace(report, **lie)


@pytest.mark.parametrize(
    "lie",
    [
        of_itself(steps=10**6),
        of_itself(steps=2**53 - 1),
        of_itself(steps=0),
        of_itself(form=None),
        of_itself(sums=b"sums of a pass that makes none"),
        of_itself(code="no-such-code\x1b[2J"),
    ],
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_cannot_be_true_is_refused_on_every_rank(lie: Tell, ranks: int) -> None:
    world = World(ranks=ranks, odd=ranks - 1, tell=lie)
    found = world.run()
    assert world.named() == [("untrue-report", (ranks - 1,))] * (ranks - 1)
    assert {each.trainer.steps for each in found} == {STEPS}  # no sum was taken over


@pytest.mark.parametrize(
    ("of_the_job", "code"), [(True, "bad-row"), (False, "rank-failed")]
)
def test_of_a_failed_rank_others_hear_a_code(of_the_job: bool, code: str) -> None:
    world = World(tell=of_itself(code="bad-row", of_the_job=of_the_job))
    world.run()
    assert world.named() == [(code, (2,))] * 2


def test_an_errors_own_line_does_not_travel() -> None:
    def fail(rank: Ranked) -> None:
        def work(purpose: Purpose, epoch: int) -> Any:
            raise MalformedError("/home/south/rows.sealed is no table", code="bad-row")

        if rank.number == 2:
            rank.rounds._work = work
        rank.train(0)

    found = World(odd=-1).run(fail)
    assert "rows.sealed" in str(found[2].error)
    assert all("rows.sealed" not in str(each.error) for each in found[:2])
    assert [each.error and each.error.ranks for each in found[:2]] == [(2,)] * 2


class TwoFaced(SealedGroup):
    """Tells rank 1 other reports than rank 0."""

    def _send_all(self, message: Any) -> None:
        for number, peer in self._peers.items():
            raw = bytes(message)
            if number == 1 and raw[:1] == b"{":
                said = decode(PassReport, raw.rstrip(b"\0"))
                metrics = {"loss": 0.5}
                parts = tuple(replace(each, metrics=metrics) for each in said.parts)
                raw = encode(replace(said, parts=parts))[: len(raw)].ljust(
                    len(raw), b"\0"
                )
            peer.send(raw)


class OtherSum(SealedGroup):
    """Tells rank 1 another sum of what it adds up."""

    summing = False
    more = 1e-5  # of second moments of the optimizer: no weight of now

    def all_reduce(self, tensor: Any, *how: Any) -> None:
        self.summing = tensor.dtype == np.float32
        super().all_reduce(tensor, *how)
        self.summing = False

    def _send_all(self, message: Any) -> None:
        for number, peer in self._peers.items():
            if self.summing and number == 1:
                other = np.frombuffer(bytes(message), np.float32).copy()
                other[-40:] += self.more
                peer.send(other.data)
            else:
                peer.send(message)


def loud(report: PassReport) -> PassReport:
    """With numbers, so that a shorter report has room for others."""
    parts = tuple(replace(each, metrics={"loss": 0.25}) for each in report.parts)
    return replace(report, parts=parts)


class NoSum(OtherSum):
    """Tells rank 1 alone a sum that is no number."""

    more = float("nan")


@pytest.mark.parametrize("kind", [TwoFaced, OtherSum, NoSum])
def test_who_tells_two_ranks_two_things_is_named(kind: type[SealedGroup]) -> None:
    world = World(group=kind, tell=loud)
    found = world.run()
    assert world.named() == [("ranks-diverged", (2, 1)), ("ranks-diverged", (2,))]
    assert found[2].error is not None


def test_a_sum_that_is_no_number_for_anybody_ends_the_round_everywhere() -> None:
    """Control: what a rank brings is its own, and nobody told two things."""

    class BringsNone(SealedGroup):
        def all_reduce(self, tensor: Any, *how: Any) -> None:
            if tensor.dtype == np.float32:
                tensor[-1] = np.nan
            super().all_reduce(tensor, *how)

    world = World(group=BringsNone)
    world.run()
    assert world.named() == [("not-finite", ())] * 2


def test_a_rank_that_says_that_it_heard_something_else_is_named() -> None:
    """Of who is accused falsely: it knows what it told."""

    class Slanders(SealedGroup):
        def exchange(self, words: bytes) -> list[bytes]:
            if len(words) == 3 * 32:  # digests of what it heard
                words = b"\1" * 32 + words[32:]
            return super().exchange(words)

    world = World(group=Slanders)
    world.run()
    assert world.named() == [("ranks-diverged", (2,)), ("ranks-diverged", (0, 2))]


@pytest.mark.parametrize("part", ["tensors", "tree", "step"])
def test_a_rank_that_goes_on_from_another_state_is_found(part: str) -> None:
    """Of two ranks nobody can say which one is right: both are named."""

    def goes_on(rank: Ranked) -> None:
        join = rank.trainer.join

        def other(state: TrainingState) -> None:
            tensors = bytearray(state.tensors)
            tensors[-1] ^= 1
            lies = {
                "tensors": bytes(tensors),
                "tree": state.tree[:-1] + b"?",  # as long as before
                "step": state.step + 1,
            }
            join(replace(state, **{part: lies[part]}))

        if rank.number == 1:
            rank.trainer.join = other  # type: ignore[method-assign]
        rank.train(0)

    world = World(ranks=2, odd=-1)
    world.run(goes_on)
    assert world.named() == [("ranks-diverged", (1, 0))] * 2


def test_the_optimizer_is_part_of_what_is_compared() -> None:
    """Control: what differs in it is not in the model's digest."""
    moved = np.zeros(3, np.float32)
    tensor = TensorBytes("F32", (3,), memoryview(moved.tobytes()))
    before = TrainingState(1, pack_tensors({"model/w": tensor}), b"{}")
    after = replace(before, tree=b'{"lr": 1}')
    assert state_digest(before.model()) == state_digest(after.model())


def test_statistics_are_compared_as_well() -> None:
    def prepare(rank: Ranked) -> None:
        take = rank.trainer.take_sums

        def other(blob: bytes) -> None:
            take(sums_of(3.5) if rank.number == 1 else blob)

        rank.trainer.take_sums = other  # type: ignore[method-assign]
        rank.rounds._plans = [[] for _ in range(2)]
        rank.rounds._work = lambda purpose, epoch: ((), Uses())
        rank.trainer._keep_sums(sums_of(1.0))
        rank.rounds.run("prepare", 0)

    world = World(ranks=2, odd=-1)
    world.run(prepare)
    assert world.named() == [("ranks-diverged", (1, 0))] * 2


def sums_of(number: float) -> bytes:
    content = memoryview(struct.pack("<d", number))
    return pack_tensors({"mean": TensorBytes("F64", (1,), content)})


@pytest.mark.parametrize("lie", [b"no sums", pack_tensors({})])
def test_who_brings_other_sums_is_named(lie: bytes) -> None:
    """Other names, and what is none at all."""

    def prepare(rank: Ranked) -> None:
        rank.rounds._plans = [[] for _ in range(3)]
        rank.rounds._work = lambda purpose, epoch: ((), Uses())
        rank.trainer._keep_sums(sums_of(1.0))
        rank.rounds.run("prepare", 0)

    world = World(tell=of_itself(sums=lie))
    world.run(prepare)
    assert world.named() == [("untrue-report", (2,))] * 2


def test_a_state_that_changes_its_shape_is_not_summed() -> None:
    """A running history of an ordinary recipe; every rank hears what is wrong."""
    world = World(ranks=2, odd=-1, recipe=GROWS)
    found = world.run()
    assert {code for code, _ranks in world.named()} == {"states-differ"}
    assert "model/seen has another type or shape" in str(found[0].error)


def goes_on(rank: Ranked, position: int, states: Any = None) -> Any:
    """Rank 0 goes on with a pass; others begin."""
    own = RankIntroduction(heads=(), position=0 if rank.number else position)
    if states is not None and rank.number == 0:
        return rank.rounds._share(replace(own, states=states))
    return rank.rounds.meet(own, [("train", 0), ("train", 1)])


def test_all_ranks_go_on_from_rank_0s_state() -> None:
    """Control, with a state of as many steps as the plan has made by then."""

    def resume(rank: Ranked) -> None:
        if rank.number == 0:
            rank.trainer.join(replace(rank.trainer.joint, step=STEPS))
            rank.trainer.rows_trained = ROWS
        goes_on(rank, 1)
        rank.train(1)

    found = World(odd=0).run(resume)
    assert [each.error for each in found] == [None] * 3
    assert {each.trainer.steps for each in found} == {2 * STEPS}


@pytest.mark.parametrize("steps", [0, STEPS + 1, 2**64 - 1])
def test_a_state_of_other_steps_than_planned_is_refused(steps: int) -> None:
    def resume(rank: Ranked) -> None:
        if rank.number == 0:
            rank.trainer.join(replace(rank.trainer.joint, step=steps))
            rank.trainer.rows_trained = ROWS
        goes_on(rank, 1)

    world = World(odd=0)
    world.run(resume)
    assert world.named() == [("untrue-report", (0,))] * 2


@pytest.mark.parametrize("seen", [0, ROWS + 1, 2**64 - 1])
def test_a_state_of_other_rows_than_planned_is_refused(seen: int) -> None:
    """All others would sign it at the end, or could not."""

    def resume(rank: Ranked) -> None:
        if rank.number == 0:
            rank.trainer.join(replace(rank.trainer.joint, step=STEPS))
            rank.trainer.rows_trained = seen
        goes_on(rank, 1)

    world = World(odd=0)
    world.run(resume)
    assert world.named() == [("untrue-report", (0,))] * 2


KNOWN = {"best": 0, "rows": 8, "statistics": 0, "joint": 64}


@pytest.mark.parametrize(
    ("position", "states"),
    [
        (1, {**KNOWN, "joint": 2**53 - 1}),
        (1, {**KNOWN, "joint": -1}),
        (1, {**KNOWN, "statistics": 1 << 40}),
        (1, {**KNOWN, "alone.o1": 8}),
        (1, {"joint": 64}),
        (1, {}),
        (0, KNOWN),
        (3, KNOWN),
        (-1, KNOWN),
    ],
)
def test_states_that_rank_0_announces_are_bounded(position: int, states: Any) -> None:
    """Before anything of that size is allocated."""
    world = World(odd=0)
    world.run(lambda rank: goes_on(rank, position, states))
    assert world.named() == [("untrue-report", (0,))] * 2


def test_no_other_rank_says_where_to_go_on() -> None:
    def resume(rank: Ranked) -> None:
        own = RankIntroduction(heads=(), position=int(rank.number == 2))
        rank.rounds.meet(own, [("train", 0)])

    world = World(odd=2)
    world.run(resume)
    assert world.named() == [("untrue-report", (2,))] * 2


def test_a_rank_0_that_hands_out_two_states_is_named() -> None:
    class TwoStates(SealedGroup):
        def broadcast(self, tensor: Any, root: int = 0) -> None:
            self.handing = tensor.size > 8
            super().broadcast(tensor, root)
            self.handing = False

        handing = False

        def _send_all(self, message: Any) -> None:
            for number, peer in self._peers.items():
                raw = bytearray(message)
                if self.handing and number == 1:
                    raw[-1] ^= 1
                peer.send(bytes(raw))

    def resume(rank: Ranked) -> None:
        if rank.number == 0:
            rank.trainer.join(replace(rank.trainer.joint, step=STEPS))
            rank.trainer.rows_trained = ROWS
        goes_on(rank, 1)

    world = World(odd=0, group=TwoStates)
    world.run(resume)
    assert world.named() == [("ranks-diverged", (0,)), ("ranks-diverged", (0, 1))]


def test_ranks_shorten_their_change_as_one_process_does() -> None:
    """``max_norm`` holds on every rank, and not for who computes alone."""
    world = World(ranks=2, odd=-1, max_norm=0.01)
    found = world.run()
    assert [each.error for each in found] == [None] * 2
    alone = [world._rank(number) for number in range(2)]
    before = alone[0].trainer.joint
    for each in alone:
        world._work(each)("train", 0)

    def mean(max_norm: float) -> TrainingState:
        parts = [
            Contribution(before, each.trainer.joint, 0.5, max_norm=max_norm)
            for each in alone
        ]
        return mean_state(parts, STEPS)

    assert found[0].trainer.joint == mean(0.01) != mean(0.0)


def test_a_checkpoint_is_of_states_that_all_ranks_hold() -> None:
    """What the rounds hand to a checkpoint is what was compared."""
    found = World(ranks=2, odd=-1).run()
    states = [each.trainer.snapshot().to_parts() for each in found]
    assert states[0]["joint"] == states[1]["joint"]
    assert TrainerState.from_parts(states[0]).joint == found[1].trainer.joint


def test_who_brings_another_form_is_named_with_the_others() -> None:
    world = World(tell=of_itself(form=Digest.of(b"another form")))
    world.run()
    expected: Sequence[Any] = [("states-differ", (2, 0, 1))] * 2
    assert world.named() == expected
