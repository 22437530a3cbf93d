"""T6: after a visit, nothing of a holder's rows is left in the accelerator's processes.

A real accelerator trains on rows that carry a canary; then the whole address space of
its process, of the one that forks workers and of any worker is searched from outside,
for the canary and for an activation made from it (a canary alone cannot see derived
data). Controls: while a worker is at work the same scan must find both; a scrub that
does not write is caught by the read-back, and one that is not read back either is found
by the scan.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from sealift.crypto.keys import Label
from sealift.demo.holders import build_frame
from sealift.errors import IntegrityError, PeerError
from sealift.release.receipt import ScrubbedPart, ScrubSummary, SignedReceipt
from sealift.travel.accelerator import visit as room
from sealift.travel.visit.lease import SignedLease, placement
from sealift.travel.visit.memory import ALLOCATOR_ENVIRONMENT, scrub
from sealift.travel.visit.messages import (
    Leaves,
    PathTaken,
    Present,
    Ready,
    VisitLoaded,
    receive_message,
    send_message,
)
from tests.sim.live import LiveJob, live_job
from tests.sim.memoryscan import family, scan_family
from tests.sim.visit_world import VisitWorld

ROWS = 66
FACTOR = 3.0
RECIPE = b"""
import torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(16, 24)
        self.out = nn.Linear(24, 2)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))

def build():
    return Net()

def loss(model, batch):
    tagged = batch["x"] * 3.0
    return functional.cross_entropy(model(tagged), batch["label"])

def configure_optimizers(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)
"""
# Sleeps in two steps while row and activation are in use.
PAUSE = b"""
import time

PAUSES = [5.0] * 12  # a scan of all memory takes its time on a busy machine

def pause():
    time.sleep(PAUSES.pop() if PAUSES else 0)
"""
SCHEMA = {
    "fields": [
        {"name": "x", "dtype": "float32", "shape": [16]},
        {"name": "label", "dtype": "int64", "classes": 2},
    ]
}


class Canary:
    """64 bytes of every row of one owner; 16 of them are the same in every row.

    The scan looks for these 16, so that a piece of a row is found as well.
    """

    def __init__(self, owner: str = "ada") -> None:
        self._marked = f"{owner}-train"
        self._generator = np.random.default_rng(secrets.randbits(64))
        self.mark = self._generator.uniform(1, 3, 4).astype(np.float32)

    def rows(self, resource: str) -> bytes:
        """Rows of a resource; one owner's training rows carry the mark."""
        draw = self._generator
        x = draw.uniform(-3, 3, (ROWS, 16)).astype(np.float32)
        x[:, 6:10] = self.mark if resource == self._marked else 0.5
        labels = draw.integers(0, 2, (ROWS, 1))
        pairs = zip(x, labels, strict=True)
        return b"".join(row.tobytes() + label.tobytes() for row, label in pairs)

    def needles(self) -> dict[str, bytes]:
        """What to look for: the rows, the activation, the activation by columns."""
        tagged = self.mark * np.float32(FACTOR)
        return {
            "row": self.mark.tobytes(),
            "activation": tagged.tobytes(),
            # A matrix product packs its input by columns; there, rows lie side by side.
            "packed": tagged[:1].tobytes() * 4,
        }


def environment() -> dict[str, str]:
    """This process's environment with the allocator's settings."""
    return dict(os.environ) | ALLOCATOR_ENVIRONMENT


def leave_half_way(job: LiveJob, signed: SignedLease) -> None:
    """A holder that goes away in the middle of its cargo."""
    held = job.held[signed.body.resource]
    with job.meet(signed) as session:
        first = Present(signed, held.source.header_bytes, len(held.leaves))
        send_message(session, first)
        send_message(session, Leaves(b"".join(held.leaves)))
        receive_message(session, Ready, timeout_s=300)
        send_message(session, PathTaken("relay"))
        key = session.export(Label.VISIT_FRAME, signed.body.digest.raw)
        for sequence in range(2):
            place = placement(signed.body, sequence, held.resource.record_bytes)
            record = held.source.record(place.record)
            session.send_raw(build_frame(key, signed.body, place, record))


def left_after_visit(
    folder: Path,
    *,
    mutant: str = "none",
    break_off: bool = False,
) -> tuple[dict[str, int], SignedReceipt]:
    """Hits after a visit (and a second one that is broken off), and the receipt."""
    canary = Canary()
    with live_job(
        folder,
        canary.rows,
        row_bytes=72,
        schema=SCHEMA,
        recipe=RECIPE,
        mutant=mutant,
        environment=environment(),
    ) as job:
        receipt = job.provision(job.grant("ada"))
        assert job.ended().outcome == "verified"
        if break_off:
            leave_half_way(job, job.grant("ada"))
            assert job.ended().outcome == "failed"
        assert (
            len(family(job.process.pid)) >= 3
        )  # zygotes, and who stands by: looked at, too
        found = scan_family(job.process.pid, canary.needles())
    return {name: len(hits) for name, hits in found.items()}, receipt


