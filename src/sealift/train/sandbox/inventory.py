"""Everything that a recipe has of its machine, each with its reason; nothing else.

The filter, the mounts and Landlock's rules are made from these tables, and a test asks
the kernel from inside of a worker whether anything is there that has no row (rule N6).
What reaches state that outlives a slice, or that another process can look at, is left
out on purpose: sockets, processes, programs, other processes' memory, mounts, keys,
io_uring (it would do all of it unseen), shared memory by name, and what tells or sets
the state of the page cache, of locks, of the disk or of the whole machine's memory.
Numbers are the kernel's (``asm/unistd.h``): x86-64, then AArch64; ``-`` for none.

Below the tables: where Python, its libraries and this package live. Of this package's
parent folder nothing but the package is shown: in a working copy it stands among keys,
tables and other people's files. The libraries that the process which forks workers has
loaded are kept in memory, so that reading them shows nothing: which pages of a file are in
memory is state that all processes share, and whoever times a read learns it. That process
has all their pages read before the first worker, and locked where it may lock them; what a
worker reads of them later changes nothing. Other files that a recipe may read are not
covered, nor the libraries that a worker loads by itself, as CUDA's are (SECURITY.md).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sealift
from sealift.train.sandbox.kernel import call

TALK: Final = 3
DESCRIPTORS: Final[Mapping[int, str]] = {
    0: "a null device that this process opened: nothing to read",
    1: "prints: the agreement says whether they leave; a pipe of this task, or nowhere",
    2: "as 1",
    TALK: "the stream of this task to its parent: a byte is a bell",
}

SCRATCH: Final = "/scratch"  # a name that hides no place: Python may live in /tmp

# Of what a machine has; where Python lives is found out, below.
MACHINE_FACTS: Final[Mapping[str, str]] = {
    "/proc/cpuinfo": "libraries choose their kernels by the instructions there are",
    "/sys/devices/system/cpu/online": "how many threads make sense",
    "/sys/devices/system/cpu/possible": "the same, for torch's own count",
    "/sys/devices/system/cpu/present": "the same",
}
DEVICES: Final[Mapping[str, str]] = {
    "/dev/null": "where libraries throw things away; it keeps nothing",
    "/dev/zero": "keeps nothing",
    "/dev/urandom": "random numbers for libraries that open it",
    "/dev/random": "the same",
}
# For a task that computes on a GPU, and no other. A machine has some of them, or none.
MOST_GPUS: Final = 16
NVIDIA: Final = "/dev/nvidiactl"
UVM: Final = "/dev/nvidia-uvm"
GPU_FILES: Final[Mapping[str, str]] = {
    NVIDIA: "the driver: which GPUs there are, and the objects of a client",
    UVM: "one address space for this process and its GPU",
    "/dev/nvidia-uvm-tools": "opened with it, or CUDA does not begin; no command of its own",
} | {f"/dev/nvidia{number}": "a GPU: memory and queues" for number in range(MOST_GPUS)}
GPU_FACTS: Final[Mapping[str, str]] = {
    "/proc/driver/nvidia/params": "whether CUDA should make device files: here it cannot",
    "/proc/devices": "which number the driver's files have",
    "/sys/module/nvidia/initstate": "whether the driver is there",
    "/sys/module/nvidia_uvm/initstate": "the same of the part for address spaces",
    "/sys/devices/system/memory/block_size_bytes": "how the GPU's memory may be mapped",
    "/sys/devices/system/node": "which memory is near which cores",
    "/proc/sys/vm/mmap_min_addr": "from where on addresses may be mapped: CUDA reserves some",
}
# The kernel's word on the worker itself, of all that it says of processes: bound from there
# for a worker with a GPU, and for no other.
PROCESSES: Final = "/processes"
OF_ITSELF: Final[Mapping[str, str]] = {
    "/proc/self/maps": "where the stack of its first thread ends",
    "/proc/self/status": "which memory is near the cores that it may use",
}
# CUDA names its threads through files, and does not begin without. With namespaces these are
# ordinary files of the scratch: a name written there names nothing, and the kernel's own
# folder, with more files than names, is not shown. Without namespaces it is the kernel's
# folder, to write and not to read: SECURITY.md says what else of its process a recipe then
# writes there.
THREADS_OF_ITS_OWN: Final = "/proc/self/task"
NAMED_THREADS: Final = f"{SCRATCH}/threads"
MOST_NAMED_THREADS: Final = 1024  # numbers from its own on; CUDA's are among the first
LIBRARIES: Final[Mapping[str, str]] = dict.fromkeys(
    ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"),
    "shared libraries that a module is linked with",
) | {"/etc/ld.so.cache": "where the dynamic linker finds them"}

ALLOWED: Final[Mapping[str, str]] = {
    "bytes of descriptors that are its own: none is shared with another slice": """
        read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68
        lseek 8 62, close 3 57, dup 32 23, dup2 33 -, dup3 292 24, ftruncate 77 46
        poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72""",
    "files below the readable places, and in the scratch": """
        open 2 -, openat 257 56, stat 4 -, lstat 6 -, fstat 5 80, newfstatat 262 79
        statx 332 291, access 21 -, faccessat 269 48, faccessat2 439 439
        readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61
        getcwd 79 17, chdir 80 49, umask 95 166, unlink 87 -, unlinkat 263 35
        mkdir 83 -, mkdirat 258 34, rmdir 84 -, rename 82 -, renameat 264 38
        renameat2 316 276""",
    "memory of its own": """
        mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, brk 12 214""",
    "threads of its own": """
        set_robust_list 273 99, rseq 334 293, sched_yield 24 124
        sched_getaffinity 204 123, gettid 186 178, exit 60 93, exit_group 231 94""",
    "what it is, and may use: nothing here changes": """
        getpid 39 172, getppid 110 173, getuid 102 174, geteuid 107 175, getgid 104 176
        getegid 108 177, getrlimit 97 163, uname 63 160""",
    "time: a slice takes as long as it takes, and everybody sees that": """
        time 201 -, gettimeofday 96 169, times 100 153, nanosleep 35 101
        restart_syscall 219 128""",
    "random numbers": "getrandom 318 278",
    "signals to itself": """
        rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139
        rt_sigpending 127 136, sigaltstack 131 132""",
}
# With certain arguments only; ``seccomp`` has them.
LIMITED: Final[Mapping[str, str]] = {
    "questions that a terminal answers; none that sets a flag of a description": """
        ioctl 16 29""",
    "duplicates and the descriptor's own flags; no description's, no lock, no owner": """
        fcntl 72 25""",
    "giving memory back and huge pages; nothing that pages in, out or together": """
        madvise 28 233""",
    "threads of one process: other processes may wait at a page of a library, too": """
        futex 202 98""",
    "threads, and no process": "clone 56 220, clone3 435 435",
    "its own limits, read": "prlimit64 302 261",
    "its own clocks and those of the machine, not another process's": """
        clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115""",
    "wide registers for matrix products": "arch_prctl 158 -",
    "to itself": "kill 62 129, tgkill 234 131",
}

# With a GPU, besides. Its driver keeps clients apart; what it lets them know of each other
# (how much memory is left, how busy it is) no filter takes away.
GPU_CALLS: Final[Mapping[str, str]] = {
    "threads of CUDA wake each other": "pipe2 293 59, eventfd2 290 19",
    "which memory is near": "get_mempolicy 239 236",
    "nobody comes: what is accepted there, no call gives": "listen 50 201",
}
# With certain arguments only, as ``LIMITED``.
GPU_LIMITED: Final[Mapping[str, str]] = {
    "CUDA keeps a name of its own in its network's namespace, for descriptors that it would "
    "pass on; nothing connects, sends or receives": """
        socket 41 198, setsockopt 54 208, bind 49 200""",
    "the name of the calling thread": "prctl 157 167",
}
# Commands of ``ioctl``. Those of the driver have the letter F, and sizes by version.
# Source: NVIDIA open-gpu-kernel-modules, nv-ioctl-numbers.h, nv_escape.h, uvm_ioctl.h.
RM_LETTER: Final = ord("F")
RM_COMMANDS: Final[Mapping[int, str]] = {
    0x27: "memory of this process, for the GPU to use",
    0x29: "an object of the client's is freed",
    0x2A: "a question to an object, or an order: whether it may, the driver judges",
    0x2B: "an object of a client of its own",
    0x34: "an object of its own, once more",
    0x4A: "memory of the GPU",
    0x4E: "an object's memory is mapped",
    0x4F: "and no longer",
    0x5E: "where a mapping lies",
    200: "which GPUs there are",
    201: "one open file belongs to another's client",
    206: "a descriptor that the GPU wakes",
    207: "and no longer",
    210: "whether library and driver are of one version",
    212: "which GPUs an open file keeps awake",
    214: "sizes of memory blocks",
    215: "which memory is near the GPU",
    218: "whether a GPU is ready",
}
UVM_COMMANDS: Final[Mapping[int, str]] = {
    0x30000001: "an address space begins",
    0x30000002: "and ends",
    **dict.fromkeys((23, 24), "ranges that are treated alike"),
    **dict.fromkeys((25, 26), "the GPU's part of the address space"),
    **dict.fromkeys((27, 28), "a queue of the GPU"),
    **dict.fromkeys((33, 34, 66, 73), "memory of the GPU at an address"),
    **dict.fromkeys((37, 38), "a GPU of the address space"),
    39: "whether the GPU reads ordinary memory",
    42: "where a range should lie",
    45: "a range has no copies for who only reads: so begins memory that both sides use",
    65: "a region that kernels start kernels from",
    68: "memory for the words that queues wait for",
    72: "whether an address is one of these",
    75: "memory ends with its process",
}


# Of the one thread that maps what comes to a worker that stands by: it has descriptors of
# its own, which the recipe's threads do not, and these calls alone. A recipe that takes it
# over, as it may anything in its memory, can map its own task's rows, as it could anyway:
# where a description stands, what the kernel keeps of a file, and to pass one on, are missing.
RECEIVING: Final[Mapping[str, str]] = {
    "what a task brings; it is mapped and closed": "recvmsg 47 212",
}
RECEIVING_ALSO: Final = (
    "mmap", "close", "munmap", "mprotect", "mremap", "brk", "exit", "sched_yield",
    "rt_sigprocmask", "rt_sigreturn", "restart_syscall",
)  # fmt: skip
RECEIVING_LIMITED: Final = "madvise", "futex"

CALLS: Final = ALLOWED, LIMITED, GPU_CALLS, GPU_LIMITED


@dataclass(frozen=True, slots=True)
class Machine:
    """One instruction set as seccomp sees it.

    Attributes:
        audit: ``AUDIT_ARCH_*`` of ``linux/audit.h``.
        numbers: System call numbers by name.
    """

    audit: int
    numbers: Mapping[str, int]


def _rows(table: Mapping[str, str]) -> list[list[str]]:
    entries = ",".join(table.values()).replace("\n", ",").split(",")
    return [entry.split() for entry in entries if entry.strip()]


def _numbers(column: int) -> dict[str, int]:
    words = [row for table in (*CALLS, RECEIVING) for row in _rows(table)]
    return {each[0]: int(each[column]) for each in words if each[column] != "-"}


MACHINES: Final[Mapping[str, Machine]] = {
    "x86_64": Machine(0xC000003E, _numbers(1)),
    "aarch64": Machine(0xC00000B7, _numbers(2)),
}


def names_in(table: Mapping[str, str]) -> tuple[str, ...]:
    """The names of one of the tables above."""
    return tuple(row[0] for row in _rows(table))


# What a compiler leaves behind is code that nobody measured: private, and empty.
CACHES: Final = {
    "XDG_CACHE_HOME": f"{SCRATCH}/cache",
    "TORCH_HOME": f"{SCRATCH}/torch",
    "TRITON_CACHE_DIR": f"{SCRATCH}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH}/inductor",
    "CUDA_CACHE_PATH": f"{SCRATCH}/cuda",
    "MPLCONFIGDIR": f"{SCRATCH}/matplotlib",
    "HF_HOME": f"{SCRATCH}/huggingface",
}


_SEARCHED: Final = "LD_LIBRARY_PATH"
_LINKERS_CACHE: Final = "/etc/ld.so.cache"
_DRIVERS_LIBRARY: Final = "libcuda.so.1"
_DRIVERS_FOLDER: Final = rb"(/[^\0]*)/libcuda\.so\.1\0"


def readable() -> dict[str, str]:
    """Files and folders, none within another, as they are named and where they are.

    With the reason of each: a recipe can read nothing else but ``inventory``'s.
    """
    package = Path(sealift.__file__).parent
    found = dict(LIBRARIES)
    found |= dict.fromkeys(_mapped(), "shared libraries that this process runs on")
    found |= dict.fromkeys(_linked(), "shared libraries that came with Python")
    if Path(NVIDIA).exists():
        found |= dict.fromkeys(_with_cuda(), "where the dynamic linker finds CUDA")
    paths = [path for path in sys.path if path and not _holds(path, package)]
    found |= dict.fromkeys(paths, "where Python looks for modules")
    found |= dict.fromkeys(installed_places(), "modules that a recipe may import")
    found[str(package)] = "this package, which runs it"
    real = {os.path.realpath(path): why for path, why in found.items()}
    shown = _outermost(path for path in (*found, *real) if Path(path).exists())
    return {path: (found | real)[path] for path in shown}


def _linked() -> list[str]:
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    return [f"{prefix}/{name}" for prefix in prefixes for name in ("lib", "lib64")]


def _with_cuda() -> set[str]:
    """Folders of ``LD_LIBRARY_PATH`` that hold CUDA's libraries, and the driver's own."""
    searched = os.environ.get(_SEARCHED, "").split(":")
    named = [each for each in searched if each[:1] == "/"]
    kinds = ("libcu*.so*", "libnv*.so*", "libnccl*.so*")
    found = {path for path in named for kind in kinds if any(Path(path).glob(kind))}
    with suppress(OSError):
        known = re.findall(_DRIVERS_FOLDER, Path(_LINKERS_CACHE).read_bytes())
        named += [os.fsdecode(each) for each in known]
    libraries = [f"{each}/{_DRIVERS_LIBRARY}" for each in named]
    drivers = [each for each in libraries if os.path.exists(each)]
    return found | set(
        map(os.path.dirname, (*drivers, *map(os.path.realpath, drivers)))
    )


def _holds(path: str, package: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(package.parent)


def _mapped() -> list[str]:
    """Folders of the shared libraries that this process runs on."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        files = {line.rstrip("\n").split(maxsplit=5)[-1] for line in lines}
    return sorted(
        {str(Path(file).parent) for file in files if file[:1] == "/" and ".so" in file}
    )


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    found = sorted({os.path.normpath(path) for path in paths})
    kept: list[str] = []
    for path in found:
        if path == "/":
            continue  # of no use as a place
        if not any(path.startswith(f"{each}/") for each in kept):
            kept.append(path)
    return tuple(kept)


