"""The weaker ways of a link, to be measured beside the product's own.

Each differs from the one before in one step, so that a measurement of all of them says
what each step saves. They cross the same ring, with the same announcement and verdict, by
the product's sender and receiver; here is only what differs. In the first three somebody
besides owner and device reads what crosses.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from sealift.channel.device.device import DeviceEngine
from sealift.channel.device.host import HostDevice
from sealift.channel.link.announcement import (
    LinkKeys,
    LinkMode,
    TransferAnnouncement,
    TransferKind,
)
from sealift.channel.link.openers import LinkOpener
from sealift.channel.link.receive import AnyOpener, Arriving, LinkReceiver, by_key
from sealift.channel.link.send import LinkSender
from sealift.channel.record.frames import FRAME_EXTRA_BYTES, FrameSealer, wrong_length
from sealift.channel.record.layout import PREFIX_BYTES, FramePrefix
from sealift.channel.record.opener import scrub
from sealift.channel.transport.memfd import MemfdTransport
from sealift.crypto.aead import NONCE_BYTES, TAG_BYTES, Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import UsageError, require_kind
from sealift.ids import Buffer

MAX_ONE_TAG_BYTES: Final = 1 << 30  # the AEAD library takes less than 2 GiB a call


class Shape(StrEnum):
    """How a transfer is laid out, from weakest to strongest; the report's names."""

    PLAIN = "plain"
    REENCRYPT = "reencrypt"
    REENCRYPT_CHUNK = "reencrypt+chunk"
    DIRECT = "direct"
    DIRECT_PARALLEL = "direct+parallel-auth"


SHAPES: Final = tuple(map(str, Shape))
ALL: Final = (*Shape, *LinkMode)
REENCRYPTS: Final = (Shape.REENCRYPT, Shape.REENCRYPT_CHUNK)
_ONE_TAG: Final = (Shape.REENCRYPT, Shape.DIRECT)


def has_records(name: str) -> bool:
    """Whether every record has a tag, or a copy, of its own."""
    return name not in _ONE_TAG


def comes_whole(name: str) -> bool:
    """Whether all of a transfer lies in the link's memory before any of it is opened."""
    return name in SHAPES and name != Shape.PLAIN


def sender_of(
    name: str, transport: MemfdTransport, keys: LinkKeys, **options: Any
) -> LinkSender:
    """The sender of a mode of the product, or of a shape."""
    if name in SHAPES:
        return ShapedSender(transport, keys, Shape(name), **options)
    return LinkSender(transport, keys, mode=LinkMode(name), **options)


def receiver_of(
    name: str,
    transport: MemfdTransport,
    keys: LinkKeys,
    engine: DeviceEngine,
    **options: Any,
) -> LinkReceiver:
    """The receiver of a mode of the product, or of a shape."""
    if name in SHAPES:
        return ShapedReceiver(transport, keys, engine, Shape(name), **options)
    return LinkReceiver(transport, keys, engine, mode=LinkMode(name), **options)


class ShapedSender(LinkSender):
    """Sends transfers in one of the shapes; the device is told the same."""

    def __init__(
        self, transport: MemfdTransport, keys: LinkKeys, shape: Shape, **options: Any
    ) -> None:
        super().__init__(transport, keys, context=shape.encode(), **options)
        self.shape = shape
        if shape is Shape.PLAIN:
            self.sealer.close()
            self.sealer = PlainSealer()

    def plan(self, total_bytes: int) -> TransferAnnouncement:
        """One unit where one tag covers all.

        Raises:
            UsageError: if it is empty, or too long for one tag.
        """
        planned = super().plan(total_bytes)
        if has_records(self.shape):
            return planned
        if total_bytes > MAX_ONE_TAG_BYTES:
            raise UsageError(f"{total_bytes} bytes are too many for one tag")
        return TransferAnnouncement(TransferKind.LIVE, 0, total_bytes, total_bytes)


class Reencrypter:
    """The vendor protocol's shape: a host between owner and device opens, and seals again.

    The owner's records are opened with the owner's key in the host's memory and sealed
    with the device's, so whoever reads the host's memory reads them. It exists to say what
    sealing once saves.

    Args:
        sender: A link of shape ``reencrypt`` or ``reencrypt+chunk``.
        source: The plaintext; its owner seals it here, before anything is timed.
    """

    def __init__(self, sender: LinkSender, source: Buffer) -> None:
        self._sender, self._planned = sender, sender.plan(len(source))
        self._aead = Aead(Suite.AES_256_GCM, SecretKey.generate())
        whole, unit = memoryview(source), self._planned.unit_bytes
        self._records = [
            self._aead.seal(_nonce(number), whole[start : start + unit], b"")
            for number, start in enumerate(range(0, len(whole), unit))
        ]
        self.clear = memoryview(bytearray(unit))
        scrub(self.clear)  # touches it

    def send(self) -> None:
        """Open and seal again unit by unit; return when the device verified all."""
        sender = self._sender
        with sender.life:
            announcement = sender.announce(self._planned)
            for number, record in enumerate(self._records):
                clear = self.clear[: len(record) - TAG_BYTES]
                self._aead.open_into(_nonce(number), record, b"", clear)
                frame = sender.transport.reserve(
                    len(clear) + FRAME_EXTRA_BYTES, sender.timeout_s
                )
                sender.sealer.seal(clear, frame)
                sender.transport.commit()
            sender.await_verdict(announcement)

    def close(self) -> None:
        """Overwrite what the host saw."""
        scrub(self.clear)


def _nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


class ShapedReceiver(LinkReceiver):
    """Receives them; opened as the shape says."""

    def __init__(
        self,
        transport: MemfdTransport,
        keys: LinkKeys,
        engine: DeviceEngine,
        shape: Shape,
        **options: Any,
    ) -> None:
        super().__init__(transport, keys, engine, context=shape.encode(), **options)
        given_back = self._opening
        if shape is Shape.PLAIN:
            self._opener.close()
            self._opener, self._opening = PlainOpener(), PlainCopy(transport, engine)
        else:
            at_once = shape is Shape.DIRECT_PARALLEL
            self._opening = whole = AfterAllCame(transport, engine, at_once=at_once)
            self._parts.callback(whole.close)
        given_back.close()


class PlainSealer(FrameSealer):
    """What stands in a sealer's place where nothing is sealed: a copy, and a prefix."""

    def __init__(self) -> None:
        """Nothing to derive."""

    def seal(
        self,
        plaintext: Buffer,
        frame: memoryview,
        bound: bytes = b"",
        *,
        final: bool = False,
    ) -> None:
        """Copy."""
        frame[PREFIX_BYTES:-TAG_BYTES] = plaintext
        prefix = FramePrefix(len(frame) - PREFIX_BYTES, 0, final=False)
        frame[:PREFIX_BYTES] = prefix.encode()

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
        opener = require_kind(opener, LinkOpener)
        transport, units = self._transport, list(arriving.units())
        ranges = transport.ranges(len(units), timeout_s)
        if self._staged:
            self._engine.upload(transport.memory, self._memory).wait()
        found = [
            opener.expect(transport.memory[at : at + nbytes], at + PREFIX_BYTES, *unit)
            for (at, nbytes), unit in zip(ranges, units, strict=True)
        ]
        singly = [(key, [place]) for key, place in found]
        for key, places in by_key(found) if self._at_once else singly:
            self._engine.open(key, self._memory, arriving.into, places).wait()
        transport.skip(len(units))
        for start, length in units:
            arriving.verified(start, length)

    def close(self) -> None:
        """Give back what is not the transport's."""
        if self._staged:
            self._memory.close()
