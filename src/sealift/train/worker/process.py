"""A worker from start to end, seen from its parent, and what it lets out on the way.

It is forked by the zygote, and gone at the end. What its recipe prints is passed on, so
much of it and one safe line each, where the agreement lets it out. Each module of the
bundle that runs is measured first, once: the worker only says which path it is about to
run, and the digest is of the parent's own bytes, those that the agreement names. So a
recipe that has taken its process over can leave a module out of the log, but not bring
one in that the parties did not sign.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import FileIO
from typing import Final, TextIO

from sealift.attest.evidence import Measure
from sealift.attest.runtimelog import module_event
from sealift.errors import MalformedError
from sealift.ids import Digest
from sealift.train.worker.messages import (
    KillWorker,
    StartWorker,
    WorkerEnded,
    from_bytes,
    send_with,
    to_bytes,
)

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


TEXT_BYTES: Final = 64 << 10


class TextTap:
    """A pipe whose reader passes on what a worker prints.

    Args:
        stream: Where to; None to let nothing out.
        most: Bytes of one task that are passed on.
    """

    def __init__(self, stream: TextIO | None, *, most: int = TEXT_BYTES) -> None:
        self._stream = stream
        self._most = most
        self._reader: threading.Thread | None = None
        if stream is None:
            self._sink = FileIO(os.devnull, "w")
            return
        source, sink = os.pipe2(os.O_CLOEXEC)
        self._sink = FileIO(sink, "w")
        self._reader = threading.Thread(target=self._pass_on, args=(FileIO(source),))
        self._reader.start()

    @property
    def descriptor(self) -> int:
        """What the worker writes to, until ``close``."""
        return self._sink.fileno()

    def close(self) -> None:
        """Once the worker is gone: wait until all was passed on. Idempotent."""
        self._sink.close()
        if self._reader is not None:
            self._reader.join()

    def _pass_on(self, pipe: FileIO) -> None:
        left = self._most
        with pipe:
            while piece := pipe.read(4096):
                self._show(piece[:left])
                left = max(0, left - len(piece))

    def _show(self, piece: bytes) -> None:
        text = piece.decode("utf-8", "replace")
        shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        if shown and self._stream is not None:
            self._stream.write(shown)
            self._stream.flush()


class ModuleLog:
    """The modules that ran so far.

    Args:
        files: The bundle, measured against the agreement.
        measure: Gets the event of each module before it runs.
    """

    def __init__(self, files: Mapping[str, bytes], measure: Measure) -> None:
        self._files = files
        self._measure = measure
        self._noted: set[str] = set()
        self._lock = threading.Lock()

    def note(self, path: str) -> None:
        """Measure a module, unless it was.

        Raises:
            MalformedError: if the bundle has no such module.
        """
        if path not in self._files or not path.endswith(".py"):
            raise MalformedError("no module of the bundle", code="bad-message")
        with self._lock:
            if path not in self._noted:
                self._measure(module_event(path, Digest.of(self._files[path])))
                self._noted.add(path)