_POPULATE_READ: Final = 22  # since Linux 5.14


class _Library(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


_Visit: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p
)


def pin_libraries() -> int:
    """Have every page of every library of this process in memory; how many bytes."""
    return sum(map(_pin, _loaded_libraries()))


def _loaded_libraries() -> list[str]:
    """Files of the shared libraries; without ``/proc``, which a sandbox has none of."""
    found: list[str] = []

    def note(library: Any, _size: int, _none: object) -> int:
        found.append(os.fsdecode(library.contents.name or b""))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(_Visit(note), None)
    return sorted({path for path in found if path.startswith("/")})


def _pin(path: str) -> int:
    """Left mapped for as long as this process lives, and in no worker."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:  # the kernel's own, which is no file
        return 0
    try:
        length = os.fstat(file).st_size
        kind = mmap.MAP_SHARED
        place = call("mmap", None, length, mmap.PROT_READ, kind, file, 0)
    finally:
        os.close(file)
    call("madvise", place, length, mmap.MADV_DONTFORK)
    with suppress(OSError):  # an older kernel: locking reads, too
        call("madvise", place, length, _POPULATE_READ)
    with suppress(OSError):  # more than this user may lock
        call("mlock", place, length)
    return length


def installed_places() -> tuple[str, ...]:
    """Folders of Python's library, of installed packages, and of those in use."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        found.add(site.getusersitepackages())
    for name, module in list(sys.modules.items()):
        if "." not in name:
            found.update(getattr(module, "__path__", ()))
    named = {os.path.abspath(each) for each in found}
    return tuple(sorted(named | {os.path.realpath(each) for each in named}))
