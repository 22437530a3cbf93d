"""The weaker ways of a link, to be measured beside the product's own.

Each differs from the one before in one step, so that a measurement of all of them says
what each step saves. They cross the same ring, with the same announcement and verdict, by
the product's sender and receiver; here is only what differs. In the first three somebody
besides owner and device reads what crosses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sealift.channel.device import DeviceEngine
from sealift.channel.frame import PREFIX_BYTES, FramePrefix
from sealift.channel.hostdevice import HostDevice
from sealift.channel.link.announcement import Announcement, TransferKind
from sealift.channel.link.arriving import Arriving, by_key
from sealift.channel.link.keys import (
    FRAME_EXTRA_BYTES,
    LinkKeys,
    LinkOpener,
    LinkSealer,
    wrong_length,
)
from sealift.channel.link.mode import LinkMode
from sealift.channel.link.receive import LinkReceiver
from sealift.channel.link.send import LinkSender
from sealift.channel.link.staged import AnyOpener
from sealift.channel.transports.memfd import MemfdTransport
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keys import SecretKey
from sealift.errors import UsageError
from sealift.ids import Buffer

MAX_ONE_TAG_BYTES: Final = 1 << 30  # the AEAD library takes less than 2 GiB a call


class Shape(StrEnum):
    """How a transfer is laid out, from weakest to strongest; the report's names."""

    PLAIN = "plain"
    REENCRYPT = "reencrypt"
    REENCRYPT_CHUNK = "reencrypt+chunk"
    DIRECT = "direct"
    DIRECT_PARALLEL = "direct+parallel-auth"


@dataclass(frozen=True, slots=True)
class Layout:
    """What a shape does, as independent answers.

    Attributes:
        sealed: Ciphertext crosses, not plaintext.
        reencrypts: A host between owner and device opens and seals again.
        records: Every record has its own tag; otherwise one tag covers all.
        parallel: Several records are verified at once.
    """

    sealed: bool = True
    reencrypts: bool = False
    records: bool = False
    parallel: bool = False


LAYOUTS: Final = {
    Shape.PLAIN: Layout(sealed=False, records=True),
    Shape.REENCRYPT: Layout(reencrypts=True),
    Shape.REENCRYPT_CHUNK: Layout(reencrypts=True, records=True),
    Shape.DIRECT: Layout(),
    Shape.DIRECT_PARALLEL: Layout(records=True, parallel=True),
}
ALL: Final = (*Shape, *LinkMode)


def has_records(name: str) -> bool:
    """Whether every record has a tag, or a copy, of its own."""
    return name not in tuple(Shape) or LAYOUTS[Shape(name)].records


def comes_whole(name: str) -> bool:
    """Whether all of a transfer lies in the link's memory before any of it is opened."""
    return name in tuple(Shape) and name != Shape.PLAIN


class PlainSealer(LinkSealer):
    """What stands in a sealer's place where nothing is sealed: a copy, and a prefix."""

    def __init__(self) -> None:
        """Nothing to derive."""

    def seal(self, plaintext: Buffer, frame: memoryview) -> None:
        """Copy."""
        frame[PREFIX_BYTES:-TAG_BYTES] = plaintext
        frame[:PREFIX_BYTES] = FramePrefix(
            len(frame) - PREFIX_BYTES, 0, final=False
        ).encode()

    def close(self) -> None:
        """Nothing to forget."""


class PlainOpener(LinkOpener):
    """What stands in an opener's place where nothing is sealed."""

    def __init__(self) -> None:
        """Nothing to derive."""

    def open_message(self, frame: Buffer) -> bytes:
        """The message, as it came."""
        return bytes(frame)[PREFIX_BYTES:-TAG_BYTES]

    def close(self) -> None:
        """Nothing to forget."""


class ShapedSender(LinkSender):
    """Sends transfers in one of the shapes.

    Args:
        transport: As of the product's sender; so are the others.
        shape: The device is told the same.
    """

    def __init__(
        self,
        transport: MemfdTransport,
        keys: LinkKeys,
        shape: Shape,
        *,
        record_bytes: int,
        timeout_s: float,
    ) -> None:
        super().__init__(
            transport,
            keys,
            record_bytes=record_bytes,
            context=shape.encode(),
            timeout_s=timeout_s,
        )
        self.layout = LAYOUTS[shape]
        if not self.layout.sealed:
            self.sealer.close()
            self.sealer = PlainSealer()

    def plan(self, total_bytes: int) -> Announcement:
        """One unit where one tag covers all.

        Raises:
            UsageError: if it is empty, or too long for one tag.
        """
        planned = super().plan(total_bytes)
        if self.layout.records:
            return planned
        if total_bytes > MAX_ONE_TAG_BYTES:
            raise UsageError(f"{total_bytes} bytes are too many for one tag")
        return Announcement(TransferKind.LIVE, 0, total_bytes, total_bytes)


