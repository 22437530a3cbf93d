"""The folder of a run: whole or not there, also when its writer is killed."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sealift
from sealift.codec import encode
from sealift.errors import UnavailableError, UsageError
from sealift.ids import Digest
from sealift.train.output.manifest import MANIFEST_NAME
from sealift.train.output.runfolder import RunFolder, RunName
from sealift.train.sandbox.kernel import call, mount
from sealift.travel.visit.messages import Output

NAME = RunName("digits", Digest.of(b"agreement"))
OTHER = RunName("letters", NAME.agreement)
SCRIPT = """
import os, signal, sys
from pathlib import Path
from sealift.train.output.runfolder import RunFolder, RunName
from sealift.ids import Digest
place, when, name = sys.argv[1:]
with RunFolder(Path(place), RunName("digits", Digest.of(b"agreement"))) as run:
    run.add(name, b"{}")
    if when == "whole":
        run.appear()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(place: Path, when: str) -> None:
    source = str(Path(sealift.__file__).parent.parent)
    words = [sys.executable, "-c", SCRIPT, str(place), when, MANIFEST_NAME]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": source}, check=False)
    assert done.returncode == -signal.SIGKILL


def test_an_orderly_end_leaves_nothing_beside_it(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", NAME) as run:
        run.add(MANIFEST_NAME, b"{}")
        run.appear()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(UsageError) as caught:
        RunFolder(tmp_path / "run", NAME)
    assert caught.value.code == "output-exists"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.distributed
def test_killed_before_it_appears(tmp_path: Path) -> None:
    killed(tmp_path / "run", "partial")
    assert len(list(tmp_path.glob(".run.*.partial"))) == 1
    with RunFolder(tmp_path / "run", NAME) as run:
        assert not run.complete
        assert len(list(tmp_path.glob(".run.*.partial"))) == 1  # its own
        run.add(MANIFEST_NAME, b"{}")
        run.appear()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.distributed
def test_killed_after_it_appeared(tmp_path: Path) -> None:
    """The same run has nothing to do; another one finds the place taken."""
    killed(tmp_path / "run", "whole")
    with RunFolder(tmp_path / "run", NAME) as run:
        assert run.complete
    with pytest.raises(UsageError):
        RunFolder(tmp_path / "run", NAME)
    killed(tmp_path / "second", "whole")
    with pytest.raises(UsageError):
        RunFolder(tmp_path / "second", OTHER)
    with RunFolder(tmp_path / "second", NAME) as run:
        assert run.complete


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", NAME), pytest.raises(UsageError) as caught:
        RunFolder(tmp_path / "run", NAME)
    assert caught.value.code == "output-exists"


def test_folders_with_longer_names_are_left_alone(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run.two", NAME):
        partial = next(tmp_path.glob(".run.two.*.partial"))
        with RunFolder(tmp_path / "run", NAME):
            assert partial.is_dir()


# ------------------------------------------------------------------ a full disk

MODEL = bytes(9000)
NOTHING = "the disk is full. Free some space and run it again; no partial file was left"
NEW_MOUNTS, PRIVATE, RECURSIVE = 0x20000, 1 << 18, 1 << 14  # linux/sched.h, mount.h


def whole_run(place: Path) -> None:
    """Everything that an orchestrator writes."""
    with RunFolder(place, NAME) as run:
        run.write_output(Output("model.sealed", MODEL[:5000], last=False))
        run.clear()
        run.write_output(Output("model.sealed", MODEL[:5000], last=False))
        run.write_output(Output("model.sealed", MODEL[5000:], last=True))
        run.add("model.key.json", bytes(500))
        run.add(MANIFEST_NAME, b"{}")
        run.appear()


def failure_of(place: Path) -> UnavailableError | None:
    try:
        whole_run(place)
    except UnavailableError as error:
        return error
    return None


def left_in(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


def fails_whole(folder: Path, place: Path) -> bool:
    """Whether the run failed; nothing is left then, and that is what it says."""
    error = failure_of(place)
    if error is not None:
        assert error.code == "disk-full"
        assert str(error).endswith(NOTHING)
        assert left_in(folder) == []
        return True
    run = str(place.relative_to(folder))
    assert [each for each in left_in(folder) if each.startswith(f"{run}/")] == [
        f"{run}/{each}" for each in (MANIFEST_NAME, "model.key.json", "model.sealed")
    ]
    assert not list(place.parent.glob(".*"))
    return False


WRITES = ("open", "mkdir", "write", "fsync", "ftruncate", "pwrite", "replace", "rename")


class FullDisk:
    """Every call that writes, until the disk is full."""

    def __init__(self, patch: pytest.MonkeyPatch, room: int) -> None:
        self.left = room
        for name in WRITES:
            patch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **more: Any) -> Any:
            if original.__name__ != "open" or args[1] & os.O_CREAT:
                self.left -= 1
                if self.left < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*args, **more)

        return write


@pytest.mark.parametrize("place", ["run", "new/deep/run", "run[1]"])
def test_a_disk_that_is_full_at_any_write_leaves_nothing(
    tmp_path: Path, place: str
) -> None:
    failed = 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            FullDisk(patch, failed)
            if not fails_whole(tmp_path, tmp_path / place):
                break
        failed += 1
    assert failed > 12, "calls are counted"


def forked(act: Callable[[], None]) -> int:
    """What a process of its own ends with; 77 if it may not mount."""
    child = os.fork()
    if not child:
        status = 1
        try:
            act()
            status = 0
        except PermissionError:
            status = 77
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.distributed
def test_files_that_may_not_grow_leave_nothing(tmp_path: Path) -> None:
    """As a full disk does, `write` fails in the middle of a file, at each length."""

    def act() -> None:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        for limit in (0, 1, 2, 50, 499, 500, 4999, 5000, 8999):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
            assert fails_whole(tmp_path, tmp_path / "run"), limit
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, most))
        assert not fails_whole(tmp_path, tmp_path / "run")

    assert forked(act) == 0


