"""The process that runs a recipe: one task of it, or a model that answers; in the sandbox.

It maps what it was given, closes every descriptor but its own, locks itself in, and only
then loads the recipe. What it asks of its parent on the way, and what it answers, goes
through ``requests``.

A model that answers does one step at a time: a batch to predict, or the next tokens of
one generation, so that nothing runs that nobody waits for. Questions lie in memory that
this process can only read and are copied first; answers go into memory that the parent
copies out of and checks.

What a task brings, mapped for a worker that stands by, which has run its recipe already.

Rows come as descriptors, and a descriptor is more than bytes: offset and flags belong to an
open file that several slices' processes are given, and the kernel tells what it keeps of the
file (rule N6). A worker that is forked for a task maps and closes them before it loads the
recipe. One that stood by has loaded it; so a thread of ours receives them. It has left the
process's table of descriptors, so no other thread can reach what it gets, and its filter has
nothing but what receives, maps and closes (``inventory.RECEIVING``).
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random  # noqa: TID251 - put back, not drawn from
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from sealift import recipes
from sealift.channel.cuda.bindings import driver_bindings
from sealift.channel.device.device import DeviceTensor
from sealift.data.loader.rowtensors import batch_from_rows
from sealift.errors import (
    PeerError,
    SealiftError,
    UnavailableError,
    require_kind,
    require_value,
)
from sealift.ids import Buffer
from sealift.train.loop.buckets import Bucket, Trained
from sealift.train.loop.faults import Fault, describe, machine_failed, unfit
from sealift.train.loop.held import read_of
from sealift.train.loop.states import TrainingState, parse_tensors
from sealift.train.loop.tasks import TaskDone, TaskInputs
from sealift.train.output.modelform import Fields, form_from_plain
from sealift.train.sandbox import seccomp
from sealift.train.sandbox.confine import Confinement, confine_worker, keep_descriptors
from sealift.train.sandbox.inventory import NVIDIA, TALK
from sealift.train.sandbox.kernel import leave_descriptors
from sealift.train.sandboxed.carryout import carry_out, rehearse_beforehand
from sealift.train.sandboxed.graphrecipe import LoadedRecipe, load_recipe
from sealift.train.sandboxed.imports import Notice
from sealift.train.sandboxed.parentpipe import (
    AskedProducts,
    WorkerEnd,
    map_area,
    map_copy,
    map_shared,
)
from sealift.train.sandboxed.placement import DevicePlacement
from sealift.train.sandboxed.recipe import (
    Containment,
    describe_answer,
    pack_answer,
)
from sealift.train.sandboxed.shelf import AreaShelf
from sealift.train.sandboxed.torchstate import as_tensors, carried_tensors
from sealift.train.sandboxed.trying import TriedRecipe
from sealift.train.worker.messages import (
    AddUp,
    Assignment,
    AssignmentDone,
    Begun,
    Handed,
    Importing,
    Loaded,
    ServeAnswer,
    ServeOrder,
    ServeStep,
    StandbyOrder,
    TaskMetrics,
    TrialOrder,
    WorkerReady,
    begun_states,
    size_of,
    stretches_of,
    worker_gone,
)
from sealift.train.worker.process import (
    FILE_STRETCH,
    LENGTH_BYTES,
    NOT_CONFINED,
    StartWorker,
    assets_at,
    receive_with,
)


def close_others(kept: int) -> None:
    """Close every descriptor in the calling thread's table but one."""
    os.closerange(0, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


class TaskReceiver:
    """The thread, from the start of its worker to the task.

    Args:
        window: Number of the descriptor that it receives through.
        filtered: Whether there is a filter of system calls here.
    """

    def __init__(self, window: int, *, filtered: bool) -> None:
        self._window = window
        self._filtered = filtered
        self._apart, self._over = threading.Event(), threading.Event()
        self._failed: BaseException | None = None
        self._found: list[memoryview] = []

    def begin(self) -> None:
        """Start it, once everything but the filter holds, and close the window to all others.

        Raises:
            OSError: if it cannot be apart.
        """
        threading.Thread(target=self._run, daemon=True).start()
        self._apart.wait()
        self._close_window()
        if self._failed is not None:
            raise self._failed

    def take(self) -> list[memoryview]:
        """What came, in its order: the area to share, the others to read and change here.

        Raises:
            PeerError: code ``worker-gone``: nothing came.
        """
        self._over.wait()
        if not self._found:
            raise worker_gone()
        return self._found

    def _close_window(self) -> None:
        os.close(self._window)

    def _run(self) -> None:
        try:
            self._leave()
        except BaseException as error:
            self._failed = error
            return
        finally:
            self._apart.set()
        try:
            self._found = self._receive()
        except (OSError, PeerError):  # ``take`` says it
            self._found = []
        finally:
            self._over.set()

    def _leave(self) -> None:
        leave_descriptors()
        self._socket = socket.socket(fileno=self._window)
        close_others(self._window)
        if self._filtered:
            seccomp.install_to_receive()

    def _receive(self) -> list[memoryview]:
        raw, files = receive_with(self._socket)
        stretches = list(FILE_STRETCH.iter_unpack(raw))
        kinds = (map_area, *[map_copy] * len(files))
        found = [
            each(file, length, start)
            for each, file, (start, length) in zip(
                kinds, files, stretches, strict=False
            )
        ]
        for each in (*files, self._socket.detach()):
            os.close(each)
        return found


def run_worker(
    descriptors: Sequence[int],
    confinement: Confinement,
    places: Sequence[str],
    start: StartWorker,
) -> NoReturn:
    """Do the one order of this process, and end it.

    Args:
        descriptors: The stream to the parent, text, area, bundle, and what else is mapped.
        confinement: What to lock this process in with.
        places: What it may read.
        start: What it may have.
    """
    work: AssignedTask | ServedModel | TriedRecipe | StandbyWorker
    beside: Callable[[], None] | None = None
    more: Sequence[int] = ()
    try:
        talk, text, area, *files = descriptors
        parent = WorkerEnd(talk, area)
        order = parent.await_order(Assignment, ServeOrder, TrialOrder, StandbyOrder)
        if isinstance(order, ServeOrder):
            work = ServedModel(order, parent, files)
        elif isinstance(order, TrialOrder):
            (bundle,) = files
            work = TriedRecipe(order, parent, _bundle_files(bundle, order.bundle))
        elif isinstance(order, StandbyOrder):
            bundle, window, *shared = files
            more = (window, *shared)
            receiver = TaskReceiver(TALK + 1, filtered="seccomp" in confinement.parts)
            work = StandbyWorker(order, parent, bundle, receiver)
            beside = receiver.begin
        else:
            order = require_kind(order, Assignment)
            bundle, *files = files
            if order.gradients:
                more, files = files[:1], files[1:]
            work = AssignedTask.mapped(order, parent, bundle, files)
        keep_descriptors(talk, text, *more)
        parent.stream = TALK
        confine_worker(
            confinement,
            places,
            start.memory_bytes,
            gpu=start.gpu,
            most_bytes=start.most_bytes,
            beside=beside,
        )
    except BaseException:
        os._exit(NOT_CONFINED)
    work.do()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(0)


def _map_gradients(descriptor: int, nbytes: int, placement: DevicePlacement) -> Tensor:
    """Memory for gradients that the parent maps, too; before any recipe is loaded.

    What a stand-in for a GPU allocates is a memory file.
    """
    placement.begin()
    try:
        if placement.is_cpu:
            return torch.frombuffer(map_area(descriptor, nbytes), dtype=torch.uint8)
        return placement.map_shared(descriptor, nbytes)
    finally:
        os.close(descriptor)


def _bundle_files(descriptor: int, length: int) -> dict[str, bytes]:
    """The files of a bundle as ``worker.process`` has it; recipes may read its assets."""
    blob = parse_tensors(map_copy(descriptor, length))
    start, end = assets_at(length), os.fstat(descriptor).st_size
    if start < end:
        whole = map_shared(descriptor, end - start, start)
        size = int.from_bytes(whole[:LENGTH_BYTES], "little")
        found = parse_tensors(whole[LENGTH_BYTES : LENGTH_BYTES + size])
        recipes.provide_assets(
            {n: require_kind(e.content, memoryview) for n, e in found.items()}
        )
    return {n: read_of(each.content, 0, each.elements) for n, each in blob.items()}


def _measured_first(parent: WorkerEnd) -> Notice:
    """Has the parent measure each module before it first runs."""
    asked: set[str] = set()

    def notice(path: str) -> None:
        if path not in asked:
            parent.ask(Importing(path))
            asked.add(path)

    return notice


class MappedRows:
    """Rows of a visit, mapped to read; nobody is handed them on."""

    descriptor = -1

    def __init__(self, view: memoryview) -> None:
        self.view = view


class AssignedTask:
    """A task with everything that it needs, mapped.

    Args:
        order: The assignment.
        parent: Is told what there is to tell.
        files: The bundle's.
        given: What ``stretches_of`` the order says, mapped.
        notice: Told of each of the bundle's modules before it runs.
        gradients: Memory of the device for them; None without, or until ``do`` maps it.
    """

    def __init__(
        self,
        order: Assignment,
        parent: WorkerEnd,
        files: Mapping[str, bytes],
        given: Sequence[memoryview],
        notice: Notice,
        *,
        gradients: Tensor | None = None,
    ) -> None:
        self._gradients = gradients
        self._order = order
        self._parent = parent
        self._files = files
        self._notice = notice
        self.products = AskedProducts(parent.ask, self._room)
        self._given = _read_given(order, given)
        self._shelf = AreaShelf(lambda: parent.buffers, lambda: parent.ask(Loaded()))

    @classmethod
    def mapped(
        cls, order: Assignment, parent: WorkerEnd, bundle: int, given: Sequence[int]
    ) -> AssignedTask:
        """Of descriptors: the bundle's; states, rows of each part."""
        starts, lengths = zip(*stretches_of(order), strict=True)
        return cls(
            order,
            parent,
            _bundle_files(bundle, order.bundle),
            list(map(map_copy, given, lengths, starts)),
            _measured_first(parent),
        )

    def do(self) -> None:
        """Do it, and say how it went."""
        answer: object
        placement = DevicePlacement(self._order.device)
        try:
            if self._order.gradients and self._gradients is None:
                self._gradients = _map_gradients(
                    TALK + 1, self._order.gradients, placement
                )
            done = carry_out(
                self._order.task,
                self._given,
                self._files,
                self._order.entry,
                guard=Containment(self._files, text=True),
                parent=self,
                notice=self._notice,
                room=self._room,
                shared=self._gradients,
                placement=placement,
                shelf=self._shelf,
            )
            answer = self._put(done)
        except (
            BaseException
        ) as error:  # a recipe's objects do it outside of a guard, too
            answer = _fault(error, placement)
        _end(self._parent, placement, answer)

    def hand_over(self, model: int, state: TrainingState) -> None:
        """Have the parent take a state; see ``TaskParent``."""
        at = len(state.tensors)  # they lie there already
        self._parent.ask(Handed(model, size_of(state)), self._write(at, state.tree))

    def measured(self, model: int, place: int, values: Mapping[str, float]) -> None:
        """Tell numbers; JSON has no NaN, and a number that is none is no result."""
        finite = {name: each for name, each in values.items() if math.isfinite(each)}
        self._parent.ask(TaskMetrics(model, place, finite))

    def begin_sums(self, trained: Trained) -> None:
        """Announce what is trained; see ``TaskParent``."""
        self._parent.ask(trained)

    def add_up(self, bucket: Bucket, gradient: Buffer | DeviceTensor) -> Buffer:
        """Have the parent add up gradients that lie in the area; so does the sum.

        Of what lies on a device nothing is sent.
        """
        length = 0 if isinstance(gradient, DeviceTensor) else len(gradient)
        ask = AddUp(bucket.number)
        return self._parent.ask(ask, length, start=bucket.start, room=length)

    def _room(self, length: int) -> memoryview:
        """For gradients and operands; states are handed over there, between steps."""
        room = self._shelf.room()
        if length > len(room):
            raise unfit("state-bytes")
        return room[:length]

    def _put(self, done: TaskDone) -> AssignmentDone:
        trees = [state.tree for state in done.states if state is not None]
        self._write(0, *trees, *done.statistics)
        sizes = (None if each is None else size_of(each) for each in done.states)
        return AssignmentDone(tuple(sizes), tuple(map(len, done.statistics)))

    def _write(self, at: int, *parts: bytes) -> int:
        """Write them end to end; where they end."""
        room = self._shelf.room()
        for part in parts:
            if at + len(part) > len(room):
                raise unfit("state-bytes")
            room[at : at + len(part)] = part
            at += len(part)
        return at


class StandbyWorker:
    """A worker that is made ready before there is a task for it; it serves that one, and ends.

    Args:
        order: What to make ready.
        parent: Is asked before a module runs, and told once all is ready.
        bundle: Its descriptor.
        receiver: Maps what the task brings.
    """

    def __init__(
        self,
        order: StandbyOrder,
        parent: WorkerEnd,
        bundle: int,
        receiver: TaskReceiver,
    ) -> None:
        self._order, self._parent, self._receiver = order, parent, receiver
        self._files = _bundle_files(bundle, order.bundle)
        self._shared: Tensor | None = None

    def do(self) -> None:
        """Make ready, wait for the task, and do it."""
        notice = _measured_first(self._parent)
        try:
            with as_it_was():
                self._make_ready(notice)
        except BaseException as error:
            placement = DevicePlacement(self._order.device)
            self._parent.answer(_fault(error, placement))
            return
        try:
            order = self._parent.await_order(Assignment, after=WorkerReady())
        except PeerError:  # nobody needs it any more
            return
        order = require_kind(order, Assignment)
        area, *given = self._receiver.take()
        self._parent.move(area)
        self._parent.ask(Begun())
        shared = self._shared if order.gradients else None
        work = AssignedTask(
            order, self._parent, self._files, given, notice, gradients=shared
        )
        work.do()

    def _make_ready(self, notice: Notice) -> None:
        """Its prints go nowhere, also where the agreement lets a task's out."""
        placement = DevicePlacement(self._order.device)
        if self._order.gradients:
            self._shared = _map_gradients(TALK + 2, self._order.gradients, placement)
        if self._order.rehearsal is None:
            placement.begin()
            return
        rehearse_beforehand(
            self._order.rehearsal,
            self._files,
            self._order.entry,
            guard=Containment(self._files),
            notice=notice,
            placement=placement,
            is_enough=lambda: bool(self._parent.buffers[0]),
        )


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """What a recipe moves in its libraries is put back: random numbers, and how torch computes.

    So the task has the bits that it has in a process that did nothing before.
    """
    drawn, torch_drawn, numpy_drawn = (
        random.getstate(),
        torch.get_rng_state(),
        np.random.get_state(),
    )
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)
    random.setstate(drawn)
    np.random.set_state(numpy_drawn)
    torch.set_rng_state(torch_drawn)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(torch.default_generator.initial_seed())
        gc.collect()  # a model may lie in a cycle, and with it memory that a task needs
        torch.cuda.empty_cache()


