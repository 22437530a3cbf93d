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
import struct
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


def work_under_way():
    return next(o for o in gc.get_objects() if type(o).__name__ == "AssignedTask")


def parent():
    return work_under_way()._parent


def request(message=b"", *, number=None, length=None, start=0, size=0, room=0):
    # Of any kind; then it rings.
    end = parent()
    end._number = end._number + 1 if number is None else number
    at = len(end.buffers)
    end._whole[at + 128 : at + 128 + len(message)] = message
    length = len(message) if length is None else length
    head = struct.pack("<QQQQQ", end._number, length, start, size, room)
    end._whole[at : at + len(head)] = head
    os.write(end.stream, b"!")


def await_end():
    os.read(parent().stream, 1)  # a reply, or never
    raise LookupError


HANDED = (
    b'{"body":{"model":0,"size":{"step":0,"tensors":16,"tree":0}},"type":"Handed"}'
)
LOSS = b'{"body":{"model":0,"place":0,"values":{"loss":0.5}},"type":"TaskMetrics"}'
IMPORTING = b'{"body":{"path":"never.py"},"type":"Importing"}'


def ask_nonsense():
    request(b"nonsense")
    await_end()


def ask_what_is_no_question():
    request(b'{"body":{"rows":1},"type":"ServeAnswer"}')
    await_end()


def ask_at_length():
    request(b"{}", length=1 << 62)
    await_end()


def ask_outside():
    request(IMPORTING, start=len(parent().buffers), size=1)
    await_end()


def ask_backwards():
    request(IMPORTING, start=(1 << 64) - 8, size=16)
    await_end()


def ring_without_end():
    for _ in range(100_000):
        os.write(parent().stream, b"!")
    await_end()


def ask_again():
    request(IMPORTING)
    os.read(parent().stream, 1)
    request(IMPORTING)
    await_end()


def hand_over_for_nothing():
    request(HANDED, size=16)
    await_end()


def tell_too_much():
    for _ in range(3):
        request(LOSS)
        os.read(parent().stream, 1)
    raise LookupError


def tell_something_else():
    request(LOSS.replace(b"loss", b"rows"))
    await_end()


def tell_of_another_model():
    request(LOSS.replace(b'"model":0', b'"model":1'))
    await_end()


def ask_and_go_on():
    request(IMPORTING)
    await_end()


def ask_and_die():
    request(IMPORTING)
    os._exit(0)


def ask_and_never_listen():
    request(IMPORTING)
    while True:
        try:
            os.write(parent().stream, b"!" * 4096)
        except OSError:
            raise LookupError from None


def ask_slowly():
    for number in range(40):
        request(IMPORTING.replace(b"never", b"more%d" % number))
        os.read(parent().stream, 1)
        time.sleep(0.1)
    raise LookupError


def babble(times=400):
    for number in range(times):
        request(IMPORTING.replace(b"never", b"more%d" % number))
        at = len(parent().buffers) + 64
        while parent()._whole[at : at + 8] != struct.pack("<Q", parent()._number):
            time.sleep(0.001)  # it is replied to; the reply is never read
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
UNUSED = {f"{name}.py": b"" for name in ("never", *(f"more{n}" for n in range(400)))}
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
        yield {"recipe.py": RECIPE.encode(), "target.py": text.encode(), **UNUSED}
