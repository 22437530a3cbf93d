"""One thread that waits for what all clients send.

With a thread for each of 500 clients, most of a server's time goes into waking them. Here
one thread is told by the system who has sent something, and has it read, as far as that
needs no waiting. Whatever has to be waited for, the rest of a long question or a new
handshake, is for the client's own thread: nobody keeps this one.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress

Read = Callable[[], bool]


class SocketWatcher:
    """Calls whoever watches a descriptor once there is something to read.

    The thread starts with the first one that watches, and ends with ``close``.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._watched: dict[int, Read] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, descriptor: int, read: Read) -> bool:
        """Call ``read`` whenever there is something, until ``forget``.

        Args:
            descriptor: Of a socket.
            read: Never waits and never raises; True if there may be more at once.

        Returns:
            False if nobody will be called: the socket was closed meanwhile, or this was.
        """
        with self._lock:
            if self._closed:
                return False
            try:
                self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)
            except (OSError, ValueError):
                return False
            self._watched[descriptor] = read
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="arrivals", daemon=True
                )
                self._thread.start()
        return True

    def forget(self, descriptor: int, read: Read) -> None:
        """Not any more; nothing if another one watches that descriptor by now."""
        with self._lock:
            if self._watched.get(descriptor) == read:
                del self._watched[descriptor]
                with suppress(OSError, ValueError):  # closed already
                    self._epoll.unregister(descriptor)

    def close(self) -> None:
        """End the thread; nobody is called any more."""
        with self._lock:
            self._closed = True
            self._watched.clear()
            thread = self._thread
        os.eventfd_write(self._bell, 1)
        if thread is not None:
            thread.join()
        self._epoll.close()
        os.close(self._bell)

    def _run(self) -> None:
        again: set[int] = set()
        while not self._closed:
            found = self._epoll.poll(0 if again else None)
            ready = again | {descriptor for descriptor, _ in found}
            again = {each for each in ready if self._read(each)}

    def _read(self, descriptor: int) -> bool:
        with self._lock:
            read = self._watched.get(descriptor)
        return read is not None and read()
