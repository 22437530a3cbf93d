"""Two ends of a pipe over every carrier, and a line that somebody else sits on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sealift.channel.transport.tcp import TcpListener, TcpTransport
from sealift.channel.transport.transport import CopyingSlots, SlotTransport
from sealift.ids import Buffer
from sealift.session.pipe import Pipe
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from sealift.session.session import Session
from tests.sim.attested import Cast, both
from tests.sim.memfdpair import memfd_pair
from tests.worlds.memorytransport import memory_pair

CAST = Cast()
KINDS = ("memfd", "tcp", "relay")
RECORD_BYTES = 256  # of the pipes over lines
FRAME_BYTES = RECORD_BYTES + 32
Carriers = tuple[SlotTransport, SlotTransport]
Pipes = tuple[Pipe, Pipe]
OPEN: list[Pipe | SlotTransport] = []
Change = Callable[[int, bytes], Iterable[bytes]]


def tcp_pair() -> tuple[TcpTransport, TcpTransport]:
    """Two connected ends."""
    listener = TcpListener()
    here = TcpTransport.dial(*listener.address)
    there = listener.accept(60)
    listener.close()
    return here, there


@contextmanager
def carriers(kind: str) -> Iterator[Carriers]:
    """Both ends of a real carrier."""
    if kind == "relay":
        with (
            Relay.listen() as relay,
            RelayClient.dial(relay.address, "here") as here,
            RelayClient.dial(relay.address, "there") as there,
        ):
            yield here.open("there"), there.accept(60)
    else:
        yield memfd_pair() if kind == "memfd" else tcp_pair()


def pipes(
    over: Carriers,
    sessions: tuple[Session, Session] | None = None,
    contexts: tuple[bytes, bytes] = (b"test", b"test"),
    timeout_s: float = 30.0,
) -> Pipes:
    """Both ends, made at the same time: the initiator's, the responder's."""
    here, there = sessions or CAST.sessions()
    OPEN.extend(over)
    made = both(
        lambda: Pipe(here, over[0], contexts[0], timeout_s=timeout_s),
        lambda: Pipe(there, over[1], contexts[1], timeout_s=timeout_s),
    )
    OPEN.extend(made)
    return made


def hang_up() -> None:
    """End every pipe that was made."""
    while OPEN:
        each = OPEN.pop()
        (each.abort if isinstance(each, Pipe) else each.close)()


class Tapped(CopyingSlots):
    """An end whose sent frames somebody sees, and may replace.

    Attributes:
        seen: What was sent; the first is the hello.
    """

    def __init__(self, inner: SlotTransport, change: Change | None = None) -> None:
        self.max_frame_bytes = inner.max_frame_bytes
        self.inner = inner
        self.seen: list[bytes] = []
        self.change: Change = change or (lambda number, frame: [frame])

    def send(self, frame: Buffer) -> None:
        """Send what is made of it."""
        self.seen.append(bytes(frame))
        for each in self.change(len(self.seen) - 1, bytes(frame)):
            self.inner.send(each)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next frame."""
        return self.inner.receive(timeout_s)

    def close(self) -> None:
        """Hang up."""
        self.inner.close()


def line(change: Change | None = None) -> tuple[Tapped, SlotTransport]:
    """A line in memory; what the first end sends passes ``change``."""
    here, there = memory_pair(max_frame_bytes=FRAME_BYTES)
    return Tapped(here, change), there


def tapped_pipes(change: Change | None = None) -> tuple[Pipes, Tapped]:
    """Pipes over a line, and its tap."""
    tap, there = line(change)
    return pipes((tap, there), timeout_s=1.0), tap
