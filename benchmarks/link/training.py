"""Training wall time, sealed ahead beside plain: batches from a holder's process.

One training process for both arms, a core for it and one for the holder; steps take
turns. A step is: take the next batch out of the link (opened and verified, or copied),
forward, backward, optimizer. Both arms cross a private memory file each, in the same
announcements and slots; a thread for each sends whenever the trainer takes.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from contextlib import suppress
from itertools import repeat
from math import prod
from typing import Any, Final

from benchmarks.harness import Answer, End, Peer, pack, unpack
from benchmarks.link.device import link_keys, two_cores
from benchmarks.link.server import NAMES, form_for, model_row, random_rows
from benchmarks.link.shapes import Shape, receiver_of, sender_of
from benchmarks.report import Arm, Row, interleaved
from sealift.channel.device.host import HostDevice, HostMemory
from sealift.channel.link.announcement import LinkMode
from sealift.channel.link.receive import LinkReceiver
from sealift.channel.link.send import AheadFeeder, LinkSender, SealAhead
from sealift.channel.transport.memfd import MemfdTransport
from sealift.errors import SealiftError

ROWS: Final = {"mlp": (8, 32), "resnet18": (8,), "gpt": (4, 16), "bert": (8,)}
QUICK_S: Final = 6.0
FULL_S: Final = 30.0
JUDGED: Final = "gpt"
RATIO: Final = "train_secure_vs_plain"
ARMS: Final = (str(Shape.PLAIN), str(LinkMode.SEAL_AHEAD))
RECORD_BYTES: Final = 256 << 10
RING: Final = (RECORD_BYTES + 4096, 8)
WARM_UP: Final = 5


def rows(*, quick: bool = False, names: tuple[str, ...] = NAMES) -> list[Row]:
    """A row for each model and batch size; milliseconds a step, medians."""
    return [
        _measure(name, batch, QUICK_S if quick else FULL_S)
        for name in names
        for batch in (ROWS[name][:1] if quick else ROWS[name])
    ]


def ratios(found: list[Row]) -> dict[str, float]:
    """The worst of the small GPT."""
    judged = [float(r["sealed_vs_plain"]) for r in found if r.get("model") == JUDGED]
    return {RATIO: max(judged)} if judged else {}


def _measure(name: str, batch: int, budget_s: float) -> Row:
    with Peer.start(Trainer, name, batch) as trainer:
        told = trainer.ask("train", budget_s=budget_s)
    medians = dict(zip(("plain", "sealed"), (told[arm] for arm in ARMS), strict=True))
    row = model_row("training", name, batch, told["bytes"], medians)
    return {**row, "pairs": told["steps"]}


class Trainer(End):
    """The training process: one model, and a batch of random rows for it."""

    def __init__(self, name: str, rows: str) -> None:
        import torch

        from benchmarks.link.models import make

        self._cores = two_cores()
        os.sched_setaffinity(0, {self._cores[0]})
        torch.set_num_threads(1)
        inputs = form_for(name).inputs
        field = inputs.fields[0]
        self._shape = (int(rows), *field.shape)
        self._model: Any = make(name)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), fused=True)
        self._dtype = torch.int32 if field.dtype == "int32" else torch.float32
        self._batch = random_rows(inputs, int(rows))

    def train(self, budget_s: float) -> Answer:
        """Seconds a step by arm."""
        engine = HostDevice(threads=1)
        memory = engine.allocate(len(self._batch))
        with Peer.start(Holder, self._cores[-1]) as holder:
            holder.ask("hold", batch=pack(self._batch))
            arms: dict[str, Arm] = {}
            for mode in ARMS:
                here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                seed = secrets.token_bytes(32)
                holder.tell("send", there, mode=mode, seed=seed.hex())
                transport = MemfdTransport.accept(here)
                receiver = receiver_of(
                    mode, transport, link_keys(seed), engine, timeout_s=60.0
                )
                holder.hear()
                arms[mode] = self._stepping(receiver, memory)
            spent = interleaved(arms, 2 * WARM_UP, warm_up=WARM_UP, budget_s=budget_s)
        steps = len(spent[ARMS[0]].seconds)
        medians = {arm: each.median for arm, each in spent.items()}
        return {"steps": steps, "bytes": len(self._batch), **medians}

    def _stepping(self, receiver: LinkReceiver, memory: HostMemory) -> Arm:
        import torch
        from torch.nn import functional as F

        def step() -> None:
            receiver.receive(memory)
            content = torch.frombuffer(memory.view, dtype=self._dtype)[
                : prod(self._shape)
            ]
            x = content.view(self._shape)
            self._optimizer.zero_grad()
            y = self._model(x)
            if self._dtype == torch.int32:  # every next token
                target = x[:, 1:].flatten().long()
                loss = F.cross_entropy(y[:, :-1].flatten(0, 1), target)
            else:
                y = y.flatten(0, -2)
                loss = F.cross_entropy(y, torch.zeros(len(y), dtype=torch.int64))
            loss.backward()
            self._optimizer.step()

        return step


class Holder(End):
    """The holder's process: one link is plain, the other sealed ahead."""

    def __init__(self, core: str) -> None:
        os.sched_setaffinity(0, {int(core)})

    def hold(self, batch: str) -> None:
        """What is sent, again and again."""
        self._batch = unpack(batch)

    def send(self, sock: socket.socket, mode: str, seed: str) -> None:
        """Send over a link until the trainer is gone."""
        transport = MemfdTransport.offer(
            sock, slot_bytes=256, num_slots=4, sending=RING
        )
        sender = sender_of(
            mode,
            transport,
            link_keys(bytes.fromhex(seed)),
            record_bytes=RECORD_BYTES,
            timeout_s=600.0,
        )
        threading.Thread(target=self._send, args=(sender,), daemon=True).start()

    def _send(self, sender: LinkSender) -> None:
        with suppress(SealiftError):
            if sender.mode is not LinkMode.SEAL_AHEAD:
                while True:
                    sender.send(self._batch)
            feeder = AheadFeeder(SealAhead(sender), repeat(self._batch))
            while feeder.send_next():
                pass
