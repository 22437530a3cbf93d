"""What a task brings, mapped for a worker that stands by, which has run its recipe already.

Rows come as descriptors, and a descriptor is more than bytes: offset and flags belong to an
open file that several slices' processes are given, and the kernel tells what it keeps of the
file (rule N6). A worker that is forked for a task maps and closes them before it loads the
recipe. One that stood by has loaded it; so a thread of ours receives them. It has left the
process's table of descriptors, so no other thread can reach what it gets, and its filter has
nothing but what receives, maps and closes (``inventory.RECEIVING``).
"""

from __future__ import annotations

import os
import socket
import threading

from sealift.errors import PeerError
from sealift.train.sandbox import seccomp
from sealift.train.sandbox.kernel import leave_descriptors
from sealift.train.sandboxed.parentpipe import map_area, map_copy
from sealift.train.worker.messages import worker_gone
from sealift.train.worker.process import FILE_STRETCH, receive_with


def close_others(kept: int) -> None:
    """Close every descriptor in the calling thread's table but one."""
    os.closerange(0, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


class TaskReceiver:
    """The thread, from the start of its worker to the task.

    Args:
        window: Number of the descriptor that it receives through.
        filtered: Whether there is a filter of system calls here.
    """

    def __init__(self, window: int, *, filtered: bool) -> None:
        self._window = window
        self._filtered = filtered
        self._apart, self._over = threading.Event(), threading.Event()
        self._failed: BaseException | None = None
        self._found: list[memoryview] = []

    def begin(self) -> None:
        """Start it, once everything but the filter holds, and close the window to all others.

        Raises:
            OSError: if it cannot be apart.
        """
        threading.Thread(target=self._run, daemon=True).start()
        self._apart.wait()
        self._close_window()
        if self._failed is not None:
            raise self._failed

    def take(self) -> list[memoryview]:
        """What came, in its order: the area to share, the others to read and change here.

        Raises:
            PeerError: code ``worker-gone``: nothing came.
        """
        self._over.wait()
        if not self._found:
            raise worker_gone()
        return self._found

    def _close_window(self) -> None:
        os.close(self._window)

    def _run(self) -> None:
        try:
            self._leave()
        except BaseException as error:
            self._failed = error
            return
        finally:
            self._apart.set()
        try:
            self._found = self._receive()
        except (OSError, PeerError):  # ``take`` says it
            self._found = []
        finally:
            self._over.set()

    def _leave(self) -> None:
        leave_descriptors()
        self._socket = socket.socket(fileno=self._window)
        close_others(self._window)
        if self._filtered:
            seccomp.install_to_receive()

    def _receive(self) -> list[memoryview]:
        raw, files = receive_with(self._socket)
        stretches = list(FILE_STRETCH.iter_unpack(raw))
        kinds = (map_area, *[map_copy] * len(files))
        found = [
            each(file, length, start)
            for each, file, (start, length) in zip(
                kinds, files, stretches, strict=False
            )
        ]
        for each in (*files, self._socket.detach()):
            os.close(each)
        return found
