"""The device's end of a link: opens each transfer into the device's memory.

Strict by default: nobody is shown a record before its tag verified, and nothing is said
to the sender before all did. When one fails, the memory is overwritten whole and the link
is dead; whatever else goes wrong before a verdict is reported as a failed one (rule M3).
Whoever works on records earlier holds them behind a gate (``verdict.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from sealift.channel.device.device import DeviceEngine, DeviceMemory
from sealift.channel.device.host import HostDevice
from sealift.channel.link.announcement import (
    DEFAULT_MODE,
    LinkKeys,
    LinkMode,
    TransferAnnouncement,
    TransferKind,
    encode_hello,
    link_context,
    parse_hello,
)
from sealift.channel.link.openers import HomeOpener, LinkOpener
from sealift.channel.link.opening import Arriving, OnHost, Opening, Staged
from sealift.channel.link.send import DEFAULT_TIMEOUT_S, VERDICT, VERDICT_MAGIC
from sealift.channel.record.record import Life, forked_stream
from sealift.channel.record.sealer import StreamSealer
from sealift.channel.transport.memfd import MemfdTransport
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, MalformedError, RefusedError, UsageError

Sink = Callable[[int, int], None]
HomeKey = Callable[[bytes], SecretKey]


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
        context = link_context(mode, context)
        with ExitStack() as parts:  # each is closed, also where another one fails
            parts.callback(transport.close)
            self._answers = StreamSealer(
                keys.from_device, total_bytes=None, record_bytes=64, context=context
            )
            parts.callback(self._answers.close)
            # Before the other end's is looked at, so that both can tell versions apart.
            transport.send(encode_hello(self._answers.header_bytes))
            header = parse_hello(transport.receive(timeout_s))
            self._opener = LinkOpener(keys.to_device, header, engine, context=context)
            parts.callback(self._opener.close)
            self._opening: Opening = (
                OnHost(transport, engine)
                if isinstance(engine, HostDevice)
                else Staged(transport, engine)
            )
            parts.callback(self._opening.close)
            parts.callback(self._close_home)
            self._parts = parts.pop_all()

    def receive(
        self, into: DeviceMemory, offset: int = 0, *, sink: Sink | None = None
    ) -> TransferAnnouncement:
        """Receive the next transfer into device memory; what was announced is there then.

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
                        f"a transfer of {announcement.total_bytes:,} bytes does "
                        f"not fit into {room:,} bytes",
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
        return announcement

    def close(self) -> None:
        """Forget the keys, end the connection. Idempotent."""
        self._life.dead = True
        self._parts.close()

    def _close_home(self) -> None:
        if self._home is not None:
            self._home.close()

    def _next(self) -> TransferAnnouncement:
        frame = self._transport.receive(self._timeout_s)
        announcement = TransferAnnouncement.parse(self._opener.open_message(frame))
        if announcement.number != self._number:
            raise MalformedError(
                "the transfers came out of order", code="bad-announcement"
            )
        self._number += 1
        return announcement

    def _open_all(self, arriving: Arriving) -> None:
        live = arriving.announcement.kind is TransferKind.LIVE
        opener = self._opener if live else self._open_home(arriving.announcement)
        self._opening.open_all(opener, arriving, self._timeout_s)

    def _open_home(self, announcement: TransferAnnouncement) -> HomeOpener:
        if self._home_key is None:
            raise UsageError(
                "records came that were sealed before the link existed, and "
                "this device has no key for them",
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

    def _answer(self, announcement: TransferAnnouncement) -> None:
        answer = VERDICT.pack(VERDICT_MAGIC, announcement.number)
        self._transport.send(self._answers.seal_frame(answer))


def _reported(error: BaseException) -> BaseException:
    """What a caller is told: of bytes that are not exactly right, nothing but that.

    A sender that is gone, a device that failed and a caller's mistake are themselves.
    """
    wrong = isinstance(error, MalformedError | RefusedError)
    return AuthenticationError() if wrong else error
