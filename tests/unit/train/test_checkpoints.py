"""Checkpoints of a run: folder and brokers together, damaged, older, or full."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import sealift
from sealift.channel.record.sealedfile import SealedFileReader
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    IntegrityError,
    SealiftError,
    StaleError,
    UnavailableError,
)
from sealift.events import Event
from sealift.ids import Digest
from sealift.train.job.checkpointfile import (
    Checkpoint,
    JobBinding,
    checkpoint_path,
    numbers_in,
    read_checkpoint,
)
from sealift.train.job.checkpoints import CheckpointFolder, Checkpoints
from tests.sim.checkpoint_world import CheckpointWorld, Faults
from tests.worlds.consortium import make_consortium

CONSORTIUM = make_consortium(("ada", "bern"))
BINDING = JobBinding(
    job="digits", agreement=Digest.of(b"agreement"), settings=Digest.of(b"settings")
)


@dataclass(frozen=True)
class Progress:
    rows: int
    metrics: dict[str, float]


@pytest.fixture
def world() -> Iterator[CheckpointWorld]:
    world = CheckpointWorld(CONSORTIUM, ("ada", "bern"))
    yield world
    world.close()


@dataclass
class Run:
    """One accelerator's checkpoints."""

    checkpoints: Checkpoints[Progress]
    folder: CheckpointFolder
    events: list[Event]

    def seal(self, position: int, content: bytes) -> None:
        progress = Progress(position, {})
        self.checkpoints.note(position, lambda: progress, lambda: {"joint": content})

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


def start(world: CheckpointWorld, *, every: int = 1, job: str = "digits") -> Run:
    folder, events = CheckpointFolder(world.folder / "state"), list[Event]()
    checkpoints = Checkpoints(
        folder,
        world.ledger(),
        binding=replace(BINDING, job=job),
        kind=Progress,
        every=every,
        sink=events.append,
    )
    return Run(checkpoints, folder, events)


def test_goes_on_from_the_last(world: CheckpointWorld) -> None:
    run = start(world)
    assert run.checkpoints.restore() is None
    assert run.checkpoints.latest() is None
    for position in (1, 2, 3):
        run.seal(position, b"state %d" % position)
    latest = run.checkpoints.latest()
    assert latest is not None
    assert latest.states == {"joint": b"state 3"}
    assert numbers_in(run.folder.path) == [2, 3]
    run.folder.close()
    again = start(world)
    found = again.checkpoints.restore()
    assert found == Checkpoint(3, 3, Progress(3, {}), {"joint": b"state 3"})
    again.seal(4, b"state 4")
    assert again.kinds() == ["checkpoint.restored", "checkpoint.sealed"]
    again.checkpoints.finish()
    assert numbers_in(again.folder.path) == []
    again.folder.close()
    fresh = start(world)
    assert fresh.checkpoints.restore() is None
    fresh.seal(1, b"another run")
    assert numbers_in(fresh.folder.path) == [5]
    fresh.folder.close()


def test_only_every_so_many_groups(world: CheckpointWorld) -> None:
    for every, sealed in ((3, 2), (0, 0)):
        run = start(world, every=every)
        run.checkpoints.restore()
        for position in range(1, 8):
            run.seal(position, b"state")
        assert run.kinds().count("checkpoint.sealed") == sealed
        run.folder.close()


