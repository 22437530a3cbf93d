"""Frames stored in a file and read from it, now or later, here or on another machine.

One file per direction: length u32 and frame, one after the other, and a last length of
2^32 - 1 when the writer closed. Frames are read with ``pread`` into private memory, so a
writer of the file cannot change them while they are opened (rule H3). A spool has no
peer that could answer: it is for streams that are stored, and for tests.
"""

from __future__ import annotations

import os
import threading
import time
from io import FileIO
from pathlib import Path
from typing import Final

from sealift.channel.outputfile import write_failed
from sealift.channel.transports.transport import (
    DEFAULT_MAX_FRAME_BYTES,
    CopyingSlots,
    Deadline,
    check_announced_bytes,
    check_frame_bytes,
    peer_closed,
    peer_timeout,
)
from sealift.errors import UnavailableError
from sealift.ids import Buffer

_LENGTH_BYTES: Final = 4
_END: Final = 2**32 - 1
_POLL_S: Final = 0.01


class SpoolTransport(CopyingSlots):
    """One end: appends to one file, reads the other.

    Args:
        outgoing: File to append frames to; made if it is not there.
        incoming: File to read frames from; made if it is not there.
        max_frame_bytes: Longest frame written or accepted.

    Raises:
        UnavailableError: if a file cannot be opened.
    """

    def __init__(
        self,
        outgoing: Path,
        incoming: Path,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._outgoing_path = outgoing
        self._write_to = _open(outgoing, "ab")
        try:
            self._read_from = _open(incoming, "rb", os.O_CREAT)
        except BaseException:
            self._write_to.close()
            raise
        self._offset = 0
        self._lock = threading.Lock()
        self._closed = False

    def send(self, frame: Buffer) -> None:
        """Append one frame."""
        view = memoryview(frame).cast("B")
        check_frame_bytes(len(view), self.max_frame_bytes)
        self._append(len(view).to_bytes(_LENGTH_BYTES, "big"), view)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next frame, as soon as the file holds all of it."""
        deadline = Deadline(timeout_s)
        while (frame := self._stored()) is None:
            left_s = deadline.remaining_s()
            if left_s is not None and left_s <= 0:
                raise peer_timeout()
            time.sleep(_POLL_S if left_s is None else min(_POLL_S, left_s))
        return frame

    def close(self) -> None:
        """Mark the end of what was written. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                _write_all(
                    self._write_to.fileno(), [_END.to_bytes(_LENGTH_BYTES, "big")]
                )
            except OSError as error:
                raise write_failed(self._outgoing_path, error) from error
            finally:
                self._write_to.close()
                self._read_from.close()

    def _append(self, *parts: Buffer) -> None:
        with self._lock:
            if self._closed:
                raise peer_closed()
            try:
                _write_all(self._write_to.fileno(), parts)
            except OSError as error:
                raise write_failed(self._outgoing_path, error) from error

    def _stored(self) -> bytes | None:
        with self._lock:
            if self._closed:
                raise peer_closed()
            source = self._read_from.fileno()
            head = os.pread(source, _LENGTH_BYTES, self._offset)
            if len(head) < _LENGTH_BYTES:
                return None
            length = int.from_bytes(head, "big")
            if length == _END:
                raise peer_closed("the spool ends here")
            check_announced_bytes(length, self.max_frame_bytes)
            frame = os.pread(source, length, self._offset + _LENGTH_BYTES)
            if len(frame) < length:
                return None
            self._offset += _LENGTH_BYTES + length
            return frame


def _open(path: Path, mode: str, flags: int = 0) -> FileIO:
    try:
        return FileIO(
            path, mode, opener=lambda name, asked: os.open(name, asked | flags, 0o600)
        )
    except OSError as error:
        raise UnavailableError(
            f"cannot open {path}",
            why=error.strerror or type(error).__name__,
            fix="Check the folder and its permissions",
        ) from error


def _write_all(descriptor: int, parts: tuple[Buffer, ...] | list[bytes]) -> None:
    for part in parts:
        view = memoryview(part)
        while len(view) > 0:
            view = view[os.write(descriptor, view) :]
