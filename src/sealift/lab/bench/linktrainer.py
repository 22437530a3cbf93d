"""The training process of the training measurement: batches come from a holder's process.

Plain and sealed steps in turn; a step is: take the next batch out of the
link (opened and verified, or copied), forward, backward, optimizer. Prints one line.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from typing import Any, Final

from sealift.channel.hostdevice import HostDevice
from sealift.channel.link.keys import LinkKeys
from sealift.channel.link.mode import LinkMode
from sealift.channel.link.receive import LinkReceiver
from sealift.channel.transports.memfd import MemfdTransport
from sealift.crypto.hash import labelled
from sealift.crypto.keys import SecretKey
from sealift.lab.bench.linkshapes import Shape, receiver_of

ARMS: Final = (str(Shape.PLAIN), str(LinkMode.SEAL_AHEAD))
RECORD_BYTES: Final = 256 << 10
SLOT_BYTES: Final = RECORD_BYTES + 4096
SLOTS: Final = 8
WARM_UP: Final = 5


def link_keys(seed: bytes, mode: str) -> LinkKeys:
    """Both ends' keys of one arm."""
    there, back = (labelled("bench link", seed, mode.encode(), w) for w in (b"1", b"2"))
    return LinkKeys(SecretKey(there), SecretKey(back))


def main() -> None:
    """Train and print the medians."""
    name, rows, budget_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    import torch

    torch.set_num_threads(1)
    task = _Task(name, rows)
    receivers, memory, holder = _links(task.batch, cores[-1])
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    turn = deque(ARMS)
    began = time.perf_counter()
    while time.perf_counter() - began < budget_s or len(times[ARMS[0]]) < 3 * WARM_UP:
        turn.rotate(1)
        for arm in turn:
            start = time.perf_counter()
            receivers[arm].receive(memory)
            task.step(memory.view)
            times[arm].append(time.perf_counter() - start)
    holder.kill()
    holder.wait()
    medians = {a: statistics.median(taken[WARM_UP:]) for a, taken in times.items()}
    told = {"steps": len(times[ARMS[0]]) - WARM_UP, "bytes": len(task.batch)}
    print(json.dumps({**told, **medians}))


class _Task:
    """One model, and a batch of random rows for it."""

    def __init__(self, name: str, rows: int) -> None:
        import torch

        from sealift.lab.bench.linkmodels import form_for
        from sealift.lab.bench.models import make

        field = form_for(name).inputs.fields[0]
        shape = (rows, *field.shape)
        self._model: Any = make(name)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), fused=True)
        if field.dtype == "int32":
            given = torch.randint(0, field.classes or 2, shape, dtype=torch.int32)
        else:
            given = torch.rand(shape)
        self._shape, self._dtype = shape, given.dtype
        self.batch = given.numpy().tobytes()

    def step(self, view: memoryview) -> None:
        import torch
        from torch.nn import functional as F

        content = torch.frombuffer(view, dtype=self._dtype)[: _count(self._shape)]
        x = content.view(self._shape)
        self._optimizer.zero_grad()
        y = self._model(x)
        if self._dtype == torch.int32:  # every next token
            loss = F.cross_entropy(y[:, :-1].flatten(0, 1), x[:, 1:].flatten().long())
        else:
            y = y.flatten(0, -2)
            loss = F.cross_entropy(y, torch.zeros(len(y), dtype=torch.int64))
        loss.backward()
        self._optimizer.step()


def _count(shape: tuple[int, ...]) -> int:
    number = 1
    for size in shape:
        number *= size
    return number


def _links(batch: bytes, core: int) -> tuple[dict[str, LinkReceiver], Any, Any]:
    seed = secrets.token_bytes(32)
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM) for _ in ARMS]
    there = [str(pair[1].fileno()) for pair in pairs]
    words = [str(core), str(len(batch)), seed.hex(), *there]
    holder = subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-m", "sealift.lab.bench.linkholder", *words],
        stdin=subprocess.PIPE,
        pass_fds=[int(each) for each in there],
    )
    assert holder.stdin is not None
    holder.stdin.write(batch)
    holder.stdin.close()
    engine = HostDevice(threads=1)
    memory = engine.allocate(len(batch))
    receivers = {
        arm: receiver_of(
            arm,
            MemfdTransport.accept(pair[0]),
            link_keys(seed, arm),
            engine,
            timeout_s=60.0,
        )
        for arm, pair in zip(ARMS, pairs, strict=True)
    }
    return receivers, memory, holder


if __name__ == "__main__":
    main()
