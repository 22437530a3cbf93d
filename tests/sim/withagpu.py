"""Looks of ``tests.sim.inside`` where there is a GPU, or what stands in for one.

An ordinary device is its file, and what CUDA does when it begins is done by hand: the kernel
says what it gets, and what of it a worker on the CPU gets.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

from sealift.train.sandbox import confine as confining
from sealift.train.sandbox import inventory, namespaces
from sealift.train.sandbox import kernel as limits
from sealift.train.sandbox.confine import Confinement, confine_worker
from sealift.train.sandbox.inventory import readable
from sealift.train.sandbox.kernel import call, mount
from sealift.train.sandboxed import gpus
from tests.sim.cuda_calls import RECORDED, Call
from tests.sim.inside import LIBC, MEMORY_BYTES, in_a_child, in_a_world, tried

FILE = "/dev/full"
if not os.environ.get(
    "DRIVER"
):  # of ``replay_with_a_gpu``, which has files of those names
    confining.GPU_FILES = namespaces.GPU_FILES = {FILE: ""}
    namespaces.NVIDIA = os.environ.get("NVIDIA", FILE)
if os.environ.get("REFUSED"):  # a kind of file system

    def refuse(source: str, target: str, kind: str, *more: object) -> None:
        if kind == os.environ["REFUSED"]:
            raise PermissionError(errno.EPERM, "refused")
        mount(source, target, kind, *more)

    namespaces.mount = refuse
ON_A_GPU = bool(os.environ.get("GPU"))
PACKETS = socket.SOCK_SEQPACKET
OTHER_SOCKETS = {
    "stream": (socket.AF_UNIX, socket.SOCK_STREAM),
    "datagram": (socket.AF_UNIX, socket.SOCK_DGRAM),
    "tcp": (socket.AF_INET, socket.SOCK_STREAM),
    "tcp 6": (socket.AF_INET6, socket.SOCK_STREAM),
    "netlink": (socket.AF_NETLINK, socket.SOCK_RAW),
    "packets": (socket.AF_INET, PACKETS),
}
OF_A_PROCESS = ("environ", "mem", "maps", "status", "cmdline", "comm", "task", "fd")
ROOTS = ("/proc", inventory.PROCESSES)
# Below a thread's folder, as this kernel has them: read before anything is confined.
NAMES_OF_A_THREAD = sorted(
    os.path.relpath(os.path.join(folder, name), f"/proc/self/task/{os.getpid()}")
    for folder, _folders, names in os.walk(f"/proc/self/task/{os.getpid()}")
    for name in names
    if "/fd" not in folder and "/net" not in folder and "/map_files" not in folder
)
OF_A_THREAD = ("smaps", "environ", "mem", "stat", "pagemap", "mountinfo")
MORE_OF_ITSELF = (
    *(f"/proc/self/{name}" for name in ("environ", "mem", "fd", "net", "mountinfo")),
    *(f"/proc/self/task/{{}}/{name}" for name in OF_A_THREAD),  # of its first thread
    "/proc/self/autogroup",  # of a session's processes together; whoever owns it sets it
    f"{inventory.PROCESSES}/self/maps",
)


def confined(parts: Sequence[str], places: Sequence[str] = ()) -> None:
    confine_worker(Confinement(parts), places, MEMORY_BYTES, gpu=ON_A_GPU)


def in_a_worker(
    parts: Sequence[str],
    look_there: Callable[[], object],
    places: Sequence[str] = (),
) -> object:
    """Forked as the process does it that forks workers; locked in by these parts alone."""

    def worker() -> object:
        confined(parts, places)
        return look_there()

    return in_the_forker(parts, lambda: in_a_child(worker))


def in_the_forker(parts: Sequence[str], look_there: Callable[[], object]) -> object:
    """In the process that forks workers."""

    def first() -> object:
        namespaces.enter_root(places)
        limits.hide_memory()
        return look_there()

    if "namespaces" not in parts:
        return in_a_child(look_there)
    places = tuple(readable())
    namespaces.leave_world()
    return in_a_child(first)


def with_a_gpu(parts: Sequence[str]) -> object:
    """A device of every machine, and a fact, as if they were a GPU's."""
    confined(parts)

    def command(number: int) -> None:
        with open(FILE, "r+b", buffering=0) as file:
            if LIBC.ioctl(file.fileno(), number, None) == -1:
                raise OSError(ctypes.get_errno(), "refused")

    return {
        "open": tried(lambda: os.close(os.open(FILE, os.O_RDWR))),
        "its command": tried(lambda: command(0xC020462A)),  # NV_ESC_RM_CONTROL
        "another command": tried(lambda: command(0xC0204635)),  # NV_ESC_RM_SHARE
        "read a fact": tried(Path("/proc/devices").read_bytes),
        "a pipe": tried(os.pipe),
    }


