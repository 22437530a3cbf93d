"""The benchmark's hold on its device process: start it, hand it links, ask it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sealift.channel.link.keys import LinkKeys
from sealift.channel.transports.memfd import MemfdTransport
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import PeerError, UnavailableError
from sealift.lab.bench.linkdevice import TIMEOUT_S

DEVICE_BYTES: Final = 2 << 30
_BACK: Final = (256, 4)  # slots of what the device says: verdicts


class DevicePeer:
    """The device process, seen from here."""

    def __init__(self, control: socket.socket, process: int) -> None:
        self.process = process
        self._control = control
        self._answers = control.makefile("r")

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """One command, one answer.

        Raises:
            PeerError: code ``device-gone``, if the process ended.
            UnavailableError: with the device's own code, if it cannot.
        """
        message = json.dumps({"name": name, **arguments}).encode() + b"\n"
        try:
            self._control.sendall(message)
        except OSError as error:
            raise _gone() from error
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """What it says next."""
        try:
            line = self._answers.readline()
        except OSError as error:
            raise _gone() from error
        if not line:
            raise _gone()
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            why, code = answer["failed"]
            raise UnavailableError("the device cannot go on", why=why, code=code)
        return answer

    def close(self) -> None:
        """Let go of the control socket."""
        self._answers.close()
        self._control.close()

    def connect(
        self,
        link: str,
        mode: str,
        keys: LinkKeys,
        *,
        ring: tuple[int, int],
        kind: type[MemfdTransport] = MemfdTransport,
        home: SecretKey | None = None,
    ) -> MemfdTransport:
        """A memory file with ``ring`` (slot bytes, slots) whose other end it takes."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        secrets = (keys.to_device, keys.from_device)
        self.ask(
            "take",
            link=link,
            mode=mode,
            keys=[key.reveal(TOKEN).hex() for key in secrets],
            home=(home or keys.to_device).reveal(TOKEN).hex(),
        )
        socket.send_fds(self._control, [b"x"], [there.fileno()])
        there.close()
        slot_bytes, slots = _BACK
        return kind.offer(here, slot_bytes=slot_bytes, num_slots=slots, sending=ring)


@contextmanager
def device_process(
    cores: list[int], memory_bytes: int = DEVICE_BYTES
) -> Iterator[DevicePeer]:
    """Start the device on the last of ``cores``; its threads may use all of them."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    here.settimeout(TIMEOUT_S)
    words = [str(there.fileno()), ",".join(map(str, cores)), str(memory_bytes)]
    child = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "sealift.lab.bench.linkdevice", *words],
        pass_fds=[there.fileno()],
    )
    there.close()
    peer = DevicePeer(here, child.pid)
    try:
        yield peer
    finally:
        peer.close()
        child.kill()
        child.wait()


def two_cores() -> list[int]:
    """The sender's core and the device's; the same one where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return [cores[0], cores[-1]]


def _gone() -> PeerError:
    return PeerError("the device's process ended", code="device-gone")
