"""Namespaces: no network, no other process, and a file system of a few places to read.

A launcher calls ``leave_world`` and forks; the child is process 1 of its own world and
calls ``enter_root``. Each worker, forked from there, takes a scratch of its own that
goes when it does. Without privilege a user namespace gives what is needed, where the
machine allows that.
Source: namespaces(7), pivot_root(2), mount_setattr(2).
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sealift.train.sandbox.inventory import (
    DEVICES,
    GPU_FACTS,
    GPU_FILES,
    MACHINE_FACTS,
    MOST_NAMED_THREADS,
    NAMED_THREADS,
    NVIDIA,
    OF_ITSELF,
    PROCESSES,
    SCRATCH,
    THREADS_OF_ITS_OWN,
)
from sealift.train.sandbox.kernel import SCRATCH_BYTES, call, mount, system_call

_NEW_MOUNTS = 0x00020000
_NEW_UTS = 0x04000000
_NEW_IPC = 0x08000000
_NEW_USER = 0x10000000
_NEW_PROCESSES = 0x20000000
_NEW_NETWORK = 0x40000000
WORLD: Final = _NEW_MOUNTS | _NEW_UTS | _NEW_IPC | _NEW_PROCESSES | _NEW_NETWORK

_READ_ONLY, _NO_SETUID, _NO_DEVICES = 1, 2, 4  # MS_* and MOUNT_ATTR_* agree here
# When a file was last read is written down for the next slice to see, else.
_NO_ACCESS_TIME, _ACCESS_TIMES = 0x10, 0x70  # MOUNT_ATTR_*: one of several choices
_BIND, _RECURSIVE, _PRIVATE = 1 << 12, 1 << 14, 1 << 18
_REMOUNT = 1 << 5
_DETACH: Final = 2
_NO_PROGRAMS: Final = 8  # MS_NOEXEC
# Processes alone, nothing of the machine; and of those only who one may trace.
_PROCESSES_ALONE: Final = "subset=pid,hidepid=ptraceable"
_MOUNT_SETATTR, _PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}
_HERE, _WHOLE_TREE = 0x1000, 0x8000  # AT_EMPTY_PATH, AT_RECURSIVE
_BASE: Final = "/dev"  # a folder that every machine has, to build the new root on
_ROOT_BYTES: Final = 1 << 20


def leave_world() -> None:
    """Give this process's children a world of their own; needs a single thread.

    Raises:
        OSError: where this user may not.
    """
    try:
        call("unshare", WORLD)
    except PermissionError:
        _leave_as_user()


def _leave_as_user() -> None:
    user, group = os.getuid(), os.getgid()
    call("unshare", WORLD | _NEW_USER)
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny", encoding="ascii")
    (own / "uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    (own / "gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def open_numbers() -> int | None:
    """What decides which number the next process of this world has; None where nothing does."""
    with suppress(OSError):
        return os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
    return None


def enter_root(places: Iterable[str]) -> None:
    """Leave the file system but for these places, read-only, and a few devices.

    GPUs are among those, where there are any: which task may use them, the other parts say.

    Raises:
        OSError: where the kernel refuses.
    """
    socket.sethostname("sealift")
    mount("", "/", "", _RECURSIVE | _PRIVATE)
    # Opened first: the new root hides whatever lies below its own folder.
    has_gpu = Path(NVIDIA).exists()
    facts = (*MACHINE_FACTS, *(GPU_FACTS if has_gpu else ()))
    sources = _opened(*places, *facts)
    devices = _opened(*DEVICES, *GPU_FILES)
    mount("sealift", _BASE, "tmpfs", _NO_SETUID, f"mode=755,size={_ROOT_BYTES}")
    for path, source in sources.items():
        _show(source, path, _READ_ONLY | _NO_SETUID | _NO_DEVICES)
    for path, source in devices.items():
        _show(source, path, _READ_ONLY | _NO_SETUID)
    if has_gpu:
        _mount_processes()
    Path(_BASE + SCRATCH).mkdir(exist_ok=True)
    _mount_scratch(_BASE + SCRATCH)
    _become_root(_BASE)


def _opened(*paths: str) -> dict[str, int]:
    return {path: os.open(path, os.O_PATH) for path in paths if Path(path).exists()}


def take_own(*, gpu: bool = False) -> None:
    """An empty scratch folder for this process alone, gone with it.

    Args:
        gpu: Whether it also needs what the kernel says of it, and names for its threads.

    Raises:
        OSError: where the kernel refuses.
    """
    call("unshare", _NEW_MOUNTS)
    _mount_scratch(SCRATCH)
    if os.path.ismount(PROCESSES):
        for path in OF_ITSELF if gpu else ():
            mount(PROCESSES + path.removeprefix("/proc"), path, "", _BIND)
        call("umount2", PROCESSES.encode(), _DETACH)
        if gpu:
            _make_names()
    os.chdir(SCRATCH)


def _make_names() -> None:
    """Folders for the names of this thread and of those to come."""
    os.mkdir(NAMED_THREADS)
    first = os.getpid()
    for number in range(first, first + MOST_NAMED_THREADS):
        os.mkdir(f"{NAMED_THREADS}/{number}")


def _mount_processes() -> None:
    """Of this world, for ``take_own``; now, as a user may only while he still sees all.

    Where a container has covered some of that, there is none: then CUDA does not begin, and
    who asks for GPUs is told so. Tasks on the CPU need none.
    """
    Path(_BASE + PROCESSES).mkdir()
    names = Path(_BASE + THREADS_OF_ITS_OWN)
    names.parent.mkdir(parents=True)
    names.symlink_to(NAMED_THREADS)
    for path in OF_ITSELF:
        Path(_BASE + path).touch()
    flags = _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS
    with suppress(OSError):
        mount("proc", _BASE + PROCESSES, "proc", flags, _PROCESSES_ALONE)


def _mount_scratch(folder: str) -> None:
    flags = _NO_SETUID | _NO_DEVICES
    mount("scratch", folder, "tmpfs", flags, f"mode=700,size={SCRATCH_BYTES}")


def _show(source: int, path: str, attributes: int) -> None:
    """Bind what an open descriptor names to its path below the new root."""
    target = Path(_BASE + path)
    if stat.S_ISDIR(os.fstat(source).st_mode):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(f"/proc/self/fd/{source}", str(target), "", _BIND | _RECURSIVE)
    os.close(source)
    _set_attributes(target, attributes)


def _set_attributes(target: Path, attributes: int) -> None:
    """For a mount and all below it; remounting would miss those."""
    wanted = struct.pack(
        "=QQQQ", attributes | _NO_ACCESS_TIME, _ACCESS_TIMES, _PRIVATE, 0
    )
    buffer = ctypes.create_string_buffer(wanted, len(wanted))
    place = os.open(target, os.O_PATH)
    try:
        flags = _HERE | _WHOLE_TREE
        system_call(_MOUNT_SETATTR, place, b"", flags, buffer, len(wanted))
    finally:
        os.close(place)


def _become_root(folder: str) -> None:
    os.chdir(folder)
    system_call(_PIVOT_ROOT[os.uname().machine], b".", b".")
    call("umount2", b".", _DETACH)
    os.chdir("/")
    mount("", "/", "", _REMOUNT | _BIND | _READ_ONLY | _NO_SETUID)
