"""The filter's program, run by hand for both machines: what it allows and what not."""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from sealift.train.sandbox import seccomp
from sealift.train.sandbox.inventory import (
    ALLOWED,
    CALLS,
    GPU_CALLS,
    MACHINES,
    RECEIVING,
    RECEIVING_ALSO,
    RECEIVING_LIMITED,
    RM_COMMANDS,
    UVM_COMMANDS,
    Machine,
    names_in,
)
from sealift.train.sandbox.seccomp import (
    ALLOW,
    ERRNO,
    KILL,
    Instruction,
    program,
    program_to_receive,
)

PID, OTHER = 4321, 99
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
AGAIN = ERRNO | errno.EAGAIN
THREAD = 0x3D0F00  # what glibc makes a thread with
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
# Refused on both machines: numbers of the kernel, x86-64 then AArch64.
FORBIDDEN = {
    "socket": (41, 198), "connect": (42, 203), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "execve": (59, 221), "execveat": (322, 281), "unshare": (272, 97), "mount": (165, 40),
    "setns": (308, 268), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "io_uring_setup": (425, 425), "bpf": (321, 280),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "userfaultfd": (323, 282),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "memfd_create": (319, 279), "seccomp": (317, 277), "sendmsg": (46, 211),
    "recvmsg": (47, 212), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "setuid": (105, 146), "chmod": (90, None), "symlinkat": (266, 36),
    "fork": (57, None), "vfork": (58, None), "kexec_load": (246, 104),
    "open_by_handle_at": (304, 265), "ioperm": (173, None), "setrlimit": (160, 164),
    # Shared state that outlives a slice, or that others can look at.
    "fadvise64": (221, 223), "readahead": (187, 213), "mincore": (27, 232),
    "cachestat": (451, 451), "preadv2": (327, 286), "flock": (73, 32), "fsync": (74, 82),
    "fdatasync": (75, 83), "msync": (26, 227), "sync_file_range": (277, 84),
    "fallocate": (285, 47), "mlock": (149, 228), "mlock2": (325, 284), "mlockall": (151, 230),
    "process_madvise": (440, 440), "sysinfo": (99, 179), "statfs": (137, 43),
    "fstatfs": (138, 44), "getrusage": (98, 165), "membarrier": (324, 283),
    "utimensat": (280, 88), "setxattr": (188, 5), "getxattr": (191, 8), "prctl": (157, 167),
    "set_tid_address": (218, 96), "futex_waitv": (449, 449), "futex_wake": (454, 454),
    "splice": (275, 76), "sendfile": (40, 71), "copy_file_range": (326, 285),
    "inotify_init1": (294, 26), "sched_setaffinity": (203, 122), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "timer_create": (222, 107), "eventfd2": (290, 19),
    "pipe2": (293, 59), "get_mempolicy": (239, 236),
}  # fmt: skip


def decide(
    machine: Machine, number: int, *arguments: int, audit: int = 0, gpu: bool = False
) -> int:
    """What the program of a recipe answers."""
    return run(program(machine, PID, gpu=gpu), machine, number, *arguments, audit=audit)


def run(
    steps: Sequence[Instruction],
    machine: Machine,
    number: int,
    *arguments: int,
    audit: int = 0,
) -> int:
    """What a program answers: a classic BPF machine with the few steps it uses."""
    words = (*arguments, *[0] * (6 - len(arguments)))
    call = struct.pack("<IIQ6Q", number, audit or machine.audit, 0, *words)
    at, value = 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        match code:
            case 0x20:
                value = struct.unpack_from("<I", call, operand)[0]
            case 0x54:
                value &= operand
            case 0x15:
                at += if_true if value == operand else if_false
            case 0x05:
                at += operand
            case 0x35:
                at += if_true if value >= operand else if_false
            case 0x06:
                return operand


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


def test_what_is_listed_is_allowed(machine: Machine) -> None:
    for name in names_in(ALLOWED):
        if name in machine.numbers:
            assert decide(machine, machine.numbers[name]) == ALLOW, name


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
@pytest.mark.parametrize("kind", ["x86_64", "aarch64"])
def test_what_is_not_listed_is_refused(kind: str, name: str) -> None:
    number = FORBIDDEN[name][kind == "aarch64"]
    if number is not None:
        assert decide(MACHINES[kind], number) == EPERM


def test_who_receives_for_a_task_can_map_and_nothing_else(machine: Machine) -> None:
    """No offset, no flag, nothing that the kernel keeps of a file, and nowhere to pass it."""
    steps = program_to_receive(machine)
    allowed = {
        number
        for number in range(600)
        if any(run(steps, machine, number, 0, each) == ALLOW for each in (0, 0x80))
        or run(steps, machine, number, 0, 0, 4) == ALLOW
    }
    names = {*names_in(RECEIVING), *RECEIVING_ALSO, *RECEIVING_LIMITED}
    assert allowed == {
        machine.numbers[name] for name in names if name in machine.numbers
    }
    assert not names & {
        "read", "write", "pread64", "lseek", "fstat", "newfstatat", "statx", "fcntl", "dup",
        "dup3", "ftruncate", "ioctl", "openat", "sendmsg", "clone", "unshare",
    }  # fmt: skip


