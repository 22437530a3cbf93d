"""A worker from start to end, seen from its parent: forked by the zygote, and gone."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sealift.train.worker.messages import (
    KillWorker,
    StartWorker,
    WorkerEnded,
    from_bytes,
    to_bytes,
)
from sealift.train.worker.wire import send_with

START_S: Final = 120.0


class WorkerProcess:
    """One worker.

    Args:
        control: To the zygote, which has one worker at a time.

    Attributes:
        status: Exit code, or the negative number of a signal; None while it runs.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.status: int | None = 0

    def start(self, memory_bytes: int, descriptors: Sequence[int]) -> None:
        """Have it forked, with these descriptors.

        Raises:
            PeerError: code ``worker-gone``, if the zygote is.
        """
        send_with(self._control, to_bytes(StartWorker(memory_bytes)), descriptors)
        self.status = None

    def end(self, farewell_s: float) -> None:
        """Make sure that it is gone, and know how it went.

        Args:
            farewell_s: How long it may take to end by itself.
        """
        if self.status is not None:
            return
        self.status = 0
        self._control.settimeout(farewell_s)
        raw = read_packet(self._control)
        if not raw:
            self._control.settimeout(START_S)
            with suppress(OSError):
                self._control.send(to_bytes(KillWorker()))
            raw = read_packet(self._control)
        if raw:
            told = from_bytes(raw, WorkerEnded)
            assert isinstance(told, WorkerEnded)
            self.status = told.status


def read_packet(control: socket.socket) -> bytes:
    """What the zygote says; empty if it is gone or says nothing in time."""
    try:
        return control.recv(4096)
    except OSError:
        return b""
