"""A guest's agent, offered to one process of this machine at a time, over a socket.

Only an agent's requests pass: whoever connects can neither switch the guest off nor have
it misbehave. The socket lies in a folder that its owner alone can enter.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Final

from sealift.attest.tpm.agent import (
    AGENT,
    MAX_REQUEST_BYTES,
    SCHEME,
    Reply,
    encode_reply,
    error_reply,
    read_frame,
)
from sealift.errors import PeerError, SealiftError
from sealift.lab.guest.machine import Guest

_END_S: Final = 2.0


class AgentPort:
    """Serves until ``close``; use as a context manager.

    Args:
        guest: Whose agent it is.
    """

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._folder = Path(tempfile.mkdtemp(prefix="agent-"))  # for us alone: 0700
        self._line: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / "agent"))
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> AgentPort:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """What ``sealift accelerator --agent`` is told."""
        return f"{SCHEME}{self._folder / 'agent'}"

    def close(self) -> None:
        """Hang up and take no more calls."""
        for line in (self._listener, self._line):
            if line is not None:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
        self._thread.join(_END_S)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._line, _ = self._listener.accept()
                with self._line, contextlib.suppress(OSError, SealiftError):
                    self._converse(self._line)

    def _converse(self, line: socket.socket) -> None:
        while True:
            request = AGENT.decode(read_frame(line.recv, MAX_REQUEST_BYTES))
            try:
                reply = Reply(self._guest.ask(request))
            except PeerError:
                return  # the guest is gone, and so is its agent
            except SealiftError as error:
                reply = error_reply(error)
            line.sendall(encode_reply(reply))
