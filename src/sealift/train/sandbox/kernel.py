"""What Python does not offer of the kernel: calls, limits, and rights to give up.

Errors are ``OSError``. Limits say what a process may use up; capabilities, new
privileges and being traced are what it gives up.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from pathlib import Path
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47

_PRCTL_WORDS: Final = 5
_OWN_DESCRIPTORS: Final = 0x400  # CLONE_FILES


def call(name: str, *parts: object) -> int:
    """A function of the C library that says -1 when it fails.

    Raises:
        OSError: with its errno.
    """
    function = _LIBC[name]  # another object at each look-up
    function.restype = ctypes.c_long
    result = int(function(*(_plain(part) for part in parts)))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def system_call(number: int, *parts: object) -> int:
    """A system call that the C library has no function for.

    Raises:
        OSError: with its errno.
    """
    return call("syscall", number, *parts)


def prctl(option: int, *parts: object) -> int:
    """``prctl``; what is not given is 0, which newer options demand."""
    given = (option, *parts)
    return call("prctl", *given, *[0] * (_PRCTL_WORDS - len(given)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """``mount(2)``."""
    words = [word.encode() or None for word in (source, target, kind, options)]
    call("mount", words[0], words[1], words[2], flags, words[3])


def _plain(part: object) -> object:
    return ctypes.c_ulong(part) if type(part) is int and part >= 0 else part


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


def limit_use(memory_bytes: int, most_bytes: int = 0) -> None:
    """Bound files, descriptors, threads and private memory; no core files, no locks.

    Args:
        memory_bytes: Of private memory, data and stacks together.
        most_bytes: What that may be raised to from outside; 0 for no more.
    """
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, SCRATCH_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, THREADS),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        _limit(kind, most)
    change_memory(0, memory_bytes, most_bytes or memory_bytes)


def change_memory(process: int, memory_bytes: int, most_bytes: int) -> None:
    """Bound the private memory of a process; 0 for this one.

    Raises:
        OSError: if it is gone.
    """
    _soft, hard = resource.prlimit(process, resource.RLIMIT_DATA)
    most = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
    bounds = min(memory_bytes, most), most
    resource.prlimit(process, resource.RLIMIT_DATA, bounds)


def leave_descriptors() -> None:
    """Give the calling thread a table of descriptors of its own, a copy of the process's."""
    call("unshare", _OWN_DESCRIPTORS)


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
