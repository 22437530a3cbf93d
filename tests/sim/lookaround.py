"""What a process has that no row of the table explains; also run from inside of recipes.

A recipe cannot import the tests: its bundle holds this file, and the tables as it finds
them in the package.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import resource
import stat
from collections.abc import Callable, Iterable, Mapping

from sealift.train.sandbox import inventory

MOST_DESCRIPTORS = 1024
MOST_CALLS = 1024  # the kernel's last number is below 500
# uretprobe and uprobe of x86-64: no filter is asked, and who calls them outside of the
# kernel's own trampoline gets SIGILL.
UNFILTERED = {335, 336} if platform.machine() == "x86_64" else set()
LIBC = ctypes.CDLL(None, use_errno=True)


def unexplained_descriptors() -> list[int]:
    return sorted(set(descriptors()) ^ set(inventory.DESCRIPTORS))


def descriptors() -> dict[int, str]:
    """What is open, by kind."""
    found = {}
    for number in range(MOST_DESCRIPTORS):
        try:
            status = os.fstat(number)
        except OSError:
            continue
        null = stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3)
        found[number] = "null" if null else stat.filemode(status.st_mode)[0]
    return found


def known_calls() -> set[int]:
    """Of a worker without a GPU."""
    numbers = inventory.MACHINES[platform.machine()].numbers
    others = inventory.names_in(inventory.GPU_CALLS | inventory.GPU_LIMITED)
    return {number for name, number in numbers.items() if name not in others}


def unexplained_calls(known: set[int]) -> list[int]:
    """Numbers outside of the table that the filter lets through, whatever they do then."""
    found = []
    for number in range(MOST_CALLS):
        if number in known or number in UNFILTERED:
            continue
        ctypes.set_errno(0)
        answer = LIBC.syscall(number, *[ctypes.c_long(-1)] * 6)
        if answer != -1 or ctypes.get_errno() != errno.EPERM:
            found.append(number)
    return found


def explained_paths(places: Iterable[str]) -> set[str]:
    rows = (*places, *inventory.MACHINE_FACTS, *inventory.DEVICES, inventory.SCRATCH)
    facts = (*inventory.GPU_FACTS, *inventory.OF_ITSELF, inventory.PROCESSES)
    return {*rows, *inventory.GPU_FILES, *facts, inventory.THREADS_OF_ITS_OWN}


def unexplained_paths(explained: set[str]) -> list[str]:
    """Every name from the root down to the explained ones that is none of them."""
    found: list[str] = []
    waiting = ["/", "/.."]  # a root that is left and not unmounted lies above
    while waiting:
        folder = waiting.pop()
        for name in os.listdir(folder):
            path = os.path.join(os.path.normpath(folder), name)
            if path in explained:
                continue
            on_the_way = any(each.startswith(f"{path}/") for each in explained)
            if on_the_way and stat.S_ISDIR(os.lstat(path).st_mode):
                waiting.append(path)
            else:
                found.append(path)
    return found


def shared_state(path: str) -> Mapping[str, Callable[[], object]]:
    """Ways to set or read what outlives a slice, or what another process sees.

    Args:
        path: A file that others read, too.
    """
    file = os.open(path, os.O_RDONLY)
    length = 4096
    address = _mapped(file, length)
    word = ctypes.c_int(0)
    buffer = [bytearray(1)]
    return {
        "flags of a description": lambda: fcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND),
        "owner of a description": lambda: fcntl.fcntl(file, fcntl.F_SETOWN, 1),
        "lock": lambda: fcntl.flock(file, fcntl.LOCK_SH),
        "lock of a range": lambda: fcntl.lockf(file, fcntl.LOCK_SH),
        "lease": lambda: fcntl.fcntl(file, 1024, fcntl.F_RDLCK),
        "drop pages": lambda: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED),
        "read ahead": lambda: _demand(LIBC.readahead(file, ctypes.c_long(0), length)),
        "advise to page out": lambda: _demand(LIBC.madvise(address, length, 21)),
        "advise to read": lambda: _demand(LIBC.madvise(address, length, 3)),
        "advise to merge": lambda: _demand(LIBC.madvise(address, length, 12)),
        "which pages are there": lambda: _demand(
            LIBC.mincore(address, length, ctypes.byref(word))
        ),
        "read what is there": lambda: os.preadv(file, buffer, 0, os.RWF_NOWAIT),
        "lock pages": lambda: _demand(LIBC.mlock(address, length)),
        "write back": lambda: _demand(LIBC.msync(address, length, 4)),
        "write back a file": lambda: os.fsync(file),
        "a disk's room": lambda: os.fstatvfs(file),
        "the machine's memory": lambda: _demand(
            LIBC.sysinfo(ctypes.create_string_buffer(256))
        ),
        "reads from the disk": lambda: resource.getrusage(resource.RUSAGE_SELF),
        "a name that others see": lambda: _demand(LIBC.prctl(15, b"bits", 0, 0, 0)),
        "a time of access": lambda: os.utime(path),
        "another's clock": lambda: time_of(os.getppid()),
    }


def time_of(process: int) -> float:
    """What another process has computed so far, by the kernel's number for its clock."""
    import time

    return time.clock_gettime(~process << 3 | 2)


def _mapped(file: int, length: int) -> ctypes.c_void_p:
    LIBC.mmap.restype = ctypes.c_void_p
    kind = mmap.MAP_SHARED
    return ctypes.c_void_p(LIBC.mmap(None, length, mmap.PROT_READ, kind, file, 0))


def _demand(result: int) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
