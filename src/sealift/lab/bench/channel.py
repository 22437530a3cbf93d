"""How fast a stream is: sealing beside memcpy, sealed beside plain over TCP.

Between processes of one machine: ``sealift bench link``.

Everything is measured in one run with repeats of the arms interleaved; a ratio is that
of the medians of throughput. Two processes: this one seals, ``channel_peer`` opens.
The sealed arm ends when the receiver has verified the trailer, the plain arm when it has
copied the last byte; both leave the plaintext in the receiver's own memory.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from secrets import token_bytes
from typing import Final

from sealift.channel.header import sealed_bytes
from sealift.channel.sealer import StreamSealer
from sealift.channel.transports.tcp import TcpTransport
from sealift.channel.transports.transport import SlotTransport
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.lab.bench.pipeline import send_stream
from sealift.lab.bench.report import BenchReport, start_report

RECORD_BYTES: Final = 1 << 20
SIZES_BYTES: Final = (64 << 20, 256 << 20)
_TIMEOUT_S: Final = 60.0


def run(*, quick: bool = False) -> BenchReport:
    """Measure everything; about 10 s, with ``quick`` about 3 s."""
    report = start_report("channel")
    report.real = ["AES-256-GCM on one core", "two processes on this machine"]
    repeats = 7 if quick else 21
    sizes = SIZES_BYTES[:1] if quick else SIZES_BYTES
    _measure_sealing(report, sizes, repeats)
    _measure_tcp(report, sizes, repeats)
    return report


def _measure_sealing(report: BenchReport, sizes: tuple[int, ...], repeats: int) -> None:
    key = SecretKey.generate()
    for size in sizes:
        source = _written_memory(size)
        copy = _written_memory(size)
        sealed = memoryview(
            bytearray(size // RECORD_BYTES * sealed_bytes(RECORD_BYTES))
        )

        def memcpy(source: memoryview = source, copy: memoryview = copy) -> None:
            copy[:] = source

        def seal(source: memoryview = source, sealed: memoryview = sealed) -> None:
            _seal_all(key, source, sealed)

        arms = {"memcpy": memcpy, "seal": seal}
        rates = _interleave(arms, size, repeats)
        _add(report, "one core", size, rates)
        _keep_worst(report, "seal_vs_memcpy", rates["seal"] / rates["memcpy"])


def _written_memory(size: int) -> memoryview:
    """Memory with pages of its own: untouched pages are all one cached page of zeroes."""
    return memoryview(bytearray(os.urandom(size)))


def _seal_all(key: SecretKey, source: memoryview, sealed: memoryview) -> None:
    sealer = StreamSealer(key, total_bytes=len(source), record_bytes=RECORD_BYTES)
    position = 0
    for start in range(0, len(source), RECORD_BYTES):
        record = source[start : start + RECORD_BYTES]
        position += sealer.seal_into(record, sealed[position:])


def _measure_tcp(report: BenchReport, sizes: tuple[int, ...], repeats: int) -> None:
    material = token_bytes(KEY_BYTES)
    key = SecretKey(material)
    with _peer(material) as transport:
        for size in sizes:
            source = _written_memory(size)

            def plain(source: memoryview = source) -> None:
                _send_plain(transport, source)

            def sealed(source: memoryview = source) -> None:
                _send_sealed(transport, source, key)

            rates = _interleave({"plain": plain, "sealed": sealed}, size, repeats)
            _add(report, "tcp", size, rates)
            ratio = rates["sealed"] / rates["plain"]
            _keep_worst(report, "sealed_vs_plain_tcp", ratio)
        transport.send(b"stop")


def _send_plain(transport: SlotTransport, source: memoryview) -> None:
    transport.send(b"plain" + len(source).to_bytes(8, "big"))
    for start in range(0, len(source), RECORD_BYTES):
        part = source[start : start + RECORD_BYTES]
        transport.reserve(len(part))[:] = part
        transport.commit()
    transport.receive(_TIMEOUT_S)


def _send_sealed(transport: SlotTransport, source: memoryview, key: SecretKey) -> None:
    transport.send(b"sealed")
    sealer = StreamSealer(key, total_bytes=len(source), record_bytes=RECORD_BYTES)
    send_stream(transport, (source,), sealer)
    transport.receive(_TIMEOUT_S)


@contextmanager
def _peer(material: bytes) -> Iterator[SlotTransport]:
    """A receiving process at the other end of a connection."""
    here, there = _connection()
    command = [sys.executable, "-m", "sealift.lab.bench.channel_peer"]
    child = subprocess.Popen(  # noqa: S603 - our own module
        [*command, str(there.fileno())], pass_fds=[there.fileno()]
    )
    there.close()
    transport = TcpTransport(here)
    try:
        transport.send(material)
        yield transport
        child.wait(_TIMEOUT_S)
    finally:
        transport.close()
        child.kill()
        child.wait()


def _connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    return here, there


def _interleave(
    arms: Mapping[str, Callable[[], None]], size: int, repeats: int
) -> dict[str, float]:
    """Median GB/s of every arm, one repeat of each in turn after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(repeats + 1):
        for name, arm in arms.items():
            start = time.perf_counter()
            arm()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return {name: size / statistics.median(t) / 1e9 for name, t in times.items()}


def _add(report: BenchReport, where: str, size: int, rates: dict[str, float]) -> None:
    row: dict[str, str | int | float | bool] = {"where": where, "mib": size >> 20}
    row.update({f"{arm}_gb_per_s": round(rate, 2) for arm, rate in rates.items()})
    report.rows.append(row)


def _keep_worst(report: BenchReport, name: str, ratio: float) -> None:
    report.ratios[name] = round(min(ratio, report.ratios.get(name, ratio)), 3)