def _read_given(order: Assignment, given: Sequence[memoryview]) -> TaskInputs:
    plain, *others = given
    begun = begun_states(order)
    tensors, rows = iter(others[: len(begun)]), others[len(begun) :]
    found, at = list[TrainingState | None](), 0
    for size in order.states:
        if size is None:
            found.append(None)
            continue
        tree, at = bytes(plain[at : at + size.tree]), at + size.tree
        found.append(TrainingState(size.step, next(tensors), tree))
    return TaskInputs(
        rows=list(map(MappedRows, rows)),
        states=found,
        statistics=bytes(plain[at : at + order.statistics]),
    )


def warm_up() -> None:
    """Make torch load what it loads late, so that no worker has to (1.5 s, once)."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    loss = nn.functional.cross_entropy(
        model(torch.zeros(2, 1, 4, 4)), torch.zeros(2, dtype=torch.int64)
    )
    # On a device, the backward pass would start threads that no fork survives.
    if not torch.backends.cuda.is_built():
        loss.backward()
        optimizer.step()
    # A worker maps a GPU's memory by them, and may import only what lies in the folders of
    # this environment and of what is loaded: they may come from another one.
    if os.path.exists(NVIDIA):
        with contextlib.suppress(UnavailableError):
            driver_bindings()
    gc.collect()
    gc.freeze()


_END = object()


class ServedModel:
    """A model with everything that it needs, mapped while that is possible.

    Args:
        order: What to serve.
        parent: Asks.
        files: Descriptors: bundle, model, questions.
    """

    def __init__(
        self, order: ServeOrder, parent: WorkerEnd, files: Sequence[int]
    ) -> None:
        bundle, model, room = files
        self._order = order
        self._parent = parent
        self._placement = DevicePlacement(order.device)
        self._room = map_shared(room, order.room)
        self._files = _bundle_files(bundle, order.bundle)
        self._state = map_copy(model, order.model)
        self._form = form_from_plain(order.form)
        self._streams: dict[int, tuple[Iterator[Any], int]] = {}

    def do(self) -> None:
        """Load it, say so, and answer until the parent hangs up."""
        answer: object = ServeAnswer(0)
        try:
            self._load()
        except BaseException as error:
            return _end(self._parent, self._placement, _fault(error, self._placement))
        while True:
            try:
                step = self._parent.await_order(ServeStep, after=answer)
            except PeerError:
                return _end(self._parent, self._placement)
            answer = self._answer(step)

    def _load(self) -> None:
        torch.set_num_threads(self._order.threads)
        self._placement.begin()
        guard = Containment(self._files, text=True)
        notice = _measured_first(self._parent)
        self._recipe = load_recipe(
            self._files, self._order.entry, guard=guard, notice=notice
        )
        self._model = self._build()
        self._placement.put(self._model, self._recipe.guard)
        state = as_tensors(bytes(self._state))
        self._state.release()
        _give(self._recipe, self._model, state)

    def _build(self) -> nn.Module:
        try:
            return self._recipe.build(parameters=self._order.parameters)
        except SealiftError:
            if self._recipe.takes_statistics:
                raise unfit("no-statistics") from None
            raise

    def _answer(self, step: object) -> object:
        try:
            step = require_kind(step, ServeStep)
            with torch.inference_mode():
                if step.work == "describe":
                    found = self._recipe.predict(self._model, self._batch(step.rows))
                    return ServeAnswer(0, describe_answer(found, step.rows))
                return ServeAnswer(self._step(step))
        except BaseException as error:
            return _fault(error, self._placement)

    def _step(self, step: ServeStep) -> int:
        match step.work:
            case "predict":
                found = self._recipe.predict(self._model, self._batch(step.rows))
                return self._put(found, require_value(self._form.outputs), step.rows)
            case "begin":
                batch = self._batch(step.rows)
                stream = self._recipe.generate(self._model, batch)
                self._streams[step.stream] = (stream, step.rows)
                return 0
            case "next":
                return self._next(step.stream)
            case "prove":
                self._placement.wait()
                return 0
            case _:
                self._streams.pop(step.stream, None)
                return 0

    def _next(self, number: int) -> int:
        stream, rows = self._streams[number]
        found = self._recipe.guard(next, stream, _END)
        if found is _END:
            del self._streams[number]
            return 0
        return self._put(found, require_value(self._form.tokens), rows)

    def _batch(self, rows: int) -> dict[str, Tensor]:
        schema = self._form.inputs
        content = bytearray(self._room[: rows * schema.row_bytes])
        buffer = torch.frombuffer(content, dtype=torch.uint8)
        batch = batch_from_rows(buffer.view(rows, schema.row_bytes), schema)
        return self._placement.batch(batch)

    def _put(self, found: Any, fields: Fields, rows: int) -> int:
        packed = pack_answer(found, fields.schema, rows)
        content = memoryview(packed.view(-1).numpy())
        if len(content) > len(self._parent.buffers):
            raise unfit("state-bytes")
        self._parent.buffers[: len(content)] = content
        return rows


def _give(recipe: LoadedRecipe, model: nn.Module, state: Mapping[str, Tensor]) -> None:
    own = carried_tensors(model, recipe.guard)
    forms = {name: (each.dtype, tuple(each.shape)) for name, each in own.items()}
    if forms != {name: (e.dtype, tuple(e.shape)) for name, e in state.items()}:
        raise unfit("model-differs")
    strict = not recipes.has_assets()
    recipe.guard(partial(model.load_state_dict, dict(state), strict=strict))
    recipe.guard(model.eval)


def _fault(error: BaseException, placement: DevicePlacement) -> Fault:
    failed = error if isinstance(error, SealiftError) else machine_failed(error)
    fault = describe(failed) if failed else Fault(kind="error")
    if fault.kind == "memory":
        with contextlib.suppress(Exception):
            return replace(fault, room=placement.room())
    return fault


def _end(parent: WorkerEnd, placement: DevicePlacement, answer: object = None) -> None:
    """Give the last answer; with a GPU, once the parent hung up, overwrite its memory and say so."""
    if not placement.is_cpu:
        parent.await_end(answer)
        with contextlib.suppress(Exception):  # the parent says what it missed
            parent.answer(placement.scrub())
    elif answer is not None:
        parent.answer(answer)
