"""The sending end of a link: an owner's process, or the host beside the device.

One transfer after another crosses: its announcement, its units, and the device's verdict
back. ``send`` returns when the device has opened everything. In every mode the records
are sealed straight into memory that only the two ends have mapped (rule H3).
Not here: transfers that were sealed before they were asked for (``ahead.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

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
from sealift.channel.link.openers import FORWARDED_EXTRA_BYTES, fill_frame
from sealift.channel.record.frames import FRAME_EXTRA_BYTES, FrameSealer
from sealift.channel.record.layout import (
    DEFAULT_RECORD_BYTES,
    StreamHeader,
    check_record_bytes,
)
from sealift.channel.record.opener import StreamOpener
from sealift.channel.record.record import Life, forked_stream
from sealift.channel.transport.memfd import MemfdTransport
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.errors import MalformedError, UsageError
from sealift.ids import Buffer

VERDICT: Final = struct.Struct(">8sQ")
VERDICT_MAGIC: Final = b"verified"
MIN_SUGGESTED_BYTES: Final = 256 << 10
RECORDS_WANTED: Final = 16
DEFAULT_TIMEOUT_S: Final = 60.0


class LinkSender:
    """Sends transfers to a device, in one mode.

    Args:
        transport: A memory file whose other end is the device; owned from now on.
        keys: Base keys of both directions.
        mode: How transfers are laid out; the device is told the same.
        record_bytes: Plaintext per record: 64 KiB to 4 MiB for speed, a multiple of
            32 in any case.
        context: What both ends know: job, agreement.
        timeout_s: How long the device may take for one step.

    Attributes:
        num_sent: Transfers that the device verified.

    Raises:
        MalformedError: if the record size is not allowed.
    """

    def __init__(
        self,
        transport: MemfdTransport,
        keys: LinkKeys,
        *,
        mode: LinkMode = DEFAULT_MODE,
        record_bytes: int = DEFAULT_RECORD_BYTES,
        suite: Suite = Suite.AES_256_GCM,
        context: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        check_record_bytes(record_bytes)
        self.mode = mode
        self.transport = transport
        self.timeout_s = timeout_s
        self.life = Life()
        self._record_bytes = record_bytes
        context = link_context(mode, context)
        self.sealer = FrameSealer(keys.to_device, suite=suite, context=context)
        self._from_device = (keys.from_device, context)
        self._verdicts: StreamOpener | None = None
        self.num_sent = 0
        try:
            transport.send(encode_hello(self.sealer.header_bytes))
        except BaseException:
            self.close()
            raise

    def send(self, source: Buffer) -> None:
        """Send one transfer; return when the device's verdict came.

        Raises:
            UsageError: if it is empty.
            PeerError: if the device is gone, or refused what came.
        """
        view = memoryview(source).cast("B")
        planned = self.plan(len(view))  # a mistake ends no link
        with self.life:
            announcement = self.announce(planned)
            for start in range(0, len(view), announcement.unit_bytes):
                self._send_unit(view[start : start + announcement.unit_bytes])
            self.await_verdict(announcement)

    def forward(
        self,
        header_bytes: bytes,
        records: Iterable[Buffer],
        total_bytes: int,
        *,
        first_index: int = 0,
    ) -> None:
        """Send records of a stream sealed at home, unopened (rule C6).

        Args:
            header_bytes: The stream's header; the device has the owner's key.
            records: Ciphertext and tag of every record, in order.
            total_bytes: Their plaintext altogether.
            first_index: Which record of the stream is the first of them.

        Raises:
            UsageError: code ``not-a-record``, if a record is shorter than its tag; the
                link is dead then.
            PeerError: if the device is gone, or refused what came.
        """
        self.check_process()
        planned = TransferAnnouncement(
            TransferKind.HOME,
            0,
            total_bytes,
            StreamHeader.parse(header_bytes).record_bytes,
            first_index,
            header_bytes,
        )
        with self.life:
            announcement = self.announce(planned)
            for index, record in enumerate(records, first_index):
                view = memoryview(record).cast("B")
                if len(view) < TAG_BYTES:
                    raise UsageError(
                        f"a sealed record must have more than {len(view)} bytes",
                        code="not-a-record",
                    )
                frame_bytes = len(view) - TAG_BYTES + FORWARDED_EXTRA_BYTES
                room = self.transport.reserve(frame_bytes, self.timeout_s)
                fill_frame(self.sealer, announcement, index, view, room)
                self.transport.commit()
            self.await_verdict(announcement)

    def plan(self, total_bytes: int) -> TransferAnnouncement:
        """The announcement of a transfer; its number comes later.

        Raises:
            UsageError: code ``empty-transfer``; code ``forked-stream``, in a forked
                child.
        """
        self.check_process()
        if total_bytes == 0:
            raise UsageError(
                "a transfer must have at least one byte", code="empty-transfer"
            )
        return TransferAnnouncement(
            TransferKind.LIVE, 0, total_bytes, self._record_bytes
        )

    def announce(self, planned: TransferAnnouncement) -> TransferAnnouncement:
        """Announce the next transfer; ``life`` is entered, so nobody else is the next.

        Returns:
            What was announced: the plan with its number.
        """
        self.meet()
        announcement = replace(planned, number=self.num_sent)
        message = announcement.encode()
        frame = self.transport.reserve(len(message) + FRAME_EXTRA_BYTES, self.timeout_s)
        self.sealer.seal(message, frame)
        self.transport.commit()
        return announcement

    def check_process(self) -> None:
        """Refuse a forked child, before it touches what it shares with its parent.

        Keys are gone there anyway; ring and batches that were sealed ahead are not.

        Raises:
            UsageError: code ``forked-stream``.
        """
        if self.transport.forked:
            raise forked_stream()

    def meet(self) -> StreamOpener:
        """Read what the device said first; before anything is sent to it.

        Raises:
            PolicyError: code ``link-version``, if it speaks another one.
            AuthenticationError: if it has another key.
            PeerError: if it is gone.
        """
        if self._verdicts is None:
            header = parse_hello(self.transport.receive(self.timeout_s))
            key, context = self._from_device
            self._verdicts = StreamOpener(key, header, context=context)
        return self._verdicts

    def await_verdict(self, announcement: TransferAnnouncement) -> None:
        """Wait until the device verified everything of a transfer.

        Raises:
            PeerError: if it is gone; a device that refuses what came goes.
            AuthenticationError: if somebody else answered.
        """
        verdicts = self.meet()
        answer = verdicts.open_frame(self.transport.receive(self.timeout_s))
        if answer != VERDICT.pack(VERDICT_MAGIC, announcement.number):
            raise MalformedError("the device's answer belongs to another transfer")
        self.num_sent += 1

    def close(self) -> None:
        """Forget the keys, end the connection."""
        self.life.dead = True
        self.sealer.close()
        if self._verdicts is not None:
            self._verdicts.close()
        self.transport.close()

    def _send_unit(self, plaintext: memoryview) -> None:
        transport = self.transport
        frame = transport.reserve(len(plaintext) + FRAME_EXTRA_BYTES, self.timeout_s)
        self.sealer.seal(plaintext, frame)
        transport.commit()


def suggested_record_bytes(total_bytes: int) -> int:
    """A record size for transfers of that length: 256 KiB to 1 MiB.

    Some sixteen records let copy and opening overlap; below 256 KiB a record the
    interpreter costs as much as that saves, as was measured.
    """
    wanted = total_bytes // RECORDS_WANTED
    size = MIN_SUGGESTED_BYTES
    while size < min(wanted, DEFAULT_RECORD_BYTES):
        size *= 2
    return size