def world_with_a_gpu(_parts: Sequence[str]) -> object:
    """What is shown where there is one; ``/dev/full`` and ``/proc/devices`` are its."""

    def there() -> object:
        return {
            "open": tried(lambda: os.close(os.open(FILE, os.O_RDWR))),
            "read a fact": tried(Path("/proc/devices").read_bytes),
        }

    return in_a_world(there, [])


def sockets_with_a_gpu(parts: Sequence[str]) -> object:
    """What CUDA does with a socket when it begins, and what it does not."""
    name = b"\0cuda-uvmfd-%d" % os.getpid()

    def make(*kind: int) -> None:
        socket.socket(*kind).close()

    def there() -> object:
        found = {"make": tried(lambda: make(socket.AF_UNIX, PACKETS))}
        for kind, what in OTHER_SOCKETS.items():
            found[kind] = tried(lambda what=what: make(*what))
        if found["make"] != "done":
            return found
        kind = PACKETS | socket.SOCK_NONBLOCK
        ours, other = (socket.socket(socket.AF_UNIX, kind) for _ in range(2))
        return found | {
            "credentials": tried(
                lambda: ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            ),
            "bind": tried(lambda: ours.bind(name)),
            "a name by the kernel": tried(lambda: other.bind("")),
            "listen": tried(ours.listen),
            "connect": tried(lambda: other.connect(name)),
            "accept": tried(ours.accept),
            "send": tried(lambda: other.sendto(b"x", name)),
            "who it is": tried(ours.getsockname),
        }

    return in_a_worker(parts, there)


def read(path: str) -> None:
    if not Path(path).read_bytes():
        raise OSError(errno.ENODATA, "an empty file")


def rename(path: str) -> None:
    with open(path, "wb", buffering=0) as file:  # as CUDA opens it
        file.write(b"mark")


def writable_of_a_thread() -> list[str]:
    """Names below the folder of its first thread that open for writing."""
    folder, found = f"/proc/self/task/{os.getpid()}", []
    for name in NAMES_OF_A_THREAD:
        with contextlib.suppress(OSError):
            os.close(os.open(f"{folder}/{name}", os.O_WRONLY))
            found.append(name)
    return found


def name_another_thread() -> None:
    """Named by who made it, as CUDA's are."""
    may_end, numbers = threading.Event(), list[int]()

    def run() -> None:
        numbers.append(threading.get_native_id())
        may_end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not numbers:
            pass
        rename(f"/proc/self/task/{numbers[0]}/comm")
    finally:
        may_end.set()
        thread.join()


def processes_with_a_gpu(parts: Sequence[str]) -> object:
    """The kernel's word on this process, and on the one that forks workers."""

    def there() -> object:
        forker = os.getppid()
        folders = [f"{root}/{forker}" for root in ROOTS]
        tasks = [*folders, "/proc/self"]
        return {
            "of a thread": tried(name_another_thread),
            "by a call": tried(lambda: demand(LIBC.prctl(15, b"mark", 0, 0, 0))),
            "maps": tried(lambda: read("/proc/self/maps")),
            "status": tried(lambda: read("/proc/self/status")),
            "of the forker": {
                path: tried(lambda path=path: os.close(os.open(path, os.O_RDONLY)))
                for path in (f"{f}/{name}" for f in folders for name in OF_A_PROCESS)
            },
            "names of the forker": {
                path: tried(lambda path=path: rename(path))
                for path in (f"{each}/task/{forker}/comm" for each in tasks)
            },
            "more of itself": {
                path: tried(lambda path=path: os.close(os.open(path, os.O_RDONLY)))
                for path in (each.format(os.getpid()) for each in MORE_OF_ITSELF)
            },
            "written of a thread": writable_of_a_thread(),
        }

    return in_a_worker(parts, there)


# x86-64's numbers: the record is of such a machine, and libraries call the kernel themselves.
NUMBERS = {
    "open": 2, "stat": 4, "lstat": 6, "ioctl": 16, "access": 21, "socket": 41,
    "connect": 42, "mkdir": 83, "unlink": 87, "symlink": 88, "readlink": 89,
    "openat": 257, "newfstatat": 262,
}  # fmt: skip
HERE = -100  # AT_FDCWD
PROVIDED = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia0",
)
CAPS = tuple(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (1, 2))
DRIVERS_WORD = {
    "/proc/driver": ("nvidia/params", "nvidia/capabilities/mig/config",
                     "nvidia/capabilities/mig/monitor"),
    "/sys/module": ("nvidia/initstate", "nvidia_uvm/initstate"),
    "/sys/bus/pci/devices": ("0000:00:06.0/numa_node",),
    "/sys/devices/system": ("memory/block_size_bytes", "node/node0/cpumap",
                            "cpu/possible", "cpu/present", "cpu/online", "cpu/kernel_max"),
}  # fmt: skip


