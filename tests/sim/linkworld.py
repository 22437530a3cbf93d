"""Both ends of a link in one process, and somebody in between who can be told what to do.

The attacker writes what the sender wrote into the shared memory again, in another way:
that is stronger than anything a host between the two could do.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from benchmarks.link.shapes import receiver_of, sender_of
from sealift.channel.device.host import HostDevice
from sealift.channel.link.announcement import DEFAULT_MODE, LinkKeys
from sealift.channel.transport.memfd import SLOT_HEAD_BYTES, MemfdTransport
from sealift.crypto.keys import SecretKey

RECORD_BYTES = 4096
SLOT_BYTES = 64 << 10
Attacker = Callable[[int, bytes], list[bytes]]


class Tampered(MemfdTransport):
    """The sender's end, whose frames pass an attacker."""

    attacker: Attacker | None = None
    count = 0

    def commit(self):
        if self.attacker is None:
            super().commit()
            return
        start = self._outgoing.slot_start() + SLOT_HEAD_BYTES
        frame = bytes(self.memory[start : start + self._reserved])
        self._reserved = None
        number, self.count = self.count, self.count + 1
        for each in self.attacker(number, frame):
            self.reserve(len(each), 2)[:] = each
            super().commit()


class LinkWorld:
    """A sender and a receiver in one mode, or shape; ``memory`` is the device's."""

    def __init__(
        self,
        mode=DEFAULT_MODE,
        *,
        keys=None,
        engine=None,
        attacker=None,
        receiver_mode=None,
        home_key=None,
        record_bytes=RECORD_BYTES,
        num_slots=16,
        transport_class=Tampered,
        nbytes=SLOT_BYTES,
        receiver_keys=None,
        timeout_s=300,
    ):
        self.keys = keys or LinkKeys(SecretKey.generate(), SecretKey.generate())
        self.engine = engine or HostDevice(threads=2)
        self.memory = self.engine.allocate(nbytes)
        left, right = socket.socketpair()
        here = transport_class.offer(left, slot_bytes=SLOT_BYTES, num_slots=num_slots)
        receiving = MemfdTransport
        if not issubclass(transport_class, Tampered):
            receiving = transport_class
        there = receiving.accept(right)
        self.mode = mode
        self.sender = sender_of(
            mode, here, self.keys, record_bytes=record_bytes, timeout_s=timeout_s
        )
        try:
            self.receiver = receiver_of(
                receiver_mode or mode, there, receiver_keys or self.keys, self.engine,
                home_key=home_key, timeout_s=timeout_s,
            )  # fmt: skip
        except BaseException:
            self.sender.close()
            self.engine.close()
            raise
        here.attacker = attacker
        self.seen = []

    def content(self):
        """All of the device's memory."""
        out = bytearray(self.memory.nbytes)
        self.engine.download(self.memory, 0, out).wait()
        return bytes(out)

    def cross(self, send):
        """Run ``send``; return what the receiver raised, or the arrival."""

        def sending():
            try:
                send()
            except Exception as error:
                self.sender_error = without_frames(error)
                self.sender.close()

        self.sender_error = None
        thread = threading.Thread(target=sending)
        thread.start()
        try:
            return self.receiver.receive(self.memory, sink=self._sink)
        except Exception as error:
            return without_frames(error)
        finally:
            thread.join()

    def close(self):
        self.sender.close()
        self.receiver.close()
        self.engine.close()

    def _sink(self, start, length):
        self.seen.append((start, length))


def without_frames(error):
    """The error, and what it came from, without frames that keep memory mapped."""
    each = error
    while each is not None:
        each.__traceback__ = None
        each = each.__context__
    return error