def test_one_process_at_a_time(
    world: CheckpointWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealift.train.job.checkpoints.LOCK_S", 0.0)
    run = start(world)
    with pytest.raises(UnavailableError) as caught:
        CheckpointFolder(run.folder.path)
    assert caught.value.code == "state-in-use"
    run.folder.close()
    CheckpointFolder(run.folder.path).close()


@pytest.mark.parametrize("at", range(6))
def test_a_missed_checkpoint_leaves_the_one_before(
    world: CheckpointWorld, at: int
) -> None:
    run = start(world)
    run.checkpoints.restore()
    run.seal(1, b"state 1")
    world.faults = Faults(at, "answer")
    run.seal(2, b"state 2")
    world.faults = Faults()
    last = 2 if "checkpoint.missed" not in run.kinds() else 1
    run.folder.close()
    again = start(world)
    found = again.checkpoints.restore()
    assert found is not None
    assert found.states["joint"] == b"state %d" % found.position
    assert found.position >= last
    again.folder.close()


def refusal(world: CheckpointWorld, job: str = "digits") -> SealiftError:
    """What the next accelerator is told."""
    run = start(world, job=job)
    try:
        run.checkpoints.restore()
    except SealiftError as error:
        return error
    finally:
        run.folder.close()
    raise AssertionError("not refused")


def sealed_run(world: CheckpointWorld, count: int) -> Path:
    run = start(world)
    run.checkpoints.restore()
    for position in range(1, count + 1):
        run.seal(position, os.urandom(1000))
    run.folder.close()
    return run.folder.path


def test_an_older_file_in_its_place(world: CheckpointWorld) -> None:
    folder = sealed_run(world, 2)
    shutil.copy(checkpoint_path(folder, 1), checkpoint_path(folder, 2))
    error = refusal(world)
    assert isinstance(error, StaleError)
    assert (error.code, error.exit_code) == ("checkpoint-stale", 5)


def test_an_older_folder_put_back(world: CheckpointWorld) -> None:
    folder = sealed_run(world, 2)
    checkpoint_path(folder, 2).unlink()
    assert refusal(world).code == "checkpoint-stale"


def test_the_folder_is_gone(world: CheckpointWorld) -> None:
    shutil.rmtree(sealed_run(world, 2))
    error = refusal(world)
    assert (error.code, error.exit_code) == ("checkpoint-missing", 3)


def test_mutant_without_the_digest_still_needs_the_key(
    world: CheckpointWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older file has another key; a changed one does not open with its own."""
    folder = sealed_run(world, 2)
    monkeypatch.setattr(
        "sealift.train.job.checkpoints.find_checkpoint",
        lambda folder, number, sealed: checkpoint_path(folder, number),
    )
    whole = checkpoint_path(folder, 2).read_bytes()
    checkpoint_path(folder, 2).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert refusal(world).code == "checkpoint-damaged"
    shutil.copy(checkpoint_path(folder, 1), checkpoint_path(folder, 2))
    error = refusal(world)
    assert isinstance(error, IntegrityError)
    assert (error.code, error.exit_code) == ("checkpoint-damaged", 5)


def test_mutant_with_one_key_for_all_opens_the_older_one(
    world: CheckpointWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: without digest, fresh keys and the number, an operator goes back."""
    material = os.urandom(32)

    class OneKey(SecretKey):
        generate = staticmethod(lambda: SecretKey(material))  # type: ignore[assignment]

    monkeypatch.setattr("sealift.train.job.checkpoints.SecretKey", OneKey)
    folder = sealed_run(world, 2)
    monkeypatch.setattr(
        "sealift.train.job.checkpoints.find_checkpoint",
        lambda folder, number, sealed: checkpoint_path(folder, number),
    )
    shutil.copy(checkpoint_path(folder, 1), checkpoint_path(folder, 2))
    assert refusal(world).code == "bad-checkpoint"  # the number stands inside as well
    key = SecretKey(material)
    with SealedFileReader(checkpoint_path(folder, 2), key) as reader:
        assert reader.total_bytes > 1000
    opened = read_checkpoint(checkpoint_path(folder, 2), Progress, BINDING, 1, key)
    assert opened.position == 1


def test_with_other_settings(world: CheckpointWorld) -> None:
    sealed_run(world, 1)
    error = refusal(world, job="letters")  # the brokers are asked about "digits"
    assert (error.code, error.exit_code) == ("checkpoint-other-job", 5)


def fill_the_disk(limit: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


@pytest.mark.distributed
def test_a_full_disk_leaves_the_one_before(world: CheckpointWorld) -> None:
    """In a process of its own, in which no file can grow beyond a limit."""
    folder = sealed_run(world, 1)
    before = checkpoint_path(folder, 1).read_bytes()
    source = str(Path(sealift.__file__).parent.parent)
    script = (
        "import sys; from pathlib import Path\n"
        "from sealift.crypto.keys import SecretKey\n"
        "from sealift.errors import SealiftError\n"
        "from sealift.ids import Digest\n"
        "from sealift.train.job.checkpointfile import *\n"
        "folder = Path(sys.argv[1])\n"
        "binding = JobBinding(job='a', agreement=Digest(bytes(32)),"
        " settings=Digest(bytes(32)))\n"
        "checkpoint = Checkpoint(2, 2, {}, {'joint': bytes(9_000_000)})\n"
        "try:\n"
        "    write_checkpoint(folder, checkpoint, binding, SecretKey.generate())\n"
        "except SealiftError as error:\n"
        "    print(error.code); sys.exit(error.exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "PYTHONPATH": source},
        preexec_fn=fill_the_disk(1 << 20),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "disk-full\n"), done.stderr
    assert [path.name for path in folder.iterdir()] == ["checkpoint-000001.sealed"]
    assert checkpoint_path(folder, 1).read_bytes() == before
    run = start(world)
    assert run.checkpoints.restore() is not None
    run.folder.close()


def test_killed_while_it_writes(world: CheckpointWorld) -> None:
    """What is left has another name, and goes with the next checkpoint."""
    folder = sealed_run(world, 1)
    (folder / ".checkpoint-000002.sealed.0badcafe.partial").write_bytes(b"half")
    run = start(world)
    assert run.checkpoints.restore() is not None
    run.seal(2, b"state 2")
    assert {path.name for path in folder.iterdir()} == {
        "checkpoint-000001.sealed",
        "checkpoint-000002.sealed",
    }
    run.folder.close()