def test_every_number_that_there_is_has_an_answer(machine: Machine) -> None:
    odd = [0x7777] * 6  # arguments that no limited call takes
    answers = [decide(machine, number, *odd) for number in range(600)]
    assert set(answers) == {ALLOW, EPERM, ENOSYS, AGAIN}
    assert answers.count(ALLOW) == len(
        [n for n in names_in(ALLOWED) if n in machine.numbers]
    )


def test_another_instruction_set_ends_the_process(machine: Machine) -> None:
    read = machine.numbers["read"]
    assert decide(machine, read, audit=0x40000003) == KILL
    assert decide(machine, read | 0x40000000) == ENOSYS  # x32


def test_threads_but_no_processes(machine: Machine) -> None:
    clone = machine.numbers["clone"]
    assert decide(machine, clone, THREAD) == ALLOW
    assert decide(machine, clone, 17) == EPERM  # fork
    assert decide(machine, clone, THREAD & ~0x10000) == EPERM
    assert decide(machine, clone, THREAD | 0x10000000) == EPERM  # a user namespace
    assert decide(machine, machine.numbers["clone3"]) == ENOSYS


@pytest.mark.parametrize("name", ["kill", "tgkill"])
def test_signals_to_itself_alone(machine: Machine, name: str) -> None:
    number = machine.numbers[name]
    assert decide(machine, number, PID) == ALLOW
    for other in (OTHER, 0, 0xFFFFFFFF, 2**32 - PID):
        assert decide(machine, number, other) == EPERM


@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("madvise", (0, 4096, 4), True),  # giving memory back
        ("madvise", (0, 4096, 3), False),  # reading ahead, for all
        ("madvise", (0, 4096, 12), False),  # one page for equal contents
        ("madvise", (0, 4096, 20), False),  # cold
        ("madvise", (0, 4096, 21), False),  # paged out, for all
        ("madvise", (0, 4096, 22), False),  # paged in
        ("clock_gettime", (3,), True),  # this thread's
        ("clock_gettime", (~OTHER << 3 & 0xFFFFFFFF,), False),  # another process's
        ("clock_nanosleep", (1,), True),
        ("clock_getres", (~OTHER << 3 & 0xFFFFFFFF,), False),
        ("ioctl", (1, 0x5401), True),
        ("ioctl", (1, 0x5412), False),  # typing into a terminal
        ("fcntl", (3, 1030), True),
        ("fcntl", (3, 3), True),  # which flags there are
        ("fcntl", (3, 4), False),  # other flags: F_SETFL
        ("fcntl", (3, 6), False),  # a lock
        ("fcntl", (3, 8), False),  # an owner that gets signals
        ("fcntl", (3, 37), False),  # a lock of the description
        ("fcntl", (3, 1024), False),  # a lease
        ("fcntl", (3, 1031), False),  # a pipe's size
        ("fcntl", (3, 1033), False),  # a seal
        ("fcntl", (3, 1036), False),  # what writes are said to be like
        ("prlimit64", (0, 7, 0), True),
        ("prlimit64", (PID, 7, 0), True),
        ("prlimit64", (OTHER, 7, 0), False),
        ("prlimit64", (0, 7, 1 << 32), False),  # a pointer whose low half is zero
        ("prlimit64", (0, 7, 4096), False),
    ],
)
def test_limited_calls(
    machine: Machine, name: str, arguments: tuple[int, ...], allowed: bool
) -> None:
    answer = decide(machine, machine.numbers[name], *arguments)
    assert answer == (ALLOW if allowed else EPERM)


def driver_command(number: int, size: int = 32) -> int:
    return 3 << 30 | size << 16 | ord("F") << 8 | number


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *[("ioctl", (9, driver_command(number))) for number in RM_COMMANDS],
        ("ioctl", (9, driver_command(0x2A, 0x3FFF))),  # of whatever version
        *[("ioctl", (9, number)) for number in UVM_COMMANDS],
        ("fcntl", (9, 4)),
        *[(name, ()) for name in names_in(GPU_CALLS)],
    ],
)
def test_what_a_gpu_needs_is_for_who_computes_on_one(
    machine: Machine, name: str, arguments: tuple[int, ...]
) -> None:
    number = machine.numbers[name]
    assert decide(machine, number, *arguments, gpu=True) == ALLOW
    assert decide(machine, number, *arguments) == EPERM


@pytest.mark.parametrize(
    "command",
    [
        driver_command(0x34) & ~(1 << 31),  # one way alone
        driver_command(0x35),  # an object for others
        driver_command(0x5C),  # an object leaves, as a descriptor
        driver_command(217),  # memory leaves, as a descriptor
        driver_command(211),  # a command in a command
        driver_command(0x32),  # the driver's settings
        62,  # other processes' memory, read
        63,  # and written
        19,  # a client of a server for several processes
        0x5412,
        0x30000003,
    ],
)
def test_other_commands_are_refused_with_a_gpu_too(
    machine: Machine, command: int
) -> None:
    assert decide(machine, machine.numbers["ioctl"], 9, command, gpu=True) == EPERM


