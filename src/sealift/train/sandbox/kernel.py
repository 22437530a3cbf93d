"""System calls that Python does not offer, with their errors as ``OSError``."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47

_PRCTL_WORDS: Final = 5


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
