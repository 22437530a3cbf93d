"""Somebody else on the orchestrator's port: it listens, and lets nobody in."""

from __future__ import annotations

import itertools
import socket
import threading
from contextlib import suppress
from typing import Self

from sealift.channel.transport.tcp import TcpTransport
from sealift.errors import SealiftError
from sealift.session.relay.envelope import (
    NO_CIRCUIT,
    EnvelopeKind,
    RelayEnvelope,
    refuse,
)

WAYS = ("garbage", "hangs up", "refuses", "registers and speaks garbage")


class Stranger:
    """Answers each that dials in another way, and counts them.

    Args:
        port: That of an orchestrator that was killed.
    """

    def __init__(self, port: int) -> None:
        self.met: list[str] = []
        self._changed = threading.Condition()
        self._listener = _listening(port)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def wait_for(self, dials: int, timeout_s: float) -> None:
        """Until so many have dialled."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.met) >= dials, timeout_s)

    def _serve(self) -> None:
        for way in itertools.cycle(WAYS):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with suppress(SealiftError, OSError):
                _answer(TcpTransport(sock), way)
            with self._changed:
                self.met.append(way)
                self._changed.notify_all()


def _answer(transport: TcpTransport, way: str) -> None:
    try:
        if way == "hangs up":
            return
        transport.receive(60.0)  # what it wants to be called
        if way == "garbage":
            transport.send(b"220 mail.example ESMTP")
        elif way == "refuses":
            transport.send(refuse(NO_CIRCUIT, "name-unproven"))
        else:
            transport.send(RelayEnvelope(EnvelopeKind.REGISTERED).encode())
            transport.send(b"\xff" * 40)
    finally:
        transport.close()


def _listening(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))
