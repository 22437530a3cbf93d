"""Whatever opens descriptors gives back each of them, once.

A number that is closed twice may be somebody else's file by then, and so may one that is
used after it was closed; both are tested with a file that got the number.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.attest.tpm.client import DeviceLink
from sealift.channel.record.rawfile import FileSource
from sealift.data.loader.torchloader import SealedDataLoader
from sealift.data.loader.windows import WindowArena
from sealift.data.schedule.memory import SharedBuffer
from sealift.errors import MalformedError, UnavailableError
from sealift.train.job import heldfiles as held_files
from sealift.train.job.checkpoints import CheckpointFolder
from sealift.train.worker.process import TextTap
from sealift.train.worker.requests import Area
from sealift.travel.visit.memory import CPUPool
from tests.sim.descriptors import ROUNDS, descriptors, left_open
from tests.sim.linkworld import LinkWorld
from tests.sim.sealed_shards import Shards, seal_shards
from tests.sim.visit_world import VisitWorld


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return seal_shards(tmp_path_factory.mktemp("shards"))


def visit(folder: Path) -> None:
    with VisitWorld(folder) as world:
        assert world.visit("ada").verified


def numbered(folder: Path) -> Callable[[], Path]:
    """A fresh folder for each call."""
    numbers = iter(range(100))

    def make() -> Path:
        made = folder / str(next(numbers))
        made.mkdir()
        return made

    return make


def test_worlds(tmp_path: Path) -> None:
    fresh = numbered(tmp_path)
    assert left_open(lambda: visit(fresh())) == 0


def test_worlds_that_stay_open_are_noticed(tmp_path: Path) -> None:
    """The control: two sealed files of each of three owners."""
    fresh = numbered(tmp_path)
    with ExitStack() as stack:
        assert left_open(lambda: stack.push(VisitWorld(fresh()))) == 6 * ROUNDS


@pytest.mark.parametrize("agreed", [2, 1, 0])
def test_what_a_holder_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agreed: int
) -> None:
    """Also where it stops half-way, at a file that is not the agreed one."""
    with VisitWorld(tmp_path) as world:
        setup: Any = SimpleNamespace(
            agreement=world.agreement, identity=world.consortium.identities["ada"]
        )
        resources = world.agreement.agreement.resources_of("ada")
        is_agreed = {each.name: at < agreed for at, each in enumerate(resources)}
        table = SimpleNamespace(is_table_of=lambda resource: is_agreed[resource.name])
        card = SimpleNamespace(resource=table, leaves=())
        monkeypatch.setattr(held_files, "read_card", lambda path: card)

        def load() -> None:
            with ExitStack() as stack, suppress(MalformedError):
                held = held_files.load_held(setup, tmp_path, stack)
                assert len(held) == agreed == 2

        assert left_open(load) == 0


def test_links() -> None:
    def cross() -> None:
        world = LinkWorld()
        world.cross(lambda: world.sender.send(b"x" * 10_000))
        world.close()

    assert left_open(cross) == 0


def read(shards: Shards, **options: Any) -> None:
    with (
        shards.open() as dataset,
        SealedDataLoader(dataset, batch_size=7, **options) as batches,
    ):
        assert sum(len(batch["id"]) for batch in batches) == 100
        assert dataset[3]["id"] == 3


@pytest.mark.parametrize("options", [{}, {"workers": "process"}, {"num_workers": 0}])
def test_loaders(shards: Shards, options: dict[str, Any]) -> None:
    assert left_open(lambda: read(shards, device="cpu", **options)) == 0


@pytest.mark.parametrize("options", [{}, {"workers": "process"}])
def test_what_a_notebook_drops_is_closed_and_said(
    shards: Shards, options: dict[str, Any]
) -> None:
    def drop() -> None:
        dataset = shards.open()
        batches = SealedDataLoader(dataset, batch_size=7, device="cpu", **options)
        assert len(next(iter(batches))["id"]) == 7
        assert dataset[3]["id"] == 3

    with pytest.warns(ResourceWarning, match="unclosed|still running"):
        assert left_open(drop) == 0
    deadline = time.monotonic() + 300
    while subprocess._active and time.monotonic() < deadline:  # type: ignore[attr-defined]
        subprocess._cleanup()  # type: ignore[attr-defined]
        time.sleep(0.01)
    assert not subprocess._active, "they end with their loader"  # type: ignore[attr-defined]


def test_an_iteration_that_breaks_off(shards: Shards) -> None:
    def leave() -> None:
        with shards.open() as dataset:
            batches = SealedDataLoader(dataset, batch_size=7, device="cpu")
            next(iter(batches))
            batches.close()

    assert left_open(leave) == 0


def read_only(path: Path) -> FileSource:
    path.write_bytes(b"ours")
    return FileSource(path)


OWNERS: dict[str, Callable[[Path], Any]] = {
    "source": lambda folder: read_only(folder / "file"),
    "buffer": lambda folder: SharedBuffer(100),
    "pool": lambda folder: CPUPool(100, 64),
    "area": lambda folder: Area(100),
    "tap": lambda folder: TextTap(None),
    "arena": lambda folder: WindowArena(1, 100, shared=True),
    "state": lambda folder: CheckpointFolder(folder / "state"),
    "tpm": lambda folder: DeviceLink(os.devnull),
}


class ClosesTwice:
    """What an owner must not be: it only remembers a number."""

    def __init__(self) -> None:
        self.number = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        os.close(self.number)


def others_survive(make: Callable[[], Any]) -> bool:
    """Close it, open files of ours under its numbers, close it again: are ours there?"""
    before = descriptors()
    owner = make()
    its = descriptors() - before
    owner.close()
    freed = its - descriptors()
    assert freed
    with ExitStack() as stack:
        numbers = [os.open(os.devnull, os.O_RDONLY) for _ in freed]
        assert set(numbers) <= its
        for number in numbers:
            stack.callback(_close_if_open, number)
        with suppress(ValueError):
            owner.close()
        return descriptors() >= set(numbers)


def _close_if_open(number: int) -> None:
    with suppress(OSError):
        os.close(number)


@pytest.mark.parametrize("kind", OWNERS)
def test_closing_again_closes_nobody_elses_file(tmp_path: Path, kind: str) -> None:
    assert others_survive(lambda: OWNERS[kind](tmp_path))


def test_an_owner_of_a_number_alone_is_noticed() -> None:
    """The control."""
    assert not others_survive(ClosesTwice)


@pytest.mark.parametrize("kind", sorted(set(OWNERS) - {"state", "tpm"}))
def test_dropped_it_is_closed_and_said(tmp_path: Path, kind: str) -> None:
    def drop() -> None:
        OWNERS[kind](tmp_path)

    with pytest.warns(ResourceWarning, match="unclosed file"):
        assert left_open(drop) == 0


def test_a_dropped_folder_of_checkpoints_is_free_again(tmp_path: Path) -> None:
    assert left_open(lambda: CheckpointFolder(tmp_path / "state")) == 0


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Opens somebody else's file: it gets the lowest number that is free."""
    (tmp_path / "theirs").write_bytes(b"theirs")
    with ExitStack() as stack:
        yield lambda: stack.callback(
            os.close, os.open(tmp_path / "theirs", os.O_RDONLY)
        )


