"""Whole streams between two processes: sealed while the other end opens, or over TLS.

Sealed, the sender seals straight into memory that the transport lends, then lets it go; the
receiver opens where the frame lies, if the transport lends private memory, into a
quarantine slot, and hands the slot over after its tag verified. The two ends work at the
same time, a bounded number of records apart (the transport's slots or socket buffers).
Frames: the header, every record behind its prefix, the trailer.

Over TLS a data set is shipped, as what travelling is compared with. It gets the best of
what it can have: one process receives and copies into the accelerator's buffer, where in a
deployment the orchestrator would pass it on; the data set lies in plaintext at its holder;
TLS is the library's own, with its default cipher (AES-256-GCM). Certificates are made by
the openssl program: nothing else trusts them.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from sealift.channel.record.header import StreamHeader, sealed_bytes
from sealift.channel.record.opener import StreamOpener
from sealift.channel.record.quarantine import Slot
from sealift.channel.record.sealer import StreamSealer, regroup
from sealift.channel.record.trailer import PREFIX_BYTES
from sealift.channel.transport.tcp import connect_socket
from sealift.channel.transport.transport import SlotTransport
from sealift.crypto.keys import SecretKey
from sealift.errors import UnavailableError, UsageError
from sealift.ids import Buffer

Sink = Callable[[memoryview], None]
DEFAULT_SLOTS = 2
MODEL_RECORD_BYTES = 1 << 20
MODEL_TIMEOUT_S = 3600.0


class Quarantine:
    """A fixed number of slots in one private allocation, used in turn.

    With as many slots as the stream has records, the allocation is also the place where
    the plaintext ends up, so that nothing is copied after verification (hand-over).
    """

    def __init__(self, slot_bytes: int, num_slots: int) -> None:
        self.memory = bytearray(slot_bytes * num_slots)
        view = memoryview(self.memory)
        starts = range(0, slot_bytes * num_slots, slot_bytes)
        self._slots = [Slot(view[start : start + slot_bytes]) for start in starts]

    def slot(self, index: int) -> Slot:
        """The slot for record ``index``."""
        return self._slots[index % len(self._slots)]

    def scrub(self) -> None:
        """Overwrite every slot."""
        for slot in self._slots:
            slot.scrub()


class SlotOpener(StreamOpener):
    """Opens frames into slots, which are handed over without another copy."""

    def open_frame_in(self, slot: Slot, frame: Buffer) -> memoryview:
        """Open the next frame into a quarantine slot; return a read-only view of it.

        Nobody but this process, and the sender, can write the frame, so the record is
        opened where it lies (rule H3).
        """
        with self._life:
            return self._open_frame(slot, frame, private=True)


def send_stream(
    transport: SlotTransport, source: Iterable[Buffer], sealer: StreamSealer
) -> None:
    """Seal ``source`` and send it: header, records, trailer.

    Args:
        transport: Where to.
        source: The plaintext in pieces of any size; altogether ``total_bytes``.
        sealer: A fresh sealer of a stream of known length.

    Raises:
        UsageError: if the source has not the length that the sealer was told.
        PeerError: if the peer is gone.
    """
    header = sealer.header
    transport.send(sealer.header_bytes)
    pieces = regroup(source, header.record_bytes) if header.total_bytes else (b"",)
    for plaintext in pieces:
        room = transport.reserve(PREFIX_BYTES + sealed_bytes(len(plaintext)))
        sealer.seal_frame_into(plaintext, room)
        transport.commit()
    transport.send(sealer.trailer())


def receive_stream(
    transport: SlotTransport,
    base_key: SecretKey,
    sink: Sink,
    *,
    make_quarantine: Callable[[StreamHeader], Quarantine] | None = None,
    timeout_s: float | None = None,
) -> StreamHeader:
    """Receive a stream; ``sink`` gets every record after its tag verified.

    Args:
        transport: Where from.
        base_key: The key that the header must commit to.
        sink: Takes a read-only view, valid until as many more records have come as the
            quarantine has slots; it is not called for the unverified.
        make_quarantine: Makes the slots once the header is known; with as many as
            records, its memory is the plaintext at the end. Two slots by default.
        timeout_s: How long to wait for each frame.

    Returns:
        The header, once the trailer verified: only then is the stream whole.

    Raises:
        AuthenticationError, StaleError, MalformedError: at the first frame that is not
            exactly the next one; the quarantine is scrubbed.
        PeerError: if the peer is gone or silent.
    """
    opener = SlotOpener(base_key, transport.receive(timeout_s))
    header = opener.header
    if header.carries_messages:
        raise UsageError("a stream of messages belongs to a session")
    longest = min(header.record_bytes, max(header.total_bytes, 1))
    make = make_quarantine or (lambda _: Quarantine(longest, DEFAULT_SLOTS))
    quarantine = make(header)
    try:
        for index in itertools.count():
            if opener.finished:
                break
            frame = transport.borrow(timeout_s)
            try:
                record = opener.open_frame_in(quarantine.slot(index), frame)
            finally:
                transport.give_back()
            sink(record)
        opener.finish(transport.receive(timeout_s))
    except BaseException:
        quarantine.scrub()
        raise
    finally:
        opener.close()
    return header


def send_model(transport: SlotTransport, model: memoryview, key: SecretKey) -> None:
    """A model as one sealed stream."""
    sealer = StreamSealer(key, total_bytes=len(model), record_bytes=MODEL_RECORD_BYTES)
    send_stream(transport, (model,), sealer)


def receive_model(transport: SlotTransport, model: memoryview, key: SecretKey) -> None:
    """The model at the other end, opened and copied to its place."""
    filled = 0

    def place(record: memoryview) -> None:
        nonlocal filled
        model[filled : filled + len(record)] = record
        filled += len(record)

    receive_stream(transport, key, place, timeout_s=MODEL_TIMEOUT_S)


CHUNK_BYTES: Final = 1 << 20
HOST: Final = "orchestrator.invalid"
DONE: Final = b"done"
PRIVATE: Final = b"-----BEGIN PRIVATE KEY"
_TIMEOUT_S: Final = 3600.0


def make_certificate(folder: Path, host: str = "localhost") -> Path:
    """A file with a self-signed certificate for ``host``, of a day, and its key.

    Raises:
        UnavailableError: if there is no such program.
    """
    path, key = folder / "tls.pem", folder / "tls.key"
    words = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
        "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={host}",
        "-addext", f"subjectAltName=DNS:{host}",
        "-keyout", str(key), "-out", str(path), "-days", "1",
    ]  # fmt: skip
    try:
        subprocess.run(words, check=True, capture_output=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(
            "no certificate for the TLS arm", why=str(error)[:200]
        ) from None
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


class ShippingDock:
    """Receives data sets over TLS into a buffer.

    Args:
        address: Where to listen; port 0 lets the system choose.

    Attributes:
        certificate: PEM; senders trust nothing else.

    Raises:
        UnavailableError: if there is no openssl program.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        with tempfile.TemporaryDirectory() as folder:  # ssl reads keys from files only
            pem = make_certificate(Path(folder), HOST)
            self.certificate, *_ = pem.read_bytes().partition(PRIVATE)
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(pem)
        self._context = context
        self._listener = socket.create_server(address)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]

    def take(self, buffer: memoryview) -> None:
        """Receive one data set, as long as the buffer, and copy it there."""
        plain, _ = self._listener.accept()
        plain.settimeout(_TIMEOUT_S)
        with self._context.wrap_socket(plain, server_side=True) as sock:
            chunk = memoryview(bytearray(CHUNK_BYTES))
            for start in range(0, len(buffer), CHUNK_BYTES):
                room = buffer[start : start + CHUNK_BYTES]
                _receive(sock, chunk[: len(room)])
                room[:] = chunk[: len(room)]
            sock.sendall(DONE)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def ship(
    path: Path, total_bytes: int, address: tuple[str, int], certificate: bytes
) -> float:
    """Send the first bytes of a file over TLS; seconds until the other end has them."""
    started = time.perf_counter()
    context = ssl.create_default_context(cadata=certificate.decode())
    plain = connect_socket(*address, timeout_s=_TIMEOUT_S)
    with (
        path.open("rb", buffering=0) as file,
        context.wrap_socket(plain, server_hostname=HOST) as sock,
    ):
        chunk = memoryview(bytearray(CHUNK_BYTES))
        left = total_bytes
        while left:
            count = file.readinto(chunk[: min(left, CHUNK_BYTES)])
            assert count, "the file is as long as it was made"
            sock.sendall(chunk[:count])
            left -= count
        _receive(sock, memoryview(bytearray(len(DONE))))
    return time.perf_counter() - started


def _receive(sock: ssl.SSLSocket, room: memoryview) -> None:
    filled = 0
    while filled < len(room):
        count = sock.recv_into(room[filled:])
        assert count, "the other end stays until everything is there"
        filled += count
