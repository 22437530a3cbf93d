"""The filter of a recipe's system calls: a classic BPF program, made here.

An allow-list: every other call fails with EPERM, so that a recipe that tries gets an
ordinary ``PermissionError``. A foreign instruction set kills the process; the x32 calls
of x86-64 do not exist. What is allowed, and why, stands in ``inventory``; here are the
arguments of calls that reach shared state with others.
Source: linux/Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sealift.errors import UnavailableError
from sealift.train.sandbox.inventory import (
    ALLOWED,
    GPU_CALLS,
    MACHINES,
    RECEIVING,
    RECEIVING_ALSO,
    RECEIVING_LIMITED,
    RM_COMMANDS,
    RM_LETTER,
    UVM_COMMANDS,
    Machine,
    names_in,
)
from sealift.train.sandbox.kernel import PR_SET_SECCOMP, prctl

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
ERRNO: Final = 0x00050000
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_GO_ON: Final = 0x05  # so many instructions: a comparison's own jumps have 8 bits
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32_BIT: Final = 0x40000000
_FILTER_MODE: Final = 2

_THREAD_FLAGS: Final = 0x10900  # CLONE_THREAD | CLONE_SIGHAND | CLONE_VM
_NEW_NAMESPACES: Final = 0x7E020080
_ANSWERED: Final = 0x5401, 0x5413, 0x5451  # TCGETS, TIOCGWINSZ, FIOCLEX
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: of a description nothing is set.
_DESCRIPTOR: Final = 0, 1, 2, 3, 1030
_SET_FLAGS: Final = 4  # F_SETFL: CUDA's pipes do not block
# AF_UNIX; SOCK_SEQPACKET, and the bits of a kind: what is above are flags.
_SOCKETS_OF_FILES, _PACKETS, _KIND = 1, 5, 0xF
_OF_SOCKETS, _PASS_CREDENTIALS = 1, 16  # SOL_SOCKET, SO_PASSCRED
# A name has 8 to 127 bytes with its family. A shorter one could ask the kernel for the next
# of its own counter, which older kernels keep for the whole machine.
_LENGTHS, _LONGER = (8, 16, 32, 64), 0xFFFFFF80
_SET_NAME: Final = 15  # PR_SET_NAME
_ANY_SIZE: Final = 0xC000FFFF  # of a driver's command: its size has 14 bits in between
_BOTH_WAYS: Final = 0xC0000000
# MADV_DONTNEED, FREE, DONTFORK, HUGEPAGE, NOHUGEPAGE, DONTDUMP. Not PAGEOUT, COLD or
# WILLNEED, which move a library's pages for all, and not MERGEABLE, which compares them.
_ADVICE: Final = 4, 8, 10, 14, 15, 16
_PRIVATE: Final = 0x80  # FUTEX_PRIVATE_FLAG
_CLOCKS: Final = 0xFFFFFFF0  # others than 0 to 15 are of some process, by its number
_WIDE_REGISTERS: Final = 0x1021, 0x1022, 0x1023  # ARCH_*_XCOMP_*
# How a call is refused where EPERM would end more than the call. A thread is made by
# clone, whose flags a filter can read; who joins one waits at a shared futex, and asks
# again until it has ended.
_OTHERWISE: Final = {"clone3": errno.ENOSYS, "futex": errno.EAGAIN}

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


@dataclass(frozen=True, slots=True)
class Demand:
    """What one argument of a call must be, in its low or high 32 bits."""

    argument: int
    value: int
    mask: int = 0xFFFFFFFF
    high: bool = False

    @property
    def offset(self) -> int:
        """Where it lies in ``struct seccomp_data``; both machines are little-endian."""
        return _ARGUMENTS_AT + 8 * self.argument + (4 if self.high else 0)


def program(
    machine: Machine, process: int, *, gpu: bool = False
) -> tuple[Instruction, ...]:
    """The filter.

    Args:
        machine: Whose numbers it compares with.
        process: The only one that signals may go to: the caller itself.
        gpu: Whether it computes on one.
    """
    limits = _limits(process, gpu=gpu) | (_limits_of_a_gpu() if gpu else {})
    return _program(
        machine, limits, names_in(ALLOWED) + (names_in(GPU_CALLS) if gpu else ())
    )


def program_to_receive(machine: Machine) -> tuple[Instruction, ...]:
    """The filter of the thread that maps what comes to a worker that stands by."""
    all_limits = _limits(0, gpu=False)
    limits = {name: all_limits[name] for name in RECEIVING_LIMITED}
    return _program(machine, limits, (*names_in(RECEIVING), *RECEIVING_ALSO))


def _program(
    machine: Machine,
    limits: Mapping[str, Sequence[Sequence[Demand]]],
    allowed: Sequence[str],
) -> tuple[Instruction, ...]:
    found = [(_LOAD, 0, 0, _MACHINE_AT), (_EQUAL, 1, 0, machine.audit), _give(KILL)]
    found += [(_LOAD, 0, 0, _NUMBER_AT), (_AT_LEAST, 0, 1, _X32_BIT)]
    found += [_give(ERRNO | errno.ENOSYS)]
    # First: of a call that is always allowed the kernel asks no program again.
    for name, choices in limits.items():
        if name in machine.numbers:
            refusal = _OTHERWISE.get(name, errno.EPERM)
            found += _limited(machine.numbers[name], choices, refusal)
    for name in allowed:
        if name in machine.numbers:
            found += [(_EQUAL, 0, 1, machine.numbers[name]), _give(ALLOW)]
    return (*found, _give(ERRNO | errno.EPERM))


def install(process: int, *, gpu: bool = False) -> None:
    """Filter this thread's calls from now on; it needs no-new-privileges.

    Raises:
        UnavailableError: code ``no-sandbox``, on a machine that it has no numbers for.
        OSError: if the kernel has no seccomp.
    """
    _install(program(_machine(), process, gpu=gpu))


def install_to_receive() -> None:
    """The same for the thread that maps; raises like ``install``."""
    _install(program_to_receive(_machine()))


def _machine() -> Machine:
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise UnavailableError(
            f"Sealift has no system call numbers for {platform.machine()}",
            code="no-sandbox",
        )
    return machine


def _install(steps: Sequence[Instruction]) -> None:
    raw = b"".join(struct.pack("=HBBI", *each) for each in steps)
    code = ctypes.create_string_buffer(raw, len(raw))
    # struct sock_fprog: a length, padding, a pointer.
    head = struct.pack("@HP", len(raw) // 8, ctypes.addressof(code))
    prctl(PR_SET_SECCOMP, _FILTER_MODE, ctypes.create_string_buffer(head, len(head)))


def _limits(process: int, *, gpu: bool) -> dict[str, Sequence[Sequence[Demand]]]:
    """By call: the ways in which it is allowed, each a list of demands."""
    flags = (*_DESCRIPTOR, _SET_FLAGS) if gpu else _DESCRIPTOR
    nothing = [Demand(2, 0), Demand(2, 0, high=True)]
    threads = Demand(0, _THREAD_FLAGS, _THREAD_FLAGS | _NEW_NAMESPACES)
    clock = [[Demand(0, 0, _CLOCKS)]]
    return {
        "futex": [[Demand(1, _PRIVATE, _PRIVATE)]],
        "ioctl": [[Demand(1, value)] for value in _ANSWERED] + _commands(gpu),
        "fcntl": [[Demand(1, value)] for value in flags],
        "madvise": [[Demand(2, value)] for value in _ADVICE],
        "clock_gettime": clock,
        "clock_getres": clock,
        "clock_nanosleep": clock,
        "arch_prctl": [[Demand(0, value)] for value in _WIDE_REGISTERS],
        "prlimit64": [[Demand(0, 0), *nothing], [Demand(0, process), *nothing]],
        "clone": [[threads]],
        "clone3": [],
        "kill": [[Demand(0, process)]],
        "tgkill": [[Demand(0, process)]],
    }


def _limits_of_a_gpu() -> dict[str, Sequence[Sequence[Demand]]]:
    """What CUDA calls when it begins, and nothing that moves a byte."""
    return {
        "socket": [[Demand(0, _SOCKETS_OF_FILES), Demand(1, _PACKETS, _KIND)]],
        "setsockopt": [[Demand(1, _OF_SOCKETS), Demand(2, _PASS_CREDENTIALS)]],
        "bind": [[Demand(2, each, each | _LONGER)] for each in _LENGTHS],
        "prctl": [[Demand(0, _SET_NAME)]],
    }


def _commands(gpu: bool) -> list[list[Demand]]:
    """To a GPU's driver; one of its own has both directions and any size."""
    if not gpu:
        return []
    letter = _BOTH_WAYS | RM_LETTER << 8
    own = [[Demand(1, letter | number, _ANY_SIZE)] for number in RM_COMMANDS]
    return own + [[Demand(1, number)] for number in UVM_COMMANDS]


def _limited(
    number: int, choices: Sequence[Sequence[Demand]], refusal: int
) -> list[Instruction]:
    body: list[Instruction] = []
    for demands in choices:
        body += _demand_all(demands)
    body.append(_give(ERRNO | refusal))
    return [(_EQUAL, 1, 0, number), (_GO_ON, 0, 0, len(body)), *body]


def _demand_all(demands: Sequence[Demand]) -> list[Instruction]:
    """Allow if every demand is met; else go on behind this."""
    parts = [
        [
            (_LOAD, 0, 0, each.offset),
            (_AND, 0, 0, each.mask),
            (_EQUAL, 0, 3 * (len(demands) - place) - 2, each.value),
        ]
        for place, each in enumerate(demands)
    ]
    return [step for part in parts for step in part] + [_give(ALLOW)]


def _give(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)