def closed_under_a_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, stranger: Callable[[], None]
) -> bytes:
    """What a read finds while another thread closes the source and a file is opened."""
    source, genuine = read_only(path), os.preadv

    def late(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        source.close()
        stranger()
        return genuine(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", late)
    found = bytearray(6)
    count = source.read_into(0, memoryview(found))
    with pytest.raises(UnavailableError, match="closed"):
        source.read_into(0, memoryview(found))
    with pytest.raises(UnavailableError, match="closed"):
        source.state()
    return bytes(found[:count])


def test_a_read_never_finds_the_file_that_got_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: Callable[[], None]
) -> None:
    before = descriptors()
    found = closed_under_a_read(tmp_path / "ours", monkeypatch, stranger)
    assert found == b"ours"
    assert len(descriptors() - before) == 1  # the stranger's


def test_without_the_count_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: Callable[[], None]
) -> None:
    """The mutant."""
    monkeypatch.setattr(
        FileSource,
        "_close_unless_read",
        lambda self: self._closed and self._file.close(),
    )
    found = closed_under_a_read(tmp_path / "ours", monkeypatch, stranger)
    assert found == b"theirs"


def test_what_is_said_names_the_file() -> None:
    with pytest.warns(ResourceWarning, match=Path(__file__).name):
        FileSource(Path(__file__))
