"""What a recipe prints, where the agreement lets it out: so much, and one safe line each."""

from __future__ import annotations

import os
import threading
from io import FileIO
from typing import Final, TextIO

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
