"""``python -m tests.sim.inside LOOK [PART...]``: one part of the sandbox alone, and a look.

Each look asks the kernel, in a process that has just been confined; what the product
says of itself is nobody's evidence. Prints JSON. Started by ``look``; no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import resource
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sealift.train.sandbox import kernel as limits
from sealift.train.sandbox import landlock, namespaces, seccomp
from sealift.train.sandbox.confine import Confinement, confine_worker
from sealift.train.sandbox.inventory import readable
from tests.sim import lookaround

LIBC = ctypes.CDLL(None, use_errno=True)
PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_GET_SECCOMP = 2, 3, 21
EVERYTHING = 0x6E020000  # mounts, host name, IPC, user, processes, network
WITHOUT_USERS = EVERYTHING & ~0x10000000
MEMORY_BYTES = 1 << 40
REFUSED = "refused"


def look(name: str, *parts: str, **more: str) -> Any:
    """What the kernel answers in a fresh process, confined by these parts."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.inside", name, ",".join(parts)],
        env=dict(os.environ) | more,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def kernel_gives(part: str) -> bool:
    """Whether the kernel lets this user have a part; asked without the product."""
    match part:
        case "landlock":
            return int(LIBC.syscall(444, None, ctypes.c_size_t(0), 1)) >= 1
        case "seccomp":
            return int(LIBC.prctl(PR_GET_SECCOMP, 0, 0, 0, 0)) >= 0
        case _:
            return bool(look("may_unshare"))


def demand(wanted: str) -> str:
    """Skip where the kernel does not give all of this; what it gives must be in force."""
    import pytest

    lacking = [part for part in wanted.split("+") if not kernel_gives(part)]
    if lacking:
        pytest.skip(f"this machine lacks {lacking[0]} for this user")
    return wanted


def tried(call: Callable[[], object]) -> str:
    """``done``, or the name of the error."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def connect(port: int) -> None:
    with socket.socket() as made:
        made.connect(("127.0.0.1", port))


def confine(parts: Sequence[str], places: Sequence[str] = ()) -> None:
    confine_worker(Confinement(parts), places, MEMORY_BYTES)


def may_unshare(_parts: Sequence[str]) -> object:
    return LIBC.unshare(WITHOUT_USERS) == 0 or LIBC.unshare(EVERYTHING) == 0


def files(parts: Sequence[str]) -> object:
    """What can be done in a shown folder and in another one."""
    shown, hidden = os.environ["SHOWN"], os.environ["HIDDEN"]
    confine(parts, [shown])
    return {
        "read shown": tried(Path(shown, "file").read_bytes),
        "write shown": tried(lambda: Path(shown, "file").write_bytes(b"")),
        "make in shown": tried(lambda: Path(shown, "new").mkdir()),
        "read hidden": tried(Path(hidden, "file").read_bytes),
        "write hidden": tried(lambda: Path(hidden, "file").write_bytes(b"")),
        "list the root": tried(lambda: os.listdir("/")),
        "write a null device": tried(lambda: Path(os.devnull).write_bytes(b"x")),
    }


def connections(parts: Sequence[str]) -> object:
    """A port of the test, and the test itself."""
    port, other = int(os.environ["PORT"]), int(os.environ["OTHER"])
    confine(parts)
    return {
        "connect": tried(lambda: connect(port)),
        "signal": tried(lambda: os.kill(other, 0)),
    }


def status(parts: Sequence[str]) -> object:
    """The kernel's lines on this process; opened before, read afterwards."""
    with Path("/proc/self/status").open(encoding="utf-8") as lines:
        confine(parts)
        fields = (line.split(":", 1) for line in lines)
        return {name: value.strip() for name, value in fields}


def limits_told(parts: Sequence[str]) -> object:
    confine(parts)
    return {
        "dumpable": LIBC.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "locked": resource.getrlimit(resource.RLIMIT_MEMLOCK),
        "file": resource.getrlimit(resource.RLIMIT_FSIZE),
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
        "data": resource.getrlimit(resource.RLIMIT_DATA),
    }


def dumpable(_parts: Sequence[str]) -> object:
    return LIBC.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)


def zygote(_parts: Sequence[str]) -> object:
    """The process that forks workers, when it has served."""
    from sealift.train.sandboxed import recipeworker, zygote

    ours, theirs = socket.socketpair()
    theirs.close()
    recipeworker.warm_up = lambda: None
    zygote.Zygote(ours, Confinement([]), (), None).serve()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    locked = next(line for line in lines if line.startswith("VmLck"))
    return {
        "dumpable": LIBC.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0),
        "locked": int(locked.split()[1]) << 10,
    }