def test_what_is_refused_without_a_gpu_is_refused_with_one(machine: Machine) -> None:
    odd = [0x7777] * 6
    more = {
        number
        for number in range(600)
        if decide(machine, number, *odd, gpu=True) != decide(machine, number, *odd)
    }
    assert more == {machine.numbers[name] for name in names_in(GPU_CALLS)}


@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("socket", (1, 5, 0), True),  # AF_UNIX, SOCK_SEQPACKET
        (
            "socket",
            (1, 5 | 0x80000 | 0x800, 0),
            True,
        ),  # closed in programs; not waiting
        ("socket", (1, 1, 0), False),  # a stream
        ("socket", (1, 2, 0), False),  # datagrams
        ("socket", (1, 3, 0), False),
        *[("socket", (family, 5, 0), False) for family in (0, 2, 10, 16, 17, 38, 40)],
        ("setsockopt", (9, 1, 16), True),  # SO_PASSCRED
        ("setsockopt", (9, 1, 8), False),  # SO_RCVBUF
        ("setsockopt", (9, 1, 26), False),  # a filter program
        ("setsockopt", (9, 6, 16), False),
        ("bind", (9, 4096, 110), True),  # the whole of a struct sockaddr_un
        ("bind", (9, 4096, 8), True),
        ("bind", (9, 4096, 30), True),
        ("bind", (9, 4096, 2), False),  # a name by the kernel's counter
        ("bind", (9, 4096, 7), False),
        ("bind", (9, 4096, 128), False),
        ("prctl", (15,), True),  # PR_SET_NAME
        ("prctl", (4,), False),  # PR_SET_DUMPABLE
        ("prctl", (22,), False),  # another filter
        ("prctl", (0x59616D61,), False),  # who may trace it
    ],
)
def test_limited_calls_of_a_gpus_worker(
    machine: Machine, name: str, arguments: tuple[int, ...], allowed: bool
) -> None:
    number = machine.numbers[name]
    answer = decide(machine, number, *arguments, gpu=True)
    assert answer == (ALLOW if allowed else EPERM)
    assert decide(machine, number, *arguments) == EPERM


def test_a_gpus_worker_talks_to_nobody(machine: Machine) -> None:
    kinds = {"accept": (43, 202), "accept4": (288, 242), "sendto": (44, 206),
        "recvfrom": (45, 207), "socketpair": (53, 199), "getsockname": (51, 204),
        "getpeername": (52, 205), "shutdown": (48, 210), "getsockopt": (55, 209),
        "connect": (42, 203), "sendmsg": (46, 211), "recvmsg": (47, 212)}  # fmt: skip
    column = int(machine is MACHINES["aarch64"])
    for numbers in kinds.values():
        assert decide(machine, numbers[column], 1, 5, 16, gpu=True) == EPERM


def test_a_program_has_room_for_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison jumps 255 instructions at most; a call may have more ways than that."""
    many = dict.fromkeys(range(0x4000, 0x4100), "a row")
    monkeypatch.setattr(seccomp, "UVM_COMMANDS", many)
    for kind in MACHINES.values():
        steps = program(kind, PID, gpu=True)
        assert max(max(step[1:3]) for step in steps) < 256
        assert len(steps) < 4096  # BPF_MAXINSNS
        assert decide(kind, kind.numbers["ioctl"], 9, 0x40FF, gpu=True) == ALLOW
        assert decide(kind, kind.numbers["ioctl"], 9, 0x4100, gpu=True) == EPERM


def test_who_joins_a_thread_asks_again(machine: Machine) -> None:
    """A shared futex in a library's page is met by other processes, too."""
    futex = machine.numbers["futex"]
    for command in (0, 1, 5, 9, 10, 9 | 0x100):
        assert decide(machine, futex, 4096, command) == AGAIN
        assert decide(machine, futex, 4096, command | 0x80) == ALLOW


def test_every_call_has_numbers_and_a_reason() -> None:
    names = [name for table in CALLS for name in names_in(table)]
    assert len(set(names)) == len(names)
    assert {*names, *names_in(RECEIVING)} == set(MACHINES["x86_64"].numbers)
    reasons = [reason for table in CALLS for reason in table]
    assert all(
        map(str.strip, (*reasons, *RM_COMMANDS.values(), *UVM_COMMANDS.values()))
    )


@pytest.mark.parametrize("kind", sorted(MACHINES))
def test_numbers_are_the_kernels(kind: str) -> None:
    if not HEADERS[kind].exists():
        pytest.skip(f"this machine lacks the kernel's headers for {kind}")
    lines = re.findall(
        r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[kind].read_text()
    )
    found = {"newfstatat" if n == "fstatat" else n: int(v) for n, v in lines}
    numbers = MACHINES[kind].numbers
    assert {name: found.get(name) for name in numbers} == numbers
