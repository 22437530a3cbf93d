"""The holder's process of the training measurement: batches over two private memory files.

One link is plain, the other sealed ahead; each has a thread that sends whenever the
trainer takes. Both send the same bytes in the same announcements and slots.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from itertools import repeat

from sealift.channel.link.ahead import AheadFeeder, SealAhead
from sealift.channel.link.mode import LinkMode
from sealift.channel.link.send import LinkSender
from sealift.channel.transports.memfd import MemfdTransport
from sealift.errors import SealiftError
from sealift.lab.bench.linkshapes import sender_of
from sealift.lab.bench.linktrainer import (
    ARMS,
    RECORD_BYTES,
    SLOT_BYTES,
    SLOTS,
    link_keys,
)


def main() -> None:
    """Send until the trainer is gone."""
    core, batch_bytes, seed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.sched_setaffinity(0, {core})
    batch = sys.stdin.buffer.read(batch_bytes)
    senders = [
        _sender(mode, int(descriptor), bytes.fromhex(seed))
        for mode, descriptor in zip(ARMS, sys.argv[4:], strict=True)
    ]
    threads = [threading.Thread(target=_send, args=(each, batch)) for each in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _sender(mode: str, descriptor: int, seed: bytes) -> LinkSender:
    transport = MemfdTransport.offer(
        socket.socket(fileno=descriptor),
        slot_bytes=256,
        num_slots=4,
        sending=(SLOT_BYTES, SLOTS),
    )
    return sender_of(
        mode,
        transport,
        link_keys(seed, mode),
        record_bytes=RECORD_BYTES,
        timeout_s=600.0,
    )


def _send(sender: LinkSender, batch: bytes) -> None:
    with suppress(SealiftError):
        if sender.mode is not LinkMode.SEAL_AHEAD:
            while True:
                sender.send(batch)
        feeder = AheadFeeder(SealAhead(sender), repeat(batch))
        while feeder.send_next():
            pass


if __name__ == "__main__":
    main()
