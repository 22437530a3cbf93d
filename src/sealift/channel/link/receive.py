"""The device's end of a link: opens each transfer into the device's memory.

Strict by default: nobody is shown a record before its tag verified, and nothing is said
to the sender before all did. When one fails, the memory is overwritten whole and the link
is dead; whatever else goes wrong before a verdict is reported as a failed one (rule M3).
Whoever works on records earlier holds them behind a gate (``verdict.py``).

How a device opens the units of a transfer: where they lie, or after copying them over.

On the host's stand-in a unit that the sender sealed is opened where it lies in the memory
that the two ends share; one that its owner sealed at home is copied first, since whoever
forwards it could change it meanwhile (rule H3). Other engines have memory of their own:
units are copied over and opened there, as many at once as have come (``staged.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from sealift.channel.device.device import DeviceEngine, DeviceMemory
from sealift.channel.device.host import HostDevice
from sealift.channel.link.announcement import (
    DEFAULT_MODE,
    Announcement,
    Arriving,
    LinkMode,
    TransferKind,
    encode_hello,
    link_context,
    parse_hello,
)
from sealift.channel.link.crossing import HomeOpener, ends_of
from sealift.channel.link.keys import LinkKeys, LinkOpener
from sealift.channel.link.send import DEFAULT_TIMEOUT_S, VERDICT, VERDICT_MAGIC
from sealift.channel.link.staged import AnyOpener, Staged
from sealift.channel.record.layout import PREFIX_BYTES
from sealift.channel.record.record import Life, forked_stream
from sealift.channel.record.sealer import StreamSealer
from sealift.channel.transport.memfd import MemfdTransport
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, MalformedError, RefusedError, UsageError


class Opening(Protocol):
    """One of the ways below."""

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Open every unit of a transfer."""

    def close(self) -> None:
        """Give memory back."""


def _opening_for(transport: MemfdTransport, engine: DeviceEngine) -> Opening:
    """The way for an engine, for units that the sender itself sealed."""
    if not isinstance(engine, HostDevice):
        return Staged(transport, engine)
    return InPlace(transport, engine)


def forwarded_opening(
    transport: MemfdTransport, engine: DeviceEngine, own: Opening
) -> Opening:
    """The way for units that somebody else sealed; ``own`` is that for the sender's."""
    if isinstance(own, Staged):
        return own
    assert isinstance(engine, HostDevice)  # or ``own`` would be staged
    return CopiedFirst(transport, engine)


class InPlace:
    """Opened where it lies in the memory that the sender alone shares (rule H3)."""

    def __init__(self, transport: MemfdTransport, engine: HostDevice) -> None:
        self._transport = transport
        self._engine = engine
        self._shared = engine.adopt(transport.memory)

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Open each unit while the next one comes."""
        assert not isinstance(opener, HomeOpener)
        transport, engine, shared = self._transport, self._engine, self._shared
        memory, into, sink = transport.memory, arriving.into, arriving.sink
        for start, length in arriving.units():
            at, frame_bytes = transport.next_range(timeout_s)
            frame = memory[at : at + frame_bytes]
            key, place = opener.expect(frame, at + PREFIX_BYTES, start, length)
            engine.open(key, shared, into, (place,)).wait()
            transport.skip(1)
            if sink is not None:
                sink(start, length)

    def close(self) -> None:
        """The memory is the transport's."""


class CopiedFirst:
    """Copied to private memory and opened there: the sender is not who sealed them."""

    def __init__(self, transport: MemfdTransport, engine: HostDevice) -> None:
        self._transport = transport
        self._engine = engine
        self._private = engine.allocate(transport.max_frame_bytes)

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Copy, check and open every unit; its slot is free as soon as it was copied."""
        assert isinstance(opener, HomeOpener)
        transport, engine, private = self._transport, self._engine, self._private
        for start, length in arriving.units():
            at, frame_bytes = transport.next_range(timeout_s)
            engine.upload(transport.memory[at : at + frame_bytes], private).wait()
            transport.skip(1)
            ends = ends_of(private.view[:frame_bytes], length)
            key, place = opener.admit(ends, PREFIX_BYTES, start, length)
            engine.open(key, private, arriving.into, (place,)).wait()
            arriving.verified(start, length)

    def close(self) -> None:
        """Scrub the private memory and give it back."""
        self._private.close()


Sink = Callable[[int, int], None]
HomeKey = Callable[[bytes], SecretKey]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A transfer that verified."""

    number: int
    total_bytes: int


