"""Attacks of a recipe on the slice after it (N6): what it leaves in its machine.

Each is tried in a process that was confined as a worker is; without that it succeeds,
which is the control. No torch: the walls are those of a worker, the recipe is one line.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

from sealift.lab.attacks.memory import NOTHING_LEFT
from sealift.lab.attacks.stage import CANARY, Stage
from sealift.train.sandbox.confine import Confinement, confine_worker, keep_descriptors
from sealift.train.worker.area import Area

NOT_PERMITTED = "not-permitted"
_WALLS = "seccomp"
_MEMORY_BYTES = 1 << 40
_MARK = 0x5EA1


def flag_of_a_file(_stage: Stage) -> str:
    """A flag of an open file, which whoever else has it open has, too."""
    return _refusal("flag", _WALLS)


def flag_is_set(_stage: Stage) -> bool:
    """Without walls."""
    return not _refusal("flag", "")


def pages_dropped(_stage: Stage) -> str:
    """A library's pages put out of memory, for somebody who times reading them."""
    return _refusal("drop", _WALLS)


def pages_are_dropped(_stage: Stage) -> bool:
    """Without walls."""
    return not _refusal("drop", "")


def pages_asked_for(_stage: Stage) -> str:
    """Which pages the slice before has brought into memory."""
    return _refusal("ask", _WALLS)


def pages_are_told(_stage: Stage) -> bool:
    """Without walls."""
    return not _refusal("ask", "")


def offset_left(_stage: Stage) -> str:
    """Bits in the offset of whatever is open, when a worker's descriptors are closed."""
    return "" if _offset_after(kept=False) == _MARK else NOTHING_LEFT


def offset_is_there(_stage: Stage) -> bool:
    """With the descriptors that a worker was sent."""
    return _offset_after(kept=True) == _MARK


def spoiled_overwriting(_stage: Stage) -> str:
    """The flag that once made the parent's overwriting fail."""
    return "" if CANARY in _after_closing(overwrites=True) else NOTHING_LEFT


def nothing_overwritten(_stage: Stage) -> bool:
    """Without overwriting, what was handed over is still there."""
    return CANARY in _after_closing(overwrites=False)


def _after_closing(*, overwrites: bool) -> bytes:
    area = Area(len(CANARY))
    spy = os.dup(area.descriptor)
    with os.fdopen(spy, "rb") as seen, closing(area):
        with mmap.mmap(area.descriptor, len(CANARY)) as theirs:
            theirs[:] = CANARY
        fcntl.fcntl(spy, fcntl.F_SETFL, os.O_APPEND)
        if overwrites:
            area.close()
        return os.pread(seen.fileno(), len(CANARY), 0)


def _offset_after(*, kept: bool) -> int:
    with os.fdopen(os.memfd_create("bundle"), "rb") as shared:
        command = [
            sys.executable,
            "-P",
            "-m",
            __name__,
            "carry",
            "kept" if kept else "",
        ]
        subprocess.run(command, check=True, pass_fds=[shared.fileno()])  # noqa: S603
        return os.lseek(shared.fileno(), 0, os.SEEK_CUR)


def _refusal(act: str, walls: str) -> str:
    """What the kernel answered to one act, in a process of its own."""
    command = [sys.executable, "-P", "-m", __name__, act, walls]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout


def _carry(kept: str) -> None:
    if not kept:
        keep_descriptors(os.open(os.devnull, os.O_RDONLY), 1)
    for descriptor in range(3, 64):
        try:
            os.lseek(descriptor, _MARK, os.SEEK_SET)
        except OSError:
            continue


def _act(name: str, walls: str) -> None:
    file = os.open(ctypes.__file__, os.O_RDONLY)
    os.read(file, 1)  # in memory, so that to ask for it is answered
    acts: dict[str, Callable[[], object]] = {
        "flag": lambda: fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND),
        "drop": lambda: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED),
        "ask": lambda: os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT),
    }
    if walls:
        confine_worker(Confinement([walls]), (), _MEMORY_BYTES)
    try:
        acts[name]()
    except PermissionError:
        os.write(1, NOT_PERMITTED.encode())


if __name__ == "__main__":
    if sys.argv[1] == "carry":
        _carry(sys.argv[2])
    else:
        _act(sys.argv[1], sys.argv[2])
    os._exit(0)