class ShapedReceiver(LinkReceiver):
    """Receives them; opened as the shape says."""

    def __init__(
        self,
        transport: MemfdTransport,
        keys: LinkKeys,
        engine: DeviceEngine,
        shape: Shape,
        *,
        home_key: Callable[[bytes], SecretKey] | None = None,
        timeout_s: float,
    ) -> None:
        super().__init__(
            transport,
            keys,
            engine,
            home_key=home_key,
            context=shape.encode(),
            timeout_s=timeout_s,
        )
        layout, given_back = LAYOUTS[shape], self._opening
        if layout.sealed:
            whole = AfterAllCame(transport, engine, at_once=layout.parallel)
            self._parts.callback(whole.close)
            self._opening = whole
        else:
            self._opener.close()
            self._opener, self._opening = PlainOpener(), PlainCopy(transport, engine)
        given_back.close()


class PlainCopy:
    """Each unit is copied into the device's memory."""

    def __init__(self, transport: MemfdTransport, engine: DeviceEngine) -> None:
        self._transport = transport
        self._engine = engine

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Copy every unit."""
        transport = self._transport
        for start, length in arriving.units():
            at, frame_bytes = transport.next_range(timeout_s)
            if frame_bytes != length + FRAME_EXTRA_BYTES:
                raise wrong_length(frame_bytes, length + FRAME_EXTRA_BYTES)
            at += PREFIX_BYTES
            copied = transport.memory[at : at + length]
            self._engine.upload(copied, arriving.into, start).wait()
            transport.skip(1)
            arriving.verified(start, length)

    def close(self) -> None:
        """Nothing to give back."""


class AfterAllCame:
    """Opened once every unit lies in the link's memory: several at once, or one by one."""

    def __init__(
        self, transport: MemfdTransport, engine: DeviceEngine, *, at_once: bool
    ) -> None:
        self._transport = transport
        self._engine = engine
        self._at_once = at_once
        self._staged = not isinstance(engine, HostDevice)
        self._memory = (
            engine.adopt(transport.memory)
            if isinstance(engine, HostDevice)
            else engine.allocate(len(transport.memory))
        )

    def open_all(self, opener: AnyOpener, arriving: Arriving, timeout_s: float) -> None:
        """Wait for every unit, then open them all."""
        assert isinstance(opener, LinkOpener)
        transport, units = self._transport, list(arriving.units())
        ranges = transport.ranges(len(units), timeout_s)
        if self._staged:
            self._engine.upload(transport.memory, self._memory).wait()
        found = [
            opener.expect(transport.memory[at : at + nbytes], at + PREFIX_BYTES, *unit)
            for (at, nbytes), unit in zip(ranges, units, strict=True)
        ]
        batches = by_key(found) if self._at_once else [[each] for each in found]
        for batch in batches:
            places = [place for _, place in batch]
            key = batch[0][0]
            self._engine.open(key, self._memory, arriving.into, places).wait()
        transport.skip(len(units))
        for start, length in units:
            arriving.verified(start, length)

    def close(self) -> None:
        """Give back what is not the transport's."""
        if self._staged:
            self._memory.close()


def sender_of(
    name: str,
    transport: MemfdTransport,
    keys: LinkKeys,
    *,
    record_bytes: int,
    timeout_s: float,
) -> LinkSender:
    """The sender of a mode of the product, or of a shape."""
    if name in tuple(Shape):
        return ShapedSender(
            transport,
            keys,
            Shape(name),
            record_bytes=record_bytes,
            timeout_s=timeout_s,
        )
    return LinkSender(
        transport,
        keys,
        mode=LinkMode(name),
        record_bytes=record_bytes,
        timeout_s=timeout_s,
    )


def receiver_of(
    name: str,
    transport: MemfdTransport,
    keys: LinkKeys,
    engine: DeviceEngine,
    *,
    home_key: Callable[[bytes], SecretKey] | None = None,
    timeout_s: float,
) -> LinkReceiver:
    """The receiver of a mode of the product, or of a shape."""
    if name in tuple(Shape):
        return ShapedReceiver(
            transport,
            keys,
            engine,
            Shape(name),
            home_key=home_key,
            timeout_s=timeout_s,
        )
    return LinkReceiver(
        transport,
        keys,
        engine,
        mode=LinkMode(name),
        home_key=home_key,
        timeout_s=timeout_s,
    )
