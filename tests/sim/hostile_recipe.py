"""A recipe that means harm: what it tries is decided by its rows.

Each attack that succeeds raises ``LookupError``: a type is what a recipe may tell. The
bundle's ``target.py`` says whom to attack.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

RECIPE = """
import builtins
import ctypes
import gc
import os
import socket
import stat
import sys
import threading
import time

import target
import torch
from torch import nn

SCRATCH = "/scratch" if os.path.isdir("/scratch") else target.ELSEWHERE

LIBC = ctypes.CDLL(None, use_errno=True)


def demand(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    raise LookupError


def connect():
    socket.create_connection(("127.0.0.1", target.PORT), timeout=5).close()
    raise LookupError


def read_key_file():
    open(target.KEY_FILE, "rb").read()
    raise LookupError


def trace_parent():
    demand(LIBC.ptrace(0x4206, target.PARENT, None, None))


def read_parent():
    class Piece(ctypes.Structure):
        _fields_ = [("at", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    room = ctypes.create_string_buffer(8)
    here = Piece(ctypes.addressof(room), 8)
    there = Piece(target.SECRET_AT, 8)
    result = LIBC.process_vm_readv(
        target.PARENT, ctypes.byref(here), 1, ctypes.byref(there), 1, 0
    )
    demand(result)


def open_parents_memory():
    with open(f"/proc/{target.PARENT}/mem", "rb", buffering=0) as memory:
        memory.seek(target.SECRET_AT)
        memory.read(8)
    raise LookupError


def fork():
    if os.fork() == 0:
        os._exit(0)
    raise LookupError


def execute():
    try:
        os.execv("/nowhere/at/all", ["all"])
    except FileNotFoundError:  # it was tried: an existing program would run
        raise LookupError from None


def write_file():
    open(target.LEFT_FILE, "wb").write(b"rows")
    raise LookupError


def signal_parent():
    os.kill(target.PARENT, 0)
    raise LookupError


def signal_parent_by_file():
    import fcntl

    ours, theirs = os.pipe()
    fcntl.fcntl(ours, fcntl.F_SETOWN, target.PARENT)
    raise LookupError


def remember():
    builtins.KEPT = "rows"
    sys.modules["kept"] = builtins
    os.environ["KEPT"] = "rows"


def recall():
    if hasattr(builtins, "KEPT") or "kept" in sys.modules or "KEPT" in os.environ:
        raise LookupError


def leave_in_scratch():
    open(f"{SCRATCH}/rows-of-somebody", "wb").write(b"rows")


def find_in_scratch():
    if os.path.exists(f"{SCRATCH}/rows-of-somebody"):
        raise LookupError


def fill_disk():
    with open(f"{SCRATCH}/much", "wb") as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    raise LookupError


def fill_disk_with_files():
    for number in range(200):
        with open(f"{SCRATCH}/much-{number}", "wb") as file:
            file.write(bytes(1 << 20))
    raise LookupError


def hang():
    time.sleep(2)
    raise LookupError


def allocate():
    torch.zeros(1 << 29, dtype=torch.float64)
    raise LookupError


def say():
    print("canary-5517")
    sys.stderr.write("canary-5517")
    os.write(1, b"canary-5517")
    os.write(2, b"\\x1b[2Jcanary-5517")


def descriptors():
    for number in range(3, 60):
        try:
            os.fstat(number)
        except OSError:
            continue
        yield number


def garble():
    for number in descriptors():
        try:
            os.write(number, b"\\x00\\x00\\x00\\x08nonsense")
        except OSError:
            pass


def boast():
    for number in descriptors():
        try:
            os.write(number, b"\\xff" * 64)
        except OSError:
            pass


def talk():
    return next(n for n in descriptors() if stat.S_ISSOCK(os.fstat(n).st_mode))


def drip():
    os.write(talk(), b"\\x00\\x00\\x00\\x64")
    for _ in range(40):
        os.write(talk(), b" ")
        time.sleep(0.1)
    raise LookupError


def work_under_way():
    return next(o for o in gc.get_objects() if type(o).__name__ == "Assigned")


def babble(times=20_000):
    work_under_way()._area[:16] = b"\\x08" + bytes(7) + b"{}      "
    size = b'{"step":0,"tensors":16,"tree":0}'
    said = b'{"body":{"model":0,"size":' + size + b'},"type":"Handed"}'
    for _ in range(times):
        os.write(talk(), len(said).to_bytes(4, "big") + said)
    raise LookupError


def babble_a_little():
    babble(10)


def write_rows():
    rows = work_under_way()._given.rows[0].view
    rows[:] = bytes(len(rows))
    raise LookupError


def leave():
    os._exit(0)


def crash():
    os.kill(os.getpid(), 11)


def join_network():
    demand(LIBC.unshare(0x10000000))


def load_more_rights():
    demand(LIBC.prctl(1, 0, 0, 0, 0))


ATTACKS = {name: each for name, each in list(globals().items()) if callable(each)}


def build():
    return nn.Linear(1, 1)


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loss(model, batch):
    name = bytes(batch["attack"][0].tolist()).rstrip(b"\\0").decode()
    ATTACKS[name]()
    return model(torch.ones(1, 1)).sum()


def evaluate(model, batch):
    return {
        "loss": 0.1234567890123456 * len(batch["attack"]),
        "rows": 7.0,
        "accuracy": float("nan"),
    }
"""
NAME_BYTES = 24
SCHEMA = {"fields": [{"name": "attack", "dtype": "uint8", "shape": [NAME_BYTES]}]}
ATTACKS_REFUSED = (
    "connect",
    "read_key_file",
    "trace_parent",
    "read_parent",
    "open_parents_memory",
    "fork",
    "execute",
    "write_file",
    "signal_parent",
    "signal_parent_by_file",
    "join_network",
    "load_more_rights",
)


def attack_rows(attack: str, count: int = 2) -> Tensor:
    """Rows that ask the recipe for one attack."""
    raw = attack.encode().ljust(NAME_BYTES, b"\0")
    return torch.tensor(list(raw), dtype=torch.uint8).repeat(count, 1)


@contextmanager
def hostile_bundle(
    folder: Path, parent: int, elsewhere: Path
) -> Iterator[dict[str, bytes]]:
    """The recipe and a target in this process: a secret, a key file, an open port.

    Args:
        folder: Of the key file.
        parent: Whom to attack.
        elsewhere: Where it writes if it has no scratch.
    """
    secret = ctypes.create_string_buffer(b"a secret of the parent")
    key_file = folder / "owner.key"
    key_file.write_bytes(b"key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        facts = {
            "PARENT": parent,
            "SECRET_AT": ctypes.addressof(secret),
            "KEY_FILE": str(key_file),
            "LEFT_FILE": str(folder / "left"),
            "ELSEWHERE": str(elsewhere),
            "PORT": server.getsockname()[1],
        }
        text = "".join(f"{name} = {value!r}\n" for name, value in facts.items())
        yield {"recipe.py": RECIPE.encode(), "target.py": text.encode()}
