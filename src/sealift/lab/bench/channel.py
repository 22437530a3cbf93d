"""How fast a stream is: sealing beside memcpy, sealed beside plain over TCP, and pipes.

Between processes of one machine: ``sealift bench link``.

Everything is measured in one run with repeats of the arms interleaved; a ratio is that
of the medians of throughput. Two processes: this one seals, ``Receiver`` opens.
The sealed arm ends when the receiver has verified the trailer, the plain arm when it has
copied the last byte; both leave the plaintext in the receiver's own memory.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from secrets import token_bytes
from typing import Final

from sealift.channel.record.header import StreamHeader, sealed_bytes
from sealift.channel.record.sealer import StreamSealer
from sealift.channel.transport.tcp import TcpTransport
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.lab.bench import pipe
from sealift.lab.bench.harness import End, Peer, pack, unpack
from sealift.lab.bench.pipeline import Quarantine, receive_stream, send_stream
from sealift.lab.bench.report import Arm, BenchReport, interleaved, start_report

RECORD_BYTES: Final = 1 << 20
SIZES_BYTES: Final = (64 << 20, 256 << 20)
_TIMEOUT_S: Final = 60.0


def run(*, quick: bool = False) -> BenchReport:
    """Measure everything; about 15 s, with ``quick`` about 6 s."""
    report = start_report("channel")
    report.real = ["AES-256-GCM on one core", "two processes on this machine"]
    repeats = 7 if quick else 21
    sizes = SIZES_BYTES[:1] if quick else SIZES_BYTES
    for size in sizes:
        _measure(report, "one core", size, _arms_here(size), repeats)
    for size in sizes:
        _measure_tcp(report, size, repeats)
    pipe.measure(report, repeats)
    return report


def _arms_here(size: int) -> dict[str, Arm]:
    key, source, copy = SecretKey.generate(), _written(size), _written(size)
    sealed = memoryview(bytearray(size // RECORD_BYTES * sealed_bytes(RECORD_BYTES)))

    def memcpy() -> None:
        copy[:] = source

    def seal() -> None:
        sealer = StreamSealer(key, total_bytes=size, record_bytes=RECORD_BYTES)
        position = 0
        for start in range(0, size, RECORD_BYTES):
            record = source[start : start + RECORD_BYTES]
            position += sealer.seal_into(record, sealed[position:])

    return {"memcpy": memcpy, "seal": seal}


def _measure_tcp(report: BenchReport, size: int, repeats: int) -> None:
    source, material = _written(size), token_bytes(KEY_BYTES)
    key = SecretKey(material)
    with (
        Peer.start(Receiver) as peer,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        transport = TcpTransport(socket.create_connection(listener.getsockname()))
        peer.ask("take", listener.accept()[0], key=pack(material))

        def plain() -> None:
            peer.tell("plain", total_bytes=size)
            for start in range(0, size, RECORD_BYTES):
                part = source[start : start + RECORD_BYTES]
                transport.reserve(len(part))[:] = part
                transport.commit()
            peer.hear()

        def sealed() -> None:
            peer.tell("sealed")
            sealer = StreamSealer(key, total_bytes=size, record_bytes=RECORD_BYTES)
            send_stream(transport, (source,), sealer)
            peer.hear()

        _measure(report, "tcp", size, {"plain": plain, "sealed": sealed}, repeats)
        transport.close()


def _measure(
    report: BenchReport, where: str, size: int, arms: Mapping[str, Arm], repeats: int
) -> None:
    """A row, and the ratio of the second arm to the first."""
    spent = interleaved(arms, repeats)
    rates = {f"{arm}_gb_per_s": spent[arm].gb_per_s(size) for arm in arms}
    report.rows.append({"where": where, "mib": size >> 20, **rates})
    plain, sealed = arms
    name = "seal_vs_memcpy" if where == "one core" else "sealed_vs_plain_tcp"
    report.keep_worst(name, spent[plain].median / spent[sealed].median)


def _written(size: int) -> memoryview:
    """Memory with pages of its own: untouched pages are all one cached page of zeroes."""
    return memoryview(bytearray(os.urandom(size)))


class Receiver(End):
    """The other process: opens into memory that it allocates once, or copies there."""

    def take(self, sock: socket.socket, key: str) -> None:
        """The connection that all arms use."""
        self._transport = TcpTransport(sock)
        self._key = SecretKey(unpack(key))
        self._memory = bytearray()
        self._quarantine: Quarantine | None = None

    def plain(self, total_bytes: int) -> None:
        """Copy what comes."""
        if len(self._memory) != total_bytes:
            self._memory = bytearray(total_bytes)
        target, filled = memoryview(self._memory), 0
        while filled < total_bytes:
            frame = self._transport.borrow(_TIMEOUT_S)
            target[filled : filled + len(frame)] = frame
            filled += len(frame)
            self._transport.give_back()

    def sealed(self) -> None:
        """Open what comes; the quarantine is where the plaintext stays."""
        receive_stream(
            self._transport,
            self._key,
            lambda record: None,
            make_quarantine=self._whole,
            timeout_s=_TIMEOUT_S,
        )

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def _whole(self, header: StreamHeader) -> Quarantine:
        size = header.record_bytes * header.record_count
        if self._quarantine is None or len(self._quarantine.memory) != size:
            self._quarantine = Quarantine(header.record_bytes, header.record_count)
        return self._quarantine