def make_a_gpus_files() -> None:
    """In mounts of this process alone: a device for each of a GPU's, and words for the rest."""
    mount("", "/", "", 1 << 14 | 1 << 18)  # MS_REC | MS_PRIVATE
    kept = [*inventory.DEVICES, FILE]
    sources = {path: os.open(path, os.O_PATH) for path in kept}
    mount("devices", "/dev", "tmpfs", 0)
    Path(CAPS[0]).parent.mkdir()
    for path in (*kept, *PROVIDED, *CAPS):
        Path(path).touch()
        if path in CAPS:
            continue
        source = sources.get(path, sources[FILE])
        mount(f"/proc/self/fd/{source}", path, "", 1 << 12)  # MS_BIND
    for folder, names in DRIVERS_WORD.items():
        if not Path(folder).is_dir():
            continue
        mount("words", folder, "tmpfs", 0)
        for name in names:
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_text("0\n")
    for source in sources.values():
        os.close(source)


def replayed(line: Call) -> str:
    """What the kernel answers to one line of the record; ``done`` if the call succeeds."""
    places = {
        "self": os.getpid(),
        "tid": threading.get_native_id(),
        "python": os.path.dirname(os.__file__),
        "driver": os.environ["DRIVER"],
    }
    path = line.path.format(**places).encode()
    room = ctypes.create_string_buffer(4096)
    number = NUMBERS[line.name]
    parts: tuple[object, ...] = (path, line.flags, 0)
    file = -1
    match line.name:
        case "openat":
            parts = (HERE, path, line.flags, 0o666)
        case "newfstatat":
            parts = (HERE, path, room, 0)
        case "stat" | "lstat":
            parts = (path, room)
        case "readlink":
            parts = (path, room, len(room))
        case "symlink":
            parts = (b"../nowhere", path)
        case "socket":
            parts = (socket.AF_UNIX, line.flags, 0)
        case "connect":
            with socket.socket(socket.AF_UNIX, PACKETS) as made:
                return tried(lambda: made.connect(path.decode()))
        case "ioctl":
            file = os.open(path, os.O_RDONLY)
            parts = (file, line.flags, room)
    answer = tried(lambda: demand(LIBC.syscall(number, *parts)))
    if file != -1:
        os.close(file)
    return answer


def replay_with_a_gpu(parts: Sequence[str]) -> object:
    """Every line of the record, in a worker; and a name for a thread that begins there."""

    def there() -> object:
        answers = [replayed(each) for each in RECORDED]
        found = list[str]()
        name = next(each for each in RECORDED if "{tid}" in each.path)
        thread = threading.Thread(target=lambda: found.append(replayed(name)))
        thread.start()
        thread.join()
        return [answers, found]

    def with_its_files() -> object:
        make_a_gpus_files()
        return in_a_worker(parts, there, tuple(readable()))

    call("unshare", 0x00020000)  # CLONE_NEWNS
    return in_a_child(with_its_files)


def demand(result: int) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def paths_with_a_gpu(_parts: Sequence[str]) -> object:
    """What a worker has that no row explains, with a GPU's file among the rows."""
    from tests.sim import lookaround

    inventory.GPU_FILES = {FILE: ""}  # type: ignore[misc]
    explained = lookaround.explained_paths(readable())
    fewer = explained - {inventory.PROCESSES}
    return in_a_worker(
        ["namespaces"],
        lambda: [lookaround.unexplained_paths(each) for each in (explained, fewer)],
    )


def trial_with_a_gpu(parts: Sequence[str]) -> object:
    """How GPUs are looked for, by a torch whose driver needs what the table lacks."""
    import torch

    needed = os.environ["NEEDED"]
    torch.backends.cuda.is_built = lambda: True
    torch.cuda.init = lambda: os.close(os.open(needed, os.O_RDONLY))
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_properties = lambda _number: SimpleNamespace(
        name="X", uuid="1"
    )
    gpus._compute_somewhere = lambda numbers: None

    def there() -> object:
        found, why = gpus.find_gpus(lambda: confined(parts))
        return [[each.uuid for each in found], why]

    return in_the_forker(parts, there)
