"""What a process does with files and sockets when CUDA begins in it, one line a call.

Recorded unconfined on an NVIDIA H100 (driver 580.159.04, CUDA 13.0, torch 2.11.0+cu130,
Python 3.12.3) on 2026-11-26: torch, libcuda and NVML. Numbers of processes and threads,
places of Python and of the driver's libraries are written ``{self}``, ``{tid}``,
``{python}`` and ``{driver}``. ``python -m tests.sim.inside replay_with_a_gpu`` makes each
of these calls inside of a sandbox, with the same flags.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

READ = os.O_RDONLY
READ_CLOEXEC = os.O_RDONLY | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_DIRECTORY
BOTH = os.O_RDWR
BOTH_CLOEXEC = os.O_RDWR | os.O_CLOEXEC
REWRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
PACKETS = 5 | os.O_CLOEXEC  # SOCK_SEQPACKET | SOCK_CLOEXEC


@dataclass(frozen=True)
class Call:
    """One line of the record.

    Attributes:
        name: Of the system call.
        path: Its path; of a symbolic link the new one; of a socket the address.
        flags: Of what it opens; the mode of ``access``; the kind of a socket.
        refused: Why the sandbox refuses it on purpose; empty where it must go through.
        found: Whether the file was there when this was recorded.
    """

    name: str
    path: str
    flags: int = 0
    refused: str = ""
    found: bool = True


def opens(
    path: str, flags: int = READ, refused: str = "", *, found: bool = True
) -> Call:
    return Call("openat", path, flags, refused, found)


LINKS = "links to device files are the machine's, and a recipe makes none"
CAPABILITIES = "MIG is not supported: a right over divided GPUs is no recipe's"
WHOLE_GPU = "asked of a whole machine; CUDA goes on without it"
ITSELF = "the kernel's word on a process is maps and status, and no more"
MAKES_NONE = "a recipe makes no device files"


def device(path: str, number: str, flags: int) -> tuple[Call, ...]:
    """As the driver's library opens a device: it first mends a link that nobody needs."""
    link = f"/dev/char/{number}"
    return (
        Call("stat", path),
        Call("unlink", link, refused=LINKS, found=False),
        Call("symlink", link, refused=LINKS, found=False),
        Call("stat", link, refused=LINKS, found=False),
        opens(path, flags),
    )


def capability(name: str, number: int) -> tuple[Call, ...]:
    """A right over MIG, as NVML looks for it."""
    path = f"/dev/nvidia-caps/nvidia-cap{number}"
    told = f"/proc/driver/nvidia/capabilities/mig/{name}"
    link = f"/dev/char/241:{number}"
    return (
        Call("access", told, os.R_OK, CAPABILITIES),
        opens(told, READ, CAPABILITIES),
        Call("mkdir", "/dev/nvidia-caps", 0o755, MAKES_NONE),
        Call("stat", path, refused=CAPABILITIES),
        Call("unlink", link, refused=LINKS, found=False),
        Call("symlink", link, refused=LINKS, found=False),
        Call("access", path, os.R_OK, CAPABILITIES),
        opens(path, READ_CLOEXEC, CAPABILITIES),
    )


RECORDED = (
    Call("newfstatat", "{driver}"),
    opens("/etc/ld.so.cache", READ_CLOEXEC),
    opens("/etc/localtime", READ_CLOEXEC, "a recipe's clock is UTC"),
    opens("{python}/socket.py", READ_CLOEXEC),
    Call("ioctl", "{python}/socket.py", 0x5401),
    opens("/proc/sys/crypto/fips_enabled", READ, WHOLE_GPU, found=False),
    opens("/proc/self/cgroup", READ_CLOEXEC, ITSELF),
    opens("/sys/fs/cgroup/cpu.max", READ_CLOEXEC, WHOLE_GPU, found=False),
    opens("/sys/devices/system/cpu/possible", READ_CLOEXEC),
    opens(
        "/proc/self/oom_score_adj",
        REWRITE | os.O_CLOEXEC,
        "written by the process that forks workers, before it forks; a worker stays first to die",
    ),
    opens("/proc/self/maps", READ_CLOEXEC),
    Call("newfstatat", "/dev/nvidiactl"),
    opens("{driver}", FOLDER),
    Call("lstat", "{driver}"),
    Call("lstat", "/etc/ld.so.cache"),
    Call("newfstatat", "/etc/ld.so.cache"),
    Call("open", "/proc/self/environ", READ, ITSELF),
    opens("/proc/cpuinfo"),
    opens("/dev/urandom"),
    opens("/sys/devices/system/cpu/kernel_max", READ, WHOLE_GPU),
    opens("/sys/devices/system/cpu/possible"),
    opens("/sys/devices/system/cpu/present"),
    opens("/proc/self/status"),
    opens("/proc/mounts", READ, ITSELF),
    opens("/proc/self/stat", READ, ITSELF),
    opens("/sys/devices/system/cpu/online", READ_CLOEXEC),
    opens("/proc/sys/vm/mmap_min_addr"),
    opens("/proc/self/maps"),
    opens("/proc/self/task/{tid}/comm", REWRITE),
    opens(
        "/dev/shm/cuda_injection_path_shm",
        os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC,
        "a debugger's, in memory that processes share by name",
        found=False,
    ),
    Call("socket", "", PACKETS),
    Call(
        "connect",
        "/tmp/nvidia-mps/control",
        PACKETS,
        "MPS puts several processes into one context: a recipe is alone in its own",
        found=False,
    ),
    Call("readlink", "/proc/{self}/exe", refused=ITSELF),
    Call("access", "/sys/module/nvidia/initstate", os.R_OK),
    opens("/proc/driver/nvidia/params"),
    *device("/dev/nvidiactl", "195:255", BOTH),
    opens("/sys/devices/system/memory/block_size_bytes"),
    Call(
        "stat", "/proc/driver/nvidia/gpus/0000:00:06.0/numa_status", 0, WHOLE_GPU, False
    ),
    opens("/sys/devices/system/node", FOLDER),
    opens("/sys/devices/system/node/node0/cpumap"),
    Call("access", "/sys/module/nvidia_uvm/initstate", os.R_OK),
    opens("/proc/devices"),
    *device("/dev/nvidia-uvm", "238:0", BOTH_CLOEXEC),
    *device("/dev/nvidia0", "195:0", BOTH_CLOEXEC),
    opens("/dev/nvidiactl", BOTH_CLOEXEC),
    opens("/sys/bus/pci/devices/0000:00:06.0/numa_node", READ, WHOLE_GPU),
    Call("stat", "/proc/{self}/ns/pid", refused=ITSELF),
    Call("socket", "", PACKETS),
    opens("{driver}/libnvidia-ml.so.1", READ_CLOEXEC),
    opens("/dev/nvidia0", BOTH_CLOEXEC | os.O_NONBLOCK),
    *capability("config", 1),
    *capability("monitor", 2),
)
