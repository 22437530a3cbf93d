"""Steps of several ranks: all of them step, or none does (rules M1, N2, N3, N4, N10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sealift.collective.group import SealedGroup
from sealift.errors import JobError, MalformedError
from sealift.train.loop.buckets import Array, Bucket, Trained
from sealift.train.loop.states import TrainingState
from sealift.train.loop.stepsums import StepSums
from sealift.train.loop.tasks import SliceTask, TaskInputs, TaskModel, Together
from sealift.train.sandboxed.recipe import let_through
from sealift.train.worker.messages import AddUp, AssignmentDone, TaskAnswers, size_of
from sealift.travel.settings import TrainingSettings
from tests.sim.inplace import InPlace
from tests.unit.train.ranked import Ranked, World
from tests.unit.train.recipes import SETTINGS
from tests.unit.train.test_stepping import LINEAR

COUNTED = LINEAR.replace(
    "    return torch.optim.SGD(model.parameters(), lr=0.5)",
    "    class Counted(torch.optim.SGD):\n"
    "        def step(self):\n"
    "            torch.stepped.append(1)\n"
    "            super().step()\n"
    "    return Counted(model.parameters(), lr=0.5)",
)
FILES = {"recipe.py": COUNTED.encode()}
Change = Callable[[int, Array], None]
"""Gets the number of a rank's sum and what it is of."""


class Through:
    """A rank's group, and what happens before and after each sum."""

    def __init__(self, group: SealedGroup, before: Change, after: Change) -> None:
        self._group, self._before, self._after = group, before, after
        self.sums = 0
        self.sizes: list[int] = []

    def all_reduce(self, tensor: Array) -> None:
        self.sums += 1
        self.sizes.append(tensor.size)
        self._before(self.sums, tensor)
        self._group.all_reduce(tensor)
        self._after(self.sums, tensor)

    def exchange(self, words: bytes) -> list[bytes]:
        return self._group.exchange(words)


def nothing(number: int, tensor: Array) -> None:
    """Goes as it goes."""


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(torch, "stepped", found, raising=False)
    return found


def ran(
    rank: int,
    before: Change = nothing,
    after: Change = nothing,
    *,
    ranks: int = 3,
    settings: TrainingSettings = SETTINGS,
) -> list[Ranked]:
    """Three ranks of two steps in buckets of one parameter, one of which is odd."""

    def join(number: int, group: SealedGroup) -> Through:
        odd = number == rank
        return Through(group, before if odd else nothing, after if odd else nothing)

    world = World(COUNTED, [[16]] * ranks, settings)
    world.work = lambda number: InPlace(FILES, "recipe.py", guard=let_through)
    return world.apart(join, bucket_bytes=8)


def test_ranks_that_all_go_on_step(stepped: list[int]) -> None:
    """Control."""
    ranks = ran(0)
    assert [each.error for each in ranks] == [None] * 3
    assert len(stepped) == 6
    assert len({each.trainer.digest() for each in ranks}) == 1
    assert ranks[0].before != ranks[0].trainer.joint


@pytest.mark.parametrize(("fails_at", "steps"), [(1, 0), (3, 0), (4, 0), (6, 3)])
def test_a_rank_that_fails_between_buckets_stops_all(
    stepped: list[int], fails_at: int, steps: int
) -> None:
    def fail(number: int, tensor: Array) -> None:
        if number == fails_at:
            raise JobError("it is over", code="recipe-error")

    ranks = ran(1, fail)
    codes = [each.error and each.error.code for each in ranks]
    assert codes == ["rank-failed", "recipe-error", "rank-failed"]
    assert "rank 1 failed" in str(ranks[0].error)
    assert len(stepped) == steps
    assert all(each.trainer.joint == each.before for each in ranks)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_no_number_is_told_on_every_rank_with_its_parameter(
    stepped: list[int], odd: float
) -> None:
    parent = StepSums.add_up

    def brings(self: StepSums, bucket: Bucket, gradient: Any) -> memoryview:
        own = np.frombuffer(gradient, bucket.dtype).copy()
        if self._number == 2 and bucket.number == 1:
            own[-1] = odd
        return parent(self, bucket, own.tobytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepSums, "add_up", brings)
        ranks = ran(0)
    lines = {str(each.error) for each in ranks}
    assert len(lines) == 1
    line = lines.pop()
    assert all(each in line for each in ("second.weight", "step 0", "rank 2"))
    assert {each.error and each.error.code for each in ranks} == {"not-finite"}
    assert not stepped


def test_a_sum_that_is_too_large_is_nobodys(stepped: list[int]) -> None:
    def huge(number: int, tensor: Array) -> None:
        tensor[:] = np.inf  # as two halves of it come to

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedGroup, "all_reduce", lambda self, tensor: huge(0, tensor))
        ranks = ran(0)
    assert all("too large" in str(each.error) for each in ranks)
    assert not stepped