class LinkReceiver:
    """Receives transfers on a device, in one mode.

    Args:
        transport: The memory file; owned from now on.
        keys: Base keys of both directions.
        engine: The device; not owned.
        mode: As the sender was told.
        home_key: Finds the owner's key for the header of a stream sealed at home.
        context: As the sender was told.
        timeout_s: How long the sender may take for one step.

    Raises:
        PolicyError: code ``link-version``, if the sender's is another one.
    """

    def __init__(
        self,
        transport: MemfdTransport,
        keys: LinkKeys,
        engine: DeviceEngine,
        *,
        mode: LinkMode = DEFAULT_MODE,
        home_key: HomeKey | None = None,
        context: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._transport = transport
        self._engine = engine
        self._home_key = home_key
        self._timeout_s = timeout_s
        self._life = Life()
        self._number = 0
        self._home: HomeOpener | None = None
        self._forwarded: Opening | None = None
        context = link_context(mode, context)
        with ExitStack() as parts:  # each is closed, also where another one fails
            parts.callback(transport.close)
            self._answers = StreamSealer(
                keys.from_device, total_bytes=None, record_bytes=64, context=context
            )
            parts.callback(self._answers.close)
            # Before the other end's is looked at, so that both can tell versions apart.
            transport.send(encode_hello(self._answers.header_bytes))
            self._opener = self._take_header(keys, context)
            parts.callback(self._opener.close)
            self._opening = _opening_for(transport, engine)
            parts.callback(self._opening.close)
            parts.callback(self._close_home)
            self._parts = parts.pop_all()

    def receive(
        self, into: DeviceMemory, offset: int = 0, *, sink: Sink | None = None
    ) -> Arrival:
        """Receive the next transfer into device memory.

        Args:
            into: Where to; overwritten whole if anything fails.
            offset: Where in it.
            sink: Told start and length of every range that verified, in order.

        Raises:
            AuthenticationError: if a record is not exactly the next one.
            PeerError: if the sender is gone.
            UsageError: code ``transfer-too-long``, if it does not fit; code
                ``forked-stream``, in a forked child, which would take it from its
                parent.
        """
        if self._transport.forked:
            raise forked_stream()
        try:
            with self._life:
                announcement = self._next()
                room = into.nbytes - offset
                if announcement.total_bytes > room:
                    raise UsageError(
                        f"a transfer of {announcement.total_bytes} bytes does not "
                        f"fit the {room} bytes for it",
                        code="transfer-too-long",
                    )
                self._open_all(Arriving(announcement, into, offset, sink))
                self._answer(announcement)
        except BaseException as error:
            try:
                into.scrub()
            finally:
                self.close()
            reported = _reported(error)
            if reported is error:
                raise
            raise reported from None
        return Arrival(announcement.number, announcement.total_bytes)

    def close(self) -> None:
        """Forget the keys, end the connection. Idempotent."""
        self._life.dead = True
        self._parts.close()

    def _close_home(self) -> None:
        try:
            if self._forwarded is not None:
                self._forwarded.close()
        finally:
            if self._home is not None:
                self._home.close()

    def _take_header(self, keys: LinkKeys, context: bytes) -> LinkOpener:
        header = parse_hello(self._transport.receive(self._timeout_s))
        return LinkOpener(keys.to_device, header, self._engine, context=context)

    def _next(self) -> Announcement:
        frame = self._transport.receive(self._timeout_s)
        announcement = Announcement.parse(self._opener.open_message(frame))
        if announcement.number != self._number:
            raise MalformedError("transfers are out of order", code="bad-announcement")
        self._number += 1
        return announcement

    def _open_all(self, arriving: Arriving) -> None:
        if arriving.announcement.kind is TransferKind.LIVE:
            self._opening.open_all(self._opener, arriving, self._timeout_s)
            return
        home = self._open_home(arriving.announcement)
        if self._forwarded is None:
            own = self._opening
            self._forwarded = forwarded_opening(self._transport, self._engine, own)
        self._forwarded.open_all(home, arriving, self._timeout_s)

    def _open_home(self, announcement: Announcement) -> HomeOpener:
        if self._home_key is None:
            raise UsageError(
                "records sealed at home came, and nobody here has their key",
                code="no-home-key",
            )
        home = self._home
        # Deriving keys takes as long as opening a record, and a stream comes in parts.
        if home is not None and home.header_bytes == announcement.header_bytes:
            home.begin(announcement)
            return home
        if home is not None:
            home.close()
            self._home = None
        key = self._home_key(announcement.header_bytes)
        self._home = HomeOpener(key, announcement, self._engine, self._opener)
        return self._home

    def _answer(self, announcement: Announcement) -> None:
        answer = VERDICT.pack(VERDICT_MAGIC, announcement.number)
        self._transport.send(self._answers.seal_frame(answer))


def _reported(error: BaseException) -> BaseException:
    """What a caller is told: of bytes that are not exactly right, nothing but that.

    A sender that is gone, a device that failed and a caller's mistake are themselves.
    """
    wrong = isinstance(error, MalformedError | RefusedError)
    return AuthenticationError() if wrong else error
