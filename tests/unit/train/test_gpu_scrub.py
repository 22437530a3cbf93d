"""What a task's worker says of its GPU's memory, and what is said where it says nothing."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sealift.attest.development import DevelopmentAttester
from sealift.data.schedule.visits import Stop
from sealift.errors import IntegrityError, JobError, PeerError, SealiftError
from sealift.ids import Role, VisitId
from sealift.release.receipt import (
    InstanceProof,
    ScrubSummary,
    instance_bound,
    verify_receipt,
)
from sealift.train.loop.faults import NOT_OVERWRITTEN, RecipeError
from sealift.train.loop.tasks import DeviceScrub
from sealift.train.loop.trainer import Trainer
from sealift.train.output.handout import Handout
from sealift.train.output.sealing import hidden_fault
from sealift.train.sandboxed import placement as placement_module
from sealift.train.sandboxed.parentpipe import WorkerEnd
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.messages import AssignmentDone, Importing, to_bytes
from sealift.train.worker.process import WorkerEnded, WorkerProcess
from sealift.train.worker.requests import Area
from sealift.travel.accelerator.setup import LoadedVisit
from sealift.travel.settings import JobSettings
from tests.sim import madeup_gpu
from tests.sim.madeup_gpu import CLEAN, FAILS, HOST, PART, compute_there
from tests.unit.train.joints import cargo
from tests.unit.train.recipes import PLAIN, SETTINGS
from tests.unit.train.test_model_to import INSTANCE, made
from tests.worlds.consortium import make_consortium

pytestmark = pytest.mark.distributed

RAISES = "raise ValueError"


def recipe(scrub: str, line: str = "") -> str:
    text = madeup_gpu.lines(scrub) + PLAIN
    return text.replace("    return F.cross", f"    {line}\n    return F.cross")


@contextmanager
def computing(scrub: str, line: str = "") -> Iterator[tuple[RecipeExecutor, Trainer]]:
    files = {"recipe.py": recipe(scrub, line).encode()}
    with RecipeExecutor(files, "recipe.py") as executor:
        trainer = Trainer(executor, SETTINGS)
        trainer.build()
        compute_there(executor)
        yield executor, trainer


def ended(scrub: str, line: str) -> tuple[SealiftError, ScrubSummary]:
    """A task that fails, and a visit's account of it."""
    with computing(scrub, line) as (executor, trainer):
        with pytest.raises(SealiftError) as caught:
            trainer.work([cargo("north", 20)])
        return caught.value, executor.report(HOST)


def test_its_word_stands_in_the_account() -> None:
    with computing(CLEAN) as (executor, trainer):
        trainer.work([cargo("north", 20)])
        found = executor.report(HOST)
    assert found.regions == (*HOST.regions, PART)
    assert found.verified


def test_a_recipe_that_fails_is_hung_up_on_and_says_it_too() -> None:
    error, account = ended(CLEAN, RAISES)
    assert error.code == "recipe-error"
    assert NOT_OVERWRITTEN not in str(error)
    assert account.regions == (*HOST.regions, PART)
    assert account.verified


def test_no_result_counts_without_that_word() -> None:
    error, account = ended(FAILS, "")
    assert error.code == "recipe-garbled"
    assert NOT_OVERWRITTEN in str(error)
    assert account == ScrubSummary(HOST.regions, True, verified=False)


def test_a_byte_that_is_left_ends_the_task_however_it_went() -> None:
    for line in ("", RAISES):
        error, account = ended("return DeviceScrub(4096, 7)", line)
        assert isinstance(error, IntegrityError)
        assert error.code == "scrub"
        assert "at least 7 bytes" in str(error)
        assert not account.verified


@pytest.mark.parametrize("said", ["4096, 4097", "4096, -1", "-1, 0", "1 << 42, 0"])
def test_what_cannot_be_so_is_no_word(said: str) -> None:
    error, account = ended(f"return DeviceScrub({said})", "")
    assert error.code == "recipe-garbled"
    assert not account.verified


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("import os; os._exit(3)", "recipe-killed"),
        (f"raise RuntimeError({'x' * 20!r})", "recipe-error"),
        ("raise MemoryError", "no-memory"),
    ],
)
def test_an_error_says_that_nothing_was_overwritten(line: str, code: str) -> None:
    error, account = ended(FAILS, line)
    assert error.code == code
    assert NOT_OVERWRITTEN in str(error)
    assert not account.verified


