"""What a process may use up, and what it gives up: limits, capabilities, being traced."""

from __future__ import annotations

import os
import resource
import signal
import struct
from pathlib import Path
from typing import Final

from sealift.train.sandbox.kernel import (
    PR_CAP_AMBIENT,
    PR_CAPBSET_DROP,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    call,
    prctl,
)

SCRATCH_BYTES: Final = 64 << 20
OPEN_FILES: Final = 256
THREADS: Final = 4096
FIRST_TO_DIE: Final = 1000
_CAPABILITY_VERSION: Final = 0x20080522
_AMBIENT_CLEAR_ALL: Final = 4


def hide_memory() -> None:
    """Nobody without special rights traces this process or reads its memory or dumps."""
    prctl(PR_SET_DUMPABLE, 0)


def end_with_parent(parent: int) -> None:
    """Be killed when the process that forked us ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def die_first() -> None:
    """Where memory runs out, the kernel takes this process before any other."""
    Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_DIE), encoding="ascii")


def limit_use(memory_bytes: int) -> None:
    """Bound files, descriptors, threads and private memory; no core files, no locks.

    Args:
        memory_bytes: Of private memory, data and stacks together.
    """
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, SCRATCH_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, THREADS),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        _limit(kind, most)


def forbid_new_privileges() -> None:
    """No program that it may run gives more rights; seccomp and Landlock demand it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Be nobody special from now on, whatever the user."""
    for number in range(64):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:  # past the last one, or not ours to drop: then not ours either
            break
    prctl(PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    head = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    none = bytes(24)  # effective, permitted and inheritable, twice 32 bits
    call("capset", head, none)


def _limit(kind: int, most: int) -> None:
    _soft, hard = resource.getrlimit(kind)
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (bound, bound))
