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
from pathlib import Path
from typing import Final

from sealift.train.sandbox.confine import Confinement, confine_worker, keep_descriptors
from sealift.train.worker.requests import Area
from tests.attacks.scenarios.world import CANARY, NOTHING_LEFT, AttackWorld

NOT_PERMITTED: Final = "not-permitted"
_WALLS: Final = "seccomp"
_MODULES: Final = [
    str(Path(__file__).parents[3]),
    *filter(None, [os.environ.get("PYTHONPATH")]),
]
_MEMORY_BYTES: Final = 1 << 40
_MARK: Final = 0x5EA1


def confined(act: str) -> Callable[[AttackWorld], str]:
    """What the kernel answers to an act of a confined process."""
    return lambda _world: _run(act, _WALLS)


def free(act: str) -> Callable[[AttackWorld], bool]:
    """Whether the same is done without walls."""
    return lambda _world: not _run(act, "")


def offset_left(_world: AttackWorld) -> str:
    """Bits in the offset of whatever is open, when a worker's descriptors are closed."""
    return "" if _offset_after("") == _MARK else NOTHING_LEFT


def offset_is_there(_world: AttackWorld) -> bool:
    """With the descriptors that a worker was sent."""
    return _offset_after("kept") == _MARK


def spoiled_overwriting(_world: AttackWorld) -> str:
    """The flag that once made the parent's overwriting fail."""
    return "" if CANARY in _after_closing(overwrites=True) else NOTHING_LEFT


def nothing_overwritten(_world: AttackWorld) -> bool:
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


def _offset_after(kept: str) -> int:
    with os.fdopen(os.memfd_create("bundle"), "rb") as shared:
        _run("carry", kept, shared.fileno())
        return os.lseek(shared.fileno(), 0, os.SEEK_CUR)


def _run(act: str, argument: str, *descriptors: int) -> str:
    """Do it in a process of its own; what that said."""
    command = [sys.executable, "-P", "-m", __name__, act, argument]
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=descriptors,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(_MODULES)},
    )
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
        # A flag, which whoever else has the file open has, too.
        "flag": lambda: fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND),
        # A library's pages put out of memory, for somebody who times reading them.
        "drop": lambda: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED),
        # Which pages the slice before has brought into memory.
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
