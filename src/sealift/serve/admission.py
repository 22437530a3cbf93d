"""The server's one port: clients come in here, and brokers, who get a relay behind it.

The first frame says who comes: a handshake is a client's, an envelope is for the relay.
Until a session stands, frames are short, and those who came from one address are few.

One thread waits for what all clients send: with a thread for each of 500 clients, most of a
server's time goes into waking them. It has read what needs no waiting. The rest of a long
question or a new handshake is for the client's own thread: nobody keeps this one.
"""

from __future__ import annotations

import os
import resource
import select
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.errors import PeerError, SealiftError, UnavailableError, catalogue
from sealift.events import Sink, discard, emit
from sealift.ids import Buffer
from sealift.serve.scheduler import ServerMetrics
from sealift.session.frames import MAX_MESSAGE_BYTES, pack_abort
from sealift.session.relay.envelope import VERSION as ENVELOPE_VERSION
from sealift.session.relay.envelope import EnvelopeKind
from sealift.session.relay.server import Relay
from sealift.session.transcript import MAX_HELLO_BYTES
from sealift.train.job.settings import ServingTable

FIRST_FRAME_S: Final = 5.0
SHORT_FRAME_BYTES: Final = MAX_HELLO_BYTES + 64
LONG_FRAME_BYTES: Final = 8 << 20  # that we send: evidence
SESSION_FRAME_BYTES: Final = MAX_MESSAGE_BYTES + 4096
SEND_S: Final = 20.0  # a client that takes nothing for so long is gone
ACCEPT_PAUSE_S: Final = 0.05
OWN_FILES: Final = (
    256  # beside one for each client: brokers, the worker, the model, logs
)
_REGISTER: Final = bytes([ENVELOPE_VERSION, EnvelopeKind.REGISTER])


def demand_descriptors(settings: ServingTable) -> None:
    """Let this process have as many open files as its clients will need.

    Raises:
        UnavailableError: code ``too-few-files``, if the system allows fewer.
    """
    needed = settings.max_sessions + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UnavailableError(
            f"the server cannot keep {settings.max_sessions:,} clients",
            why=f"this process may open {hard:,} files; it needs {needed:,}",
            fix=f"Set max_sessions to {max(1, hard - OWN_FILES):,} or less in the job's "
            "[serving], or raise the limit (ulimit -n)",
            code="too-few-files",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class FirstFrame:
    """A transport whose first frame was looked at already; takes short frames at first."""

    def __init__(self, transport: TcpTransport, frame: bytes) -> None:
        self.max_frame_bytes = LONG_FRAME_BYTES
        self._transport = transport
        self._frame: bytes | None = frame

    def send(self, frame: Buffer) -> None:
        """Send one frame."""
        self._transport.send(frame)

    @property
    def descriptor(self) -> int | None:
        """Of the socket."""
        return self._transport.descriptor

    @property
    def has_ahead(self) -> bool:
        """Whether bytes were received behind the last frame."""
        return self._transport.has_ahead

    def has_room(self, frame_bytes: int) -> bool:
        """Whether the system takes all of a frame at once."""
        return self._transport.has_room(frame_bytes)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next frame."""
        frame, self._frame = self._frame, None
        return frame if frame is not None else self._transport.receive(timeout_s)

    def lengthen(self) -> None:
        """A session stands: take frames as long as its messages."""
        self._transport.max_received_bytes = SESSION_FRAME_BYTES

    def close(self) -> None:
        """End the connection."""
        self._transport.close()


class Admission:
    """Lets in who comes, a thread each, until closed.

    Args:
        listener: Listens.
        relay: For brokers.
        serve: Handshake and all that follows, with a client.
        settings: How many may be here, half-open connections included, and of one address.
        metrics: Counts.
        sink: Gets ``client.refused``.
    """

    def __init__(
        self,
        listener: TcpListener,
        relay: Relay,
        serve: Callable[[FirstFrame, str], None],
        *,
        settings: ServingTable,
        metrics: ServerMetrics,
        sink: Sink = discard,
    ) -> None:
        self._listener = listener
        self._relay = relay
        self._serve = serve
        self._settings = settings
        self._metrics = metrics
        self._sink = sink
        self._here: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._open = False
        catalogue()  # read once, before many clients that leave at once all need it
        self._thread = threading.Thread(
            target=self._accept, name="admission", daemon=True
        )
        self._thread.start()

    @property
    def sessions(self) -> int:
        """Connections of clients now."""
        with self._lock:
            return self._here.total()

    def open(self) -> None:
        """Let clients in: the model is there."""
        self._open = True

    def close(self) -> None:
        """Let nobody in any more."""
        self._closing.set()
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock = self._listener.accept_socket(None)
            except PeerError:
                self._closing.wait(ACCEPT_PAUSE_S)
                continue
            transport = TcpTransport(
                sock, max_frame_bytes=LONG_FRAME_BYTES, send_timeout_s=SEND_S
            )
            transport.max_received_bytes = SHORT_FRAME_BYTES
            address = transport.peer_host
            if not self._take_place(address):  # before it costs a thread
                full = PeerError(
                    "the server has its maximum number of clients",
                    code="too-many-clients",
                )
                _turn_away(transport, full)
                continue
            try:
                threading.Thread(
                    target=self._meet,
                    args=(transport, address),
                    name="client",
                    daemon=True,
                ).start()
            except RuntimeError:  # no threads are left, for now
                transport.close()
                self._give_back(address)
                self._closing.wait(ACCEPT_PAUSE_S)

    def _meet(self, transport: TcpTransport, address: str) -> None:
        try:
            frame = transport.receive(FIRST_FRAME_S)
            if frame[:2] == _REGISTER:
                self._relay.attach(*transport.detach(frame))
            elif self._open:
                self._serve(FirstFrame(transport, frame), address)
            else:
                loading = PeerError(
                    "the model is not loaded yet", code="server-loading"
                )
                _turn_away(transport, loading)
        except SealiftError as error:
            self._metrics.refused(error.code)
            emit(self._sink, "client.refused", rule=error.code)
        finally:
            transport.close()  # nothing, if it is the relay's by now
            self._give_back(address)

    def _take_place(self, address: str) -> bool:
        with self._lock:
            full = self._here.total() >= self._settings.max_sessions
            if full or self._here[address] >= self._settings.max_sessions_each:
                self._metrics.refused("too-many-clients")
                return False
            self._here[address] += 1
            return True

    def _give_back(self, address: str) -> None:
        with self._lock:
            self._here[address] -= 1
            if not self._here[address]:
                del self._here[address]


def _turn_away(transport: TcpTransport, error: SealiftError) -> None:
    """Say the refusal's name, if the other end still listens."""
    with suppress(PeerError):
        transport.send(pack_abort(error))
    transport.close()


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
