"""Frames through shared memory that had a name: others may have it open (rule H3).

Everything is copied once more than through a private memory file: frames are made in
private memory and copied out whole, and copied in before anybody looks at them. Its size
is not sealed, so whoever has it open can end both processes by cutting it (SIGBUS). It is
here to show what that costs, and for systems without private memory files.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
from typing import Final

from sealift.channel.transports.memfd import MemfdTransport
from sealift.channel.transports.memfdoffer import no_room
from sealift.channel.transports.ring import SLOT_HEAD_BYTES, RingEnd
from sealift.errors import UnavailableError

_FOLDER: Final = "/dev/shm"  # noqa: S108 - where POSIX shared memory has its names


class NamedMemoryTransport(MemfdTransport):
    """One end of a shared memory file that is not private; copies every frame."""

    _private = False

    def __init__(
        self, memory: mmap.mmap, sock: socket.socket, ends: tuple[RingEnd, RingEnd]
    ) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        try:  # first: whoever is refused has taken nothing
            private = mmap.mmap(-1, len(memory), flags=flags)
        except OSError as error:
            raise no_room(len(memory), error) from error
        super().__init__(memory, sock, ends)
        self._shared = self.memory
        # Offsets are those of the file, so that frames lie at the same place in both.
        self.memory = memoryview(private)
        self._private_copy = private

    @classmethod
    def _make(cls, file_bytes: int) -> int:
        return _open_named(file_bytes)

    def close(self) -> None:
        """End the connection. Idempotent."""
        super().close()
        self._shared.release()
        # As for the file: views that were lent out keep it until they are gone.
        for mapping in (self._mapping, self._private_copy):
            with contextlib.suppress(BufferError):
                mapping.close()

    def _publish(self, start: int, frame_bytes: int) -> None:
        super()._publish(start, frame_bytes)
        end = start + SLOT_HEAD_BYTES + frame_bytes
        self._shared[start:end] = self.memory[start:end]

    def _range(self, ahead: int) -> tuple[int, int]:
        start = self._incoming.slot_start(ahead)
        self.memory[start : start + 4] = self._shared[start : start + 4]
        found, length = super()._range(ahead)
        self.memory[found : found + length] = self._shared[found : found + length]
        return found, length


def _open_named(file_bytes: int) -> int:
    path = f"{_FOLDER}/sealift-{secrets.token_hex(16)}"
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.unlink(path)  # nothing is left behind by a process that was killed
        os.posix_fallocate(descriptor, 0, file_bytes)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        why = error.strerror or ""
        raise UnavailableError("cannot make shared memory", why=why) from error
    return descriptor
