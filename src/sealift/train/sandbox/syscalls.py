"""Numbers of the system calls that a recipe may make, for both machines.

What is not listed is refused. Left out on purpose: making processes and programs,
sockets, other processes' memory and descriptors, mounts, keys, tracing, io_uring (it
would do all of it unseen), shared memory by name. Numbers are the kernel's
(``asm/unistd.h``): x86-64, then AArch64; ``-`` where a machine lacks the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ALLOWED: Final = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68
lseek 8 62, close 3 57, open 2 -, openat 257 56, dup 32 23, dup2 33 -, dup3 292 24
stat 4 -, lstat 6 -, fstat 5 80, newfstatat 262 79, statx 332 291, statfs 137 43
fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -
readlinkat 267 78, getcwd 79 17, getdents 78 -, getdents64 217 61, chdir 80 49
fadvise64 221 223, ftruncate 77 46, fsync 74 82, fdatasync 75 83, unlink 87 -
unlinkat 263 35, mkdir 83 -, mkdirat 258 34, rmdir 84 -, rename 82 -, renameat 264 38
renameat2 316 276, umask 95 166, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72
mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, madvise 28 233, brk 12 214
mlock 149 228, munlock 150 229, mincore 27 232, msync 26 227
futex 202 98, sched_yield 24 124, sched_getaffinity 204 123, sched_getparam 143 121
sched_getscheduler 145 120, getcpu 309 168, set_tid_address 218 96
set_robust_list 273 99, rseq 334 293, membarrier 324 283, arch_prctl 158 -
getpid 39 172, gettid 186 178, getppid 110 173, getuid 102 174, geteuid 107 175
getgid 104 176, getegid 108 177, getrusage 98 165, getrlimit 97 163, times 100 153
sysinfo 99 179, uname 63 160, time 201 -, gettimeofday 96 169, clock_gettime 228 113
clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101, getrandom 318 278
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136
sigaltstack 131 132, restart_syscall 219 128, exit 60 93, exit_group 231 94
"""
# Allowed with certain arguments only; see ``seccomp``.
LIMITED: Final = """
ioctl 16 29, fcntl 72 25, prctl 157 167, prlimit64 302 261, clone 56 220
kill 62 129, tgkill 234 131, clone3 435 435
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """One instruction set as seccomp sees it.

    Attributes:
        audit: ``AUDIT_ARCH_*`` of ``linux/audit.h``.
        numbers: System call numbers by name.
    """

    audit: int
    numbers: Mapping[str, int]


def _numbers(column: int) -> dict[str, int]:
    entries = (ALLOWED + LIMITED).replace("\n", ",").split(",")
    words = [entry.split() for entry in entries if entry.strip()]
    return {each[0]: int(each[column]) for each in words if each[column] != "-"}


MACHINES: Final[Mapping[str, Machine]] = {
    "x86_64": Machine(0xC000003E, _numbers(1)),
    "aarch64": Machine(0xC00000B7, _numbers(2)),
}


def names_in(table: str) -> tuple[str, ...]:
    """The names of one of the tables above."""
    entries = table.replace("\n", ",").split(",")
    return tuple(entry.split()[0] for entry in entries if entry.strip())