def test_a_task_that_its_parent_ends_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another slice did ends this one's task; its rows are overwritten all the same."""

    def refuse(*_parts: object) -> None:
        raise JobError("another slice failed", code="rank-lost")

    monkeypatch.setattr("sealift.train.loop.told.TaskObserver.measured", refuse)
    for scrub, verified in ((CLEAN, True), (FAILS, False)):
        error, account = ended(scrub, "")
        assert error.code == "rank-lost"
        assert (NOT_OVERWRITTEN in str(error)) is not verified
        assert account.verified is verified
        assert (PART in account.regions) is verified


def test_a_worker_that_was_at_something_else_is_heard_out() -> None:
    """It asks first, as it did not know yet that nobody listens."""
    control, zygote = socket.socketpair()
    with (
        RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor,
        closing(Area(4096)) as area,
        control,
        zygote,
    ):
        equipment = replace(executor._equipment, device="cuda:0")
        process = WorkerProcess(control, equipment, area)
        process.status, process._started, process._runs = None, True, True
        stream = process._theirs.detach()
        worker = WorkerEnd(stream, os.dup(area.descriptor))

        def go_on() -> None:
            time.sleep(0.2)
            with pytest.raises(PeerError):
                worker.ask(Importing("recipe.py"))
            worker.await_end(AssignmentDone((), ()))  # not said: nobody hears it
            worker.answer(DeviceScrub(4096, 0))
            os.close(stream)

        thread = threading.Thread(target=go_on)
        thread.start()
        zygote.send(to_bytes(WorkerEnded(0)))
        process.part(1.0)
        thread.join()
        assert process.scrub == DeviceScrub(4096, 0)
        assert not process.left


def test_a_hidden_error_says_it_as_well() -> None:
    error, _account = ended(FAILS, RAISES)
    assert isinstance(error, RecipeError)
    told: list[Any] = []
    handout = made(make_consortium())
    hidden = hide(handout, error, told)
    assert "recipe.py" in str(error)  # control: there is something to hide
    assert "recipe.py" not in str(hidden)
    assert NOT_OVERWRITTEN in str(hidden)
    error.left = ""
    agreement = handout._agreement.agreement
    assert str(hide(handout, error, told)) == str(hidden_fault(agreement))


def test_a_receipt_is_signed_over_that_account() -> None:
    """Also a rank's, which signs whatever became of its work."""
    consortium = make_consortium()
    attester = DevelopmentAttester(consortium.attester, role=Role.ACCELERATOR)
    bound = instance_bound(INSTANCE.public_key, consortium.verified().digest)
    handout = made(consortium)
    handout._proof = InstanceProof(attester.collect(bound), "development")
    handout._settings = JobSettings()
    stop = Stop(0, "ada", "ada-train", "train", 0, 20)

    def signed() -> ScrubSummary:
        loaded = LoadedVisit(0, 0)
        found = handout.receipt_for(VisitId.generate(), stop, loaded, {}, HOST)
        return verify_receipt(found).scrub

    assert signed() == HOST  # control
    _error, account = ended(FAILS, RAISES)
    handout._report = lambda scrub: account
    assert signed() == ScrubSummary(HOST.regions, True, verified=False)


def hide(handout: Handout, error: RecipeError, told: list[Any]) -> JobError:
    handout._proof = SimpleNamespace(evidence=None)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sealift.train.output.handout.seal_fault", lambda *_p, **_n: ())
        return handout.hide(error, told.append)


def test_reading_back_allocates_nothing_and_finds_one_byte() -> None:
    """Of any length, wherever it lies."""
    count, most = placement_module._count_left, placement_module._READ_BYTES
    for length in (1, 7, most, most + 1, 5 * most - 3):
        for place in {0, length // 2, length - 1}:
            part = torch.zeros(length, dtype=torch.uint8)
            assert count(part) == 0
            part[place] = 1
            assert count(part) == 1