def test_a_rank_that_was_told_another_sum_is_found(stepped: list[int]) -> None:
    def other(number: int, tensor: Array) -> None:
        if number == 2:
            tensor[0] += 1

    every = TrainingSettings(seed=3, batch_rows=4, threads=1, digest_every=1)
    ranks = ran(1, after=other, settings=every)
    codes = {each.error and each.error.code for each in ranks}
    assert codes == {"ranks-diverged"}
    assert len(stepped) == 3  # before the second step of any
    assert not [
        each.error for each in ran(1, after=other, settings=SETTINGS) if each.error
    ]


def test_what_changes_while_it_is_added_up_is_not_seen() -> None:
    """A worker writes into its gradients although it waits (rule N10)."""
    gradient = bytearray(np.ones(3, np.float32).tobytes())

    class Scribbled:
        def all_reduce(self, tensor: Array) -> None:
            gradient[:] = bytes(12)
            tensor *= 2

        def exchange(self, words: bytes) -> list[bytes]:
            return [words]

    sums = StepSums(Scribbled(), 0, Together((8,)), batch_rows=8, state=built())
    bucket = Bucket(0, 0, "float32", ("first.bias",), (3,))
    found = np.frombuffer(sums.add_up(bucket, gradient), np.float32)
    assert found.tolist() == [2, 2, 2]


def test_ranks_that_train_other_parameters_do_not_begin(stepped: list[int]) -> None:
    begin = StepSums.begin

    def fewer(self: StepSums, trained: Trained) -> None:
        less = Trained(trained.names[: -1 if self._number else None])
        begin(self, less)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepSums, "begin", fewer)
        ranks = ran(0)
    assert {each.error and each.error.code for each in ranks} == {"states-differ"}
    assert not stepped


def test_buckets_come_in_one_order_on_every_rank() -> None:
    seen: list[list[int]] = []

    class Kept(Through):
        def __init__(self, group: SealedGroup) -> None:
            super().__init__(group, nothing, nothing)
            seen.append(self.sizes)

    world = World(LINEAR, [[16], [9]])
    world.work = lambda number: InPlace(
        {"recipe.py": LINEAR.encode()}, "recipe.py", guard=let_through
    )
    world.apart(lambda rank, group: Kept(group), bucket_bytes=8)
    assert seen == [[2, 6, 3, 12] * 2] * 2  # bias and weight, the last ones first


def built() -> TrainingState:
    world = World(COUNTED, [[16]])
    return world.slice(0).trainer.joint


class Parent:
    """Takes what is believed."""

    def __init__(self) -> None:
        self.added: list[int] = []

    def begin_sums(self, trained: Trained) -> None:
        self.trained = trained

    def add_up(self, bucket: Bucket, gradient: bytes) -> bytes:
        self.added.append(bucket.number)
        return gradient


NAMES = ("second.bias", "second.weight", "first.bias", "first.weight")
SIZES = (8, 24, 12, 48)


@pytest.fixture
def asked() -> tuple[TaskAnswers, Any]:
    models = (TaskModel((), begun=True),)
    together = Together((16, 16), bucket_bytes=8)
    task = SliceTask("train", SETTINGS, models, together=together)
    found: Any = Parent()
    answers = TaskAnswers(task, TaskInputs(states=[built()]))
    answers.reply(Trained(NAMES), b"", found)
    return answers, found


def test_a_worker_is_added_up_what_it_announced(asked: tuple[TaskAnswers, Any]) -> None:
    """Two steps of four buckets; not one more, and not one fewer."""
    answers, parent = asked
    for _ in range(2):
        with pytest.raises(MalformedError, match="fewer sums"):
            answers.finish(
                AssignmentDone((size_of(built()),), ()), lambda start, length: b""
            )
        for number, size in enumerate(SIZES):
            assert answers.reply(AddUp(number), bytes(size), parent) == bytes(size)
    with pytest.raises(MalformedError, match="more sums"):
        answers.reply(AddUp(0), bytes(8), parent)
    assert parent.added == [0, 1, 2, 3] * 2


@pytest.mark.parametrize(
    ("message", "length"),
    [
        (AddUp(1), 24),
        (AddUp(0), 24),
        (AddUp(-1), 8),
        (AddUp(0), 0),
        (Trained(NAMES), 0),
    ],
)
def test_another_bucket_than_the_next_ends_the_task(
    asked: tuple[TaskAnswers, Any], message: object, length: int
) -> None:
    answers, parent = asked
    with pytest.raises(MalformedError):
        answers.reply(message, bytes(length), parent)
    assert not parent.added


@pytest.mark.parametrize("together", [None, Together((16, 16))])
def test_nothing_is_added_up_unannounced(together: Together | None) -> None:
    models = (TaskModel((), begun=True),)
    task = SliceTask("train", SETTINGS, models, together=together)
    answers, parent = TaskAnswers(task, TaskInputs(states=[built()])), Parent()
    for message in (AddUp(0), Trained(("third.bias",)), Trained(())):
        with pytest.raises(MalformedError):
            answers.reply(message, bytes(8), parent)  # type: ignore[arg-type]