@pytest.mark.distributed
def test_nothing_is_left(tmp_path: Path) -> None:
    left, receipt = left_after_visit(tmp_path, break_off=True)
    assert left == {"row": 0, "activation": 0, "packed": 0}
    assert receipt.body.scrub.freed_memory_overwritten


@pytest.mark.distributed
def test_one_owner_is_gone_while_the_next_ones_cargo_waits(tmp_path: Path) -> None:
    """With two buffers the scrub of one visit leaves the other visit's rows alone.

    The rows that wait are the control: the scan would have found the others, too.
    """
    marks = {"ada": Canary("ada"), "bern": Canary("bern")}

    def left(job: LiveJob) -> dict[str, bool]:
        return {
            owner: any(scan_family(job.process.pid, mark.needles()).values())
            for owner, mark in marks.items()
        }

    with live_job(
        tmp_path,
        lambda name: marks[name.split("-")[0]].rows(name),
        row_bytes=72,
        schema=SCHEMA,
        recipe=RECIPE,
        buffers=2,
        environment=environment(),
    ) as job:
        job.works = False
        visits = []
        for owner in marks:
            signed = job.grant(owner)
            threading.Thread(
                target=provision_while_it_lasts, args=(job, signed), daemon=True
            ).start()
            job.wait_for(VisitLoaded)
            visits.append(signed.body.visit)
        job.work(visits[0])
        assert job.ended().outcome == "verified"
        assert left(job) == {"ada": False, "bern": True}


def provision_while_it_lasts(job: LiveJob, signed: SignedLease) -> None:
    """A holder whose visit is still open when the test ends."""
    with suppress(PeerError):
        job.provision(signed)


@pytest.mark.distributed
def test_while_a_worker_is_at_work_the_scan_finds_rows_and_activations(
    tmp_path: Path,
) -> None:
    """The control: it sees into a worker, whose end is what clears its memory."""
    canary = Canary()
    slow = RECIPE.replace(
        b"    return functional", b"    pause()\n    return functional"
    )
    with live_job(
        tmp_path,
        canary.rows,
        row_bytes=72,
        schema=SCHEMA,
        recipe=slow + PAUSE,
        environment=environment(),
    ) as job:
        visit = threading.Thread(
            target=provision_while_it_lasts, args=(job, job.grant("ada")), daemon=True
        )
        visit.start()
        found = scan_until_found(job.process.pid, canary.needles(), visit.is_alive)
    workers = {hit.split()[0] for hit in found["activation"]}
    assert found["row"]
    assert workers
    assert str(job.process.pid) not in workers


def scan_until_found(
    process: int, needles: Mapping[str, bytes], going_on: Callable[[], bool]
) -> dict[str, list[str]]:
    """Scan again until both were seen: a worker may end under the scan's eyes."""
    seen: dict[str, list[str]] = {name: [] for name in needles}
    while going_on():
        for name, hits in scan_family(process, needles).items():
            seen[name] += hits
        if seen["activation"] and seen["row"]:
            break
    return seen


@pytest.mark.distributed
def test_a_scrub_that_only_says_so_is_found(tmp_path: Path) -> None:
    left, receipt = left_after_visit(tmp_path, mutant="no-read-back")
    assert receipt.body.scrub.verified  # so it says
    assert left["row"] >= ROWS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


def test_a_scrub_that_does_not_write_is_read_back(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        room, "scrub", lambda regions: scrub(regions, write=lambda region: None)
    )
    outcome = world.visit("ada")
    assert isinstance(outcome.error, IntegrityError)
    assert outcome.error.code == "scrub"
    assert outcome.receipt is None
    assert outcome.ended is None  # the process stops; there is no next visit


def test_without_the_read_back_there_is_a_receipt(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: it is the read-back that withholds the receipt."""

    def believe(regions: Mapping[str, memoryview]) -> ScrubSummary:
        parts = tuple(ScrubbedPart(name, len(at), 0) for name, at in regions.items())
        return ScrubSummary(parts, freed_memory_overwritten=True, verified=True)

    monkeypatch.setattr(room, "scrub", believe)
    assert world.visit("ada").receipt is not None
    assert not world.pools[-1].scrubbed
