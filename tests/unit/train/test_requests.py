"""Both ends of a worker's requests, in one process; the worker's hand is a hostile one."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.errors import JobError, MalformedError, PeerError
from sealift.outsource.terms import Backward
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.held import Held
from sealift.train.loop.states import MAX_TREE_BYTES, TrainingState, pack_tensors
from sealift.train.loop.statistics import Measured, let_out
from sealift.train.loop.tasks import SliceId, SliceTask, TaskInputs, TaskModel, TaskPart
from sealift.train.sandboxed.parentpipe import WorkerEnd
from sealift.train.worker.messages import (
    MAX_REQUEST_BYTES,
    AddUp,
    AssignmentDone,
    Handed,
    Importing,
    Loaded,
    ServeAnswer,
    StateSize,
    TaskAnswers,
    TaskMetrics,
    size_of,
    to_bytes,
)
from sealift.train.worker.process import ModuleLog, WorkerProcess
from sealift.train.worker.requests import Area, ParentEnd, Request
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import TrainingSettings
from tests.unit.train.joints import SCHEMA, cargo, joint
from tests.unit.train.recipes import PLAIN
from tests.unit.train.test_output import RULE

ROOM = 1 << 16
ASKED = Importing("a.py")
HANDED = Handed(0, StateSize(0, 0, 0))


class CountingArea(Area):
    """Counts what its parent reads."""

    read_bytes = 0

    def copy(self, start: int, length: int) -> bytes:
        found = super().copy(start, length)
        self.read_bytes += len(found)
        return found

    def copy_apart(self, start: int, length: int) -> Held:
        found = super().copy_apart(start, length)
        self.read_bytes += len(found)
        return found


@dataclass
class Ends:
    area: CountingArea
    parent: ParentEnd
    worker: WorkerEnd

    def say(self, message: object = ASKED, **head: int) -> None:
        """A request as whoever has taken the worker over would write it."""
        raw = message if isinstance(message, bytes) else to_bytes(message)
        told = {"start": 0, "length": 0, "room": 0, "message_bytes": len(raw)} | head
        number = told.get("number", self.parent._last.number + 1)
        at = len(self.worker.buffers)
        self.worker._whole[at + 128 : at + 128 + len(raw)] = raw
        names = "message_bytes", "start", "length", "room"
        fields = number, *(told[name] for name in names)
        self.worker._whole[at : at + 40] = struct.pack("<QQQQQ", *fields)
        self.ring()

    def ring(self) -> None:
        self.sock.send(b"!")

    sock: Any = None


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs, closing(CountingArea(ROOM)) as area:
        parent = ParentEnd(area, ours.fileno(), lambda: 5.0)
        worker = WorkerEnd(theirs.fileno(), area.descriptor)
        yield Ends(area, parent, worker, theirs)


def refused(ends: Ends, kind: type = Importing) -> None:
    with pytest.raises(MalformedError):
        ends.parent.hear(kind)


def test_a_buffer_in_and_a_result_back(ends: Ends) -> None:
    found: list[bytes] = []

    def ask() -> None:
        ends.worker.buffers[64:68] = b"abcd"
        for length, room in ((4, 8), (4, 0)):
            reply = ends.worker.ask(HANDED, length, start=64, room=room)
            found.append(bytes(reply))

    asking = threading.Thread(target=ask)
    asking.start()
    assert ends.parent.hear(Handed) == Request(HANDED, b"abcd")
    ends.parent.tell(buffer=b"ABCDEFGH")
    ends.parent.hear(Handed)
    ends.parent.tell()
    asking.join()
    assert found == [b"ABCDEFGH", b""]
    assert ends.area.read_bytes == 8  # each byte once


def test_a_result_stays_in_the_room_that_there_is(ends: Ends) -> None:
    ends.say(HANDED, length=4, room=4)
    ends.parent.hear(Handed)
    with pytest.raises(MalformedError):
        ends.parent.tell(buffer=b"12345")
    ends.say(HANDED, start=ROOM - 4, length=4, room=1 << 40)
    ends.parent.hear(Handed)
    with pytest.raises(MalformedError):
        ends.parent.tell(buffer=b"12345")
    ends.parent.tell(buffer=b"1234")  # control


def test_orders_come_the_same_way(ends: Ends) -> None:
    ends.parent.tell(ServeAnswer(3))
    assert ends.worker.await_order(ServeAnswer) == ServeAnswer(3)
    ends.worker.answer(ServeAnswer(4))
    assert ends.parent.hear(ServeAnswer).message == ServeAnswer(4)


def test_nothing_is_copied_for_a_request_that_has_no_buffer(ends: Ends) -> None:
    ends.say(length=ROOM)
    refused(ends)
    assert ends.area.read_bytes == 0
    ends.say(HANDED, length=ROOM)
    ends.parent.hear(Handed)
    assert ends.area.read_bytes == ROOM  # control


def test_an_order_is_no_reply(ends: Ends) -> None:
    """It came before the parent heard what was asked: that was not done."""
    ends.parent.tell(ServeAnswer(3))
    with pytest.raises(PeerError) as caught:
        ends.worker.ask(ASKED)
    assert caught.value.code == "worker-gone"


def test_nobody_asks_between_an_answer_and_the_next_order(ends: Ends) -> None:
    waiting = threading.Thread(
        target=lambda: ends.worker.await_order(ServeAnswer, after=ServeAnswer(1))
    )
    asking = threading.Thread(target=lambda: ends.worker.ask(ASKED))
    waiting.start()
    assert ends.parent.hear(ServeAnswer).message == ServeAnswer(1)
    asking.start()
    asking.join(0.2)
    ends.parent.tell(ServeAnswer(2))
    waiting.join()
    assert ends.parent.hear(Importing).message == ASKED
    ends.parent.tell()
    asking.join()


@pytest.mark.parametrize("number", [0, 2, 7, 1 << 63])
def test_a_bell_without_a_new_request(ends: Ends, number: int) -> None:
    ends.say(number=number)
    refused(ends)


def test_bells_without_end(ends: Ends) -> None:
    ends.say()
    assert ends.parent.hear(Importing).message == ASKED  # control
    ends.ring()
    refused(ends)


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, ROOM + 1), (ROOM, 1), (ROOM + 1, 0), ((1 << 64) - 8, 16), (0, 1 << 63)],
)
def test_a_buffer_outside_of_the_area(ends: Ends, start: int, length: int) -> None:
    ends.say(HANDED, start=start, length=length)
    refused(ends, Handed)


@pytest.mark.parametrize("length", [MAX_REQUEST_BYTES + 1, 1 << 63])
def test_a_message_of_any_length_is_not_even_read(ends: Ends, length: int) -> None:
    ends.say(message_bytes=length)
    with pytest.raises(MalformedError) as caught:
        ends.parent.hear(Importing)
    assert caught.value.why == f"a message of {length} bytes"


def test_another_kind_and_what_is_none(ends: Ends) -> None:
    ends.say(ServeAnswer(1))
    refused(ends)
    ends.say(b'{"body":{"path":1},"type":"Importing"}')
    refused(ends)
    ends.say(b"nonsense")
    refused(ends)


def test_whoever_dies_in_the_middle(ends: Ends) -> None:
    ends.say(HANDED, length=8)
    ends.sock.close()
    assert ends.parent.hear(Handed).message == HANDED
    with pytest.raises(PeerError) as caught:
        ends.parent.hear(Importing)
    assert caught.value.code == "worker-gone"


def test_whoever_says_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, closing(Area(8)) as area, pytest.raises(PeerError) as caught:
        ParentEnd(area, ours.fileno(), lambda: 0.01).hear(Importing)
    assert caught.value.code == "worker-timeout"


def test_what_changes_after_the_bell_is_not_seen(ends: Ends) -> None:
    ends.worker.buffers[:4] = b"good"
    ends.say(HANDED, length=4)
    heard = ends.parent.hear(Handed)
    ends.worker.buffers[:4] = b"evil"
    ends.say(HANDED, number=1, length=9)
    assert heard == Request(HANDED, b"good")
    assert ends.parent._last.length == 4


# What a task may ask.

SETTINGS = TrainingSettings(seed=1, batch_rows=2, digest_every=2)
PARTS = tuple(TaskPart(SliceId(0, name, 0), 8, 24, SCHEMA) for name in ("a", "b"))
TRAINED = SliceTask(
    "train", SETTINGS, (TaskModel((0,), begun=True, windows=(2, 2)),), PARTS
)
HELDOUT = SliceTask("heldout", SETTINGS, (TaskModel((0, 1), begun=True),) * 2, PARTS)


@pytest.fixture(scope="module")
def state() -> TrainingState:
    training = joint()
    training.build()
    return training._states[""]


class Heard:
    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def measured(self, *told: object) -> None:
        self.heard.append(told)

    def hand_over(self, *told: object) -> None:
        self.heard.append(told)


def answers(task: SliceTask, state: TrainingState) -> TaskAnswers:
    return TaskAnswers(task, TaskInputs(states=[state] * len(task.models)))


class Nothing:
    """Of the area nothing is read here."""

    length = 0

    def copy(self, _start: int, _length: int) -> bytes:
        raise AssertionError

    def take(self, _start: int, _length: int) -> Held:
        raise AssertionError


nothing = Nothing()


Said = tuple[object, bytes]


def loss(place: int, model: int = 0, name: str = "loss") -> Said:
    return TaskMetrics(model, place, {name: 0.5}), b""


def test_numbers_come_one_by_one_and_in_order(state: TrainingState) -> None:
    told, found = Heard(), answers(TRAINED, state)
    found.reply(*loss(0), told)
    assert told.heard == [(0, 0, {"loss": 0.5})]  # at once, not at the end
    for odd in (loss(0), loss(2), loss(1, model=1), loss(-1), loss(1, name="rows")):
        again = answers(TRAINED, state)
        again.reply(*loss(0), Heard())
        with pytest.raises(MalformedError):
            again.reply(*odd, Heard())
    found.reply(*loss(1), told)
    with pytest.raises(MalformedError):
        found.reply(*loss(2), told)
    assert len(told.heard) == 2


def test_private_steps_tell_no_loss(state: TrainingState) -> None:
    """It is of rows, and has no noise."""
    private = replace(TRAINED, private=PrivateSteps(clip=1.0, noise=1.0, batch=2))
    with pytest.raises(MalformedError):
        answers(private, state).reply(*loss(0), Heard())


def test_numbers_of_each_part_that_was_measured(state: TrainingState) -> None:
    told, found = Heard(), answers(HELDOUT, state)
    for model in range(2):
        for place in range(2):
            found.reply(*loss(place, model, "accuracy"), told)
    assert [each[:2] for each in told.heard] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found.finish(AssignmentDone((None, None), ()), nothing).states == (
        None,
        None,
    )


def test_too_many_names_and_a_buffer_that_nobody_asked_for(
    state: TrainingState,
) -> None:
    many = TaskMetrics(0, 0, {f"n{number}": 1.0 for number in range(2049)})
    for odd in ((many, b""), (TaskMetrics(0, 0, {}), b"x")):
        with pytest.raises(MalformedError):
            answers(HELDOUT, state).reply(*odd, Heard())


class Long:
    """An area of 4 GiB, in which somebody says that what is asked for lies."""

    length = 4 << 30

    def copy(self, _start: int, length: int) -> bytes:
        assert length < 1 << 20, "copied before its length was looked at"
        return bytes(length)

    def take(self, _start: int, length: int) -> Held:
        return Held.of(pack_tensors({}))


@pytest.mark.parametrize("tree", [MAX_TREE_BYTES + 1, 1 << 29])
def test_a_tree_is_not_copied_before_its_length_is_looked_at(tree: int) -> None:
    built = SliceTask("build", SETTINGS, (TaskModel((), begun=False),))
    for length, fits in ((8, True), (tree, False)):
        found = TaskAnswers(built, TaskInputs(states=(None,)))
        done = AssignmentDone((StateSize(0, 10, length),), ())
        with nullcontext() if fits else pytest.raises(MalformedError):
            found.finish(done, Long())


def test_sums_are_not_copied_before_their_length_is_looked_at() -> None:
    summed = SliceTask("prepare", SETTINGS, (), PARTS[:1])
    with pytest.raises(MalformedError):
        TaskAnswers(summed, TaskInputs()).finish(AssignmentDone((), (1 << 30,)), Long())


def test_a_buffer_is_as_long_as_its_message_says_or_not_copied(
    ends: Ends, state: TrainingState
) -> None:
    found = answers(TRAINED, state)
    size = StateSize(0, 60, 4)
    for message, length in (
        (Handed(0, size), ROOM),
        (Handed(0, StateSize(0, 60, MAX_TREE_BYTES + 1)), 64),
        (AddUp(0), 64),  # no bucket was announced
        (Backward(0, ("input",)), 64),  # nor is any product the task's
    ):
        ends.say(message, length=length)
        ends.area.read_bytes = 0
        with pytest.raises(MalformedError):
            ends.parent.hear(type(message), length_of=found.length_of)
        assert not ends.area.read_bytes
    ends.say(Handed(0, size), length=64)
    ends.parent.hear(Handed, length_of=found.length_of)
    assert ends.area.read_bytes == 64


def test_an_end_before_all_was_told(state: TrainingState) -> None:
    with pytest.raises(MalformedError):
        answers(HELDOUT, state).finish(AssignmentDone((None, None), ()), nothing)


def test_states_only_as_often_as_steps_stop(state: TrainingState) -> None:
    """Steps 2 of 4 are followed by others; each stop is told twice."""
    content = state.tensors + state.tree
    handed = Handed(0, size_of(state)), content
    told, found = Heard(), answers(TRAINED, state)
    for _ in range(2):
        found.reply(*handed, told)
    assert told.heard == [(0, state)] * 2
    with pytest.raises(MalformedError):
        found.reply(*handed, told)
    never = replace(TRAINED, settings=replace(SETTINGS, digest_every=0))
    with pytest.raises(MalformedError):
        answers(never, state).reply(*handed, told)
    for size in (StateSize(0, len(content), 1), StateSize(0, -1, len(content) + 1)):
        odd = Handed(0, size), content
        with pytest.raises(MalformedError):
            answers(TRAINED, state).reply(*odd, told)
    other = Handed(1, size_of(state))
    with pytest.raises(MalformedError):
        answers(TRAINED, state).reply(other, content, told)


def test_states_are_loaded_once_and_to_train(state: TrainingState) -> None:
    calls: list[None] = []
    given = TaskInputs(states=[state], loaded=lambda: calls.append(None))
    found = TaskAnswers(TRAINED, given)
    found.reply(Loaded(), b"", Heard())
    assert len(calls) == 1
    for odd in (found, answers(HELDOUT, state)):
        with pytest.raises(MalformedError):
            odd.reply(Loaded(), b"", Heard())
    assert len(calls) == 1


def test_a_module_is_asked_for_once_and_is_the_bundles() -> None:
    measured: list[object] = []
    modules = ModuleLog({"a.py": b"", "b.txt": b""}, measured.append)
    equipment = SimpleNamespace(modules=modules, clock=lambda: 0.0)
    with closing(Area(8)) as area:
        process = WorkerProcess(Any, equipment, area)  # type: ignore[arg-type]
        process._measure("a.py")
        assert len(measured) == 1
        for path in ("a.py", "b.txt", "c.py"):
            with pytest.raises(MalformedError):
                process._measure(path)
        process.end(0.0)


def test_numbers_are_told_window_by_window_and_a_crash_loses_none() -> None:
    told: list[tuple[str, Measured]] = []

    def watch(cargo: LoadedCargo, found: Measured) -> None:
        told.append((cargo.resource.name, found))

    whole = joint(values=3, value_rows=16)
    found = whole.work([cargo("north", 50)])["north-train"]
    failing = PLAIN.replace(
        "def loss(model, batch):",
        "LEFT = [5]\n\n\ndef loss(model, batch):\n"
        "    LEFT[0] -= 1\n    assert LEFT[0], 'after two windows'\n",
    )
    assert failing != PLAIN
    with pytest.raises(JobError):
        joint(failing, values=3, value_rows=16, watch=watch).work([cargo("north", 50)])
    assert [name for name, _ in told] == ["north-train"] * 2
    assert [each.metrics["loss"] for _, each in told] == list(found.curve[:2])
    assert [each.rows for _, each in told] == [16, 16]
    rule = replace(RULE, metric_rows=17)
    assert let_out(told[0][1], rule).metrics == {}  # as ever: too few rows