def pages(_parts: Sequence[str]) -> object:
    """Pages of a library that are not in memory: dropped, pinned, dropped again."""
    from sealift.train.sandbox.inventory import pin_libraries

    path = os.environ["SHOWN"]
    ctypes.CDLL(path)
    file = os.open(path, os.O_RDONLY)

    def absent() -> int:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        found = (
            tried(lambda at=at: os.preadv(file, [bytearray(1)], at, os.RWF_NOWAIT))
            for at in range(0, os.fstat(file).st_size, 4096)
        )
        return sum(each == "EAGAIN" for each in found)

    os.fsync(file)
    before = absent()
    pin_libraries()
    return [before, absent()]


def end_signal(_parts: Sequence[str]) -> object:
    limits.end_with_parent(os.getppid())
    found = ctypes.c_int(0)
    LIBC.prctl(PR_GET_PDEATHSIG, ctypes.byref(found), 0, 0, 0)
    return found.value


def world(_parts: Sequence[str]) -> object:
    """Which namespaces the process was in, and which its children are in."""
    kinds = ("net", "ipc", "uts", "mnt")

    def found() -> dict[str, int]:
        return {kind: os.stat(f"/proc/self/ns/{kind}").st_ino for kind in kinds}

    before = found()
    namespaces.leave_world()
    after = found()
    return [kind for kind in kinds if before[kind] == after[kind]]


def in_a_world(look_there: Callable[[], object], places: Sequence[str]) -> object:
    """In namespaces alone: no Landlock, no filter, every capability."""

    def there() -> object:
        namespaces.enter_root(places)
        namespaces.take_own()
        return look_there()

    namespaces.leave_world()
    return in_a_child(there)


def in_a_child(look_there: Callable[[], object]) -> Any:
    source, sink = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(sink, json.dumps(look_there()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(sink)
    with os.fdopen(source, "rb") as answer:
        found = json.loads(answer.read() or b"null")
    assert os.waitpid(child, 0)[1] == 0
    return found


def world_files(_parts: Sequence[str]) -> object:
    shown, hidden = os.environ["SHOWN"], os.environ["HIDDEN"]
    port, other = int(os.environ["PORT"]), int(os.environ["OTHER"])

    def flags(path: str) -> int:
        return os.statvfs(path).f_flag

    def there() -> object:
        return {
            "read shown": tried(Path(shown, "file").read_bytes),
            "write shown": tried(lambda: Path(shown, "file").write_bytes(b"")),
            "make in shown": tried(lambda: Path(shown, "new").mkdir()),
            "read hidden": tried(Path(hidden, "file").read_bytes),
            "make in the root": tried(lambda: Path("/new").mkdir()),
            "make in the scratch": tried(lambda: Path("new").mkdir()),
            "flags": flags(shown),
            "scratch flags": flags("/scratch"),
            "interfaces": [name for _, name in socket.if_nameindex()],
            "connect": tried(lambda: connect(port)),
            "signal": tried(lambda: os.kill(other, 0)),
            "number": os.getpid(),
            "host": socket.gethostname(),
        }

    return in_a_world(there, [shown])


def world_paths(_parts: Sequence[str]) -> object:
    """Every path that no row explains, and again with one row fewer."""
    places = readable()
    explained = lookaround.explained_paths(places)
    fewer = explained - {next(iter(places))}
    return in_a_world(
        lambda: [
            lookaround.unexplained_paths(explained),
            lookaround.unexplained_paths(fewer),
        ],
        list(places),
    )


def refused_calls(parts: Sequence[str]) -> object:
    """What a recipe could write into, or read of, state that others share."""
    attacks = lookaround.shared_state(os.environ["SHOWN"])
    confine(parts)
    return {name: tried(attack) for name, attack in attacks.items()}


def one_call_more(_parts: Sequence[str]) -> object:
    """A filter with one call more than the table has."""
    plain = seccomp.program
    extra = int(os.environ["EXTRA"])

    def longer(machine: Any, process: int, **more: Any) -> Any:
        steps = plain(machine, process, **more)
        head, tail = steps[:6], steps[6:]
        return (*head, (0x15, 0, 1, extra), (0x06, 0, 0, seccomp.ALLOW), *tail)

    seccomp.program = longer
    known = lookaround.known_calls()
    confine(["seccomp"])
    return lookaround.unexplained_calls(known)


def join_a_thread(parts: Sequence[str]) -> object:
    """A native thread that is waited for natively, as C++ libraries do."""
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    ran: list[int] = []
    body = kind(lambda _none: ran.append(1) or 0)
    confine(parts)
    thread = ctypes.c_ulong(0)
    made = LIBC.pthread_create(ctypes.byref(thread), None, body, None)
    return [made, LIBC.pthread_join(thread, None), ran]


def main() -> None:
    name, parts = sys.argv[1], [part for part in sys.argv[2].split(",") if part]
    looks = globals()
    if name.endswith("with_a_gpu"):
        looks = vars(importlib.import_module("tests.sim.withagpu"))
    answer = looks[name](parts)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(answer).encode())
    os._exit(0)


if __name__ == "__main__":
    assert landlock.READ
    main()
