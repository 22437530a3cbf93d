"""What a recipe prints, where the agreement lets it out: so much, and one safe line each."""

from __future__ import annotations

import os
import threading
from typing import Final, TextIO

TEXT_BYTES: Final = 64 << 10


class TextTap:
    """A pipe whose reader passes on what a worker prints.

    Args:
        stream: Where to; None to let nothing out.
        most: Bytes of one task that are passed on.

    Attributes:
        descriptor: What the worker writes to.
    """

    def __init__(self, stream: TextIO | None, *, most: int = TEXT_BYTES) -> None:
        self._stream = stream
        self._most = most
        self._reader: threading.Thread | None = None
        if stream is None:
            self.descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            return
        source, self.descriptor = os.pipe2(os.O_CLOEXEC)
        self._reader = threading.Thread(target=self._pass_on, args=(source,))
        self._reader.start()

    def close(self) -> None:
        """Once the worker is gone: wait until all was passed on."""
        os.close(self.descriptor)
        if self._reader is not None:
            self._reader.join()

    def _pass_on(self, source: int) -> None:
        left = self._most
        with open(source, "rb", buffering=0) as pipe:
            while piece := pipe.read(4096):
                self._show(piece[:left])
                left = max(0, left - len(piece))

    def _show(self, piece: bytes) -> None:
        text = piece.decode("utf-8", "replace")
        shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        if shown and self._stream is not None:
            self._stream.write(shown)
            self._stream.flush()