def test_a_marker_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with little room takes a part, and says nothing."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda to, raw, at: pwrite(to, raw[:7], at))
    with RunFolder(tmp_path / "run", NAME):
        assert (tmp_path / ".run.running").read_bytes() == encode(NAME)


@pytest.mark.distributed
def test_a_small_file_system_is_left_empty(tmp_path: Path) -> None:
    """A real one, which is full after so many files, and after so many pages."""

    def mounted(options: str) -> bool:
        mount("disk", str(tmp_path), "tmpfs", 0, options)
        return fails_whole(tmp_path, tmp_path / "run")

    def act() -> None:
        call("unshare", NEW_MOUNTS)
        mount("", "/", "", PRIVATE | RECURSIVE)
        by_files = [mounted(f"size=1m,nr_inodes={each}") for each in range(2, 12)]
        by_pages = [mounted(f"size={each}k") for each in range(4, 40, 4)]
        for failed in (by_files, by_pages):
            assert failed == sorted(failed, reverse=True)
            assert set(failed) == {True, False}

    status = forked(act)
    if status == 77:
        pytest.skip("this machine lacks the right to mount")
    assert status == 0


def test_a_fault_that_cannot_be_kept_leaves_nothing(tmp_path: Path) -> None:
    fault = Output("fault.north.json", bytes(500), last=True)

    def keep(room: int) -> None:
        with (
            RunFolder(tmp_path / "run", NAME) as run,
            pytest.MonkeyPatch.context() as patch,
        ):
            FullDisk(patch, room)
            run.keep_fault(fault)

    for room in range(4):  # of its file, of its bytes, until it has its name
        with pytest.raises(UnavailableError) as full:
            keep(room)
        assert full.value.code == "disk-full"
        assert left_in(tmp_path) == []


@pytest.mark.parametrize("what", ["partial", "running"])
def test_what_cannot_be_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "partial":
        monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
    else:
        monkeypatch.setattr(Path, "unlink", refuse)

    def write() -> None:
        with RunFolder(tmp_path / "run", NAME) as run:
            FullDisk(monkeypatch, 1)
            run.add(MANIFEST_NAME, b"{}")

    with pytest.raises(UnavailableError) as caught:
        write()
    (left,) = [each for each in left_in(tmp_path) if "/" not in each]
    assert what in left
    assert caught.value.code == "disk-full"
    assert str(caught.value).endswith(f"the disk is full. Remove {tmp_path / left}")


def refuse(path: Path, missing_ok: bool = False) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_marker_that_stays_beside_a_whole_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write() -> None:
        with RunFolder(tmp_path / "run", NAME) as run:
            run.add(MANIFEST_NAME, b"{}")
            run.appear()
            monkeypatch.setattr(Path, "unlink", refuse)

    with pytest.raises(UnavailableError) as caught:
        write()
    assert str(caught.value).endswith(str(tmp_path / ".run.running"))
    assert (tmp_path / "run" / MANIFEST_NAME).is_file()
