"""Landlock: what a process may still touch of the file system, whoever it is.

Everything that the kernel's version can handle is _handled, hence refused, but for the
places named here: reading where Python lives, all in the scratch folder. No TCP, no
abstract sockets and no signals to processes outside, where the version has that.
Source: linux/Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from sealift.train.sandbox.kernel import system_call

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every machine
_VERSION_FLAG: Final = 1
_PATH_BENEATH: Final = 1

WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
_REMOVE = 1 << 4 | 1 << 5
_MAKE = 1 << 7 | 1 << 8  # folders and regular files
TRUNCATE: Final = 1 << 14
READ: Final = READ_FILE | READ_DIR
_COMMAND = 1 << 15  # ioctl of a device
ALL: Final = READ | WRITE_FILE | _REMOVE | _MAKE | TRUNCATE
DEVICE: Final = READ_FILE | WRITE_FILE | _COMMAND
_OF_FILES: Final = DEVICE | TRUNCATE

# By version: how many file rights, network rights and scopes it knows.
_FILE_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6


def version() -> int:
    """The kernel's version of Landlock; 0 without it."""
    try:
        return system_call(_CREATE, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def _handled(found: int) -> tuple[int, int, int]:
    """(file rights, network rights, scopes) that this version can refuse."""
    files = (1 << _FILE_RIGHTS[min(found, max(_FILE_RIGHTS))]) - 1
    network = 0b11 if found >= _NETWORK_SINCE else 0
    scopes = 0b11 if found >= _SCOPES_SINCE else 0
    return files, network, scopes


def restrict(places: Mapping[str, int]) -> None:
    """Refuse this thread everything but these rights in these places, for ever.

    Args:
        places: Rights by path; a path that does not exist is left out.

    Raises:
        OSError: if the kernel refuses.
    """
    rights = _handled(version())
    ruleset = _create(rights)
    try:
        for path, wanted in places.items():
            _allow(ruleset, path, wanted & rights[0])
        system_call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _create(rights: Sequence[int]) -> int:
    # Older kernels know a shorter structure and demand that the rest is zero.
    attribute = struct.pack("=QQQ", *rights)
    buffer = ctypes.create_string_buffer(attribute, len(attribute))
    return system_call(_CREATE, buffer, len(attribute), 0)


def _allow(ruleset: int, path: str, wanted: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        folder = stat.S_ISDIR(os.fstat(place).st_mode)
        rights = wanted if folder else wanted & _OF_FILES
        rule = struct.pack("=Qi", rights, place)
        buffer = ctypes.create_string_buffer(rule, len(rule))
        system_call(_ADD, ruleset, _PATH_BENEATH, buffer, 0)
    finally:
        os.close(place)
