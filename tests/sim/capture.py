"""Every frame that crosses a bridge, and whether something can be found in it.

A packet socket in the bridge's namespace sees what each port receives. Streams of TCP
are put together again, so that what is looked for may lie across two segments.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

CLONE_NEWNET = 0x40000000  # linux/sched.h
ETH_P_ALL = 3  # linux/if_ether.h
ETH_P_IP = 0x0800
PACKET_OUTGOING = 4  # linux/if_packet.h
SOL_PACKET, PACKET_STATISTICS = 263, 6
SO_RCVBUFFORCE = 33
ROOM_BYTES = 256 << 20  # of the kernel, for what nobody has read yet
FRAME_BYTES = 1 << 17
WORD = 8

Flow = tuple[bytes, bytes]


class Capture:
    """What crossed, while it is open and afterwards.

    Attributes:
        frames: Each frame that a port received, with its headers.
    """

    def __init__(self, packets: socket.socket) -> None:
        self.frames: list[bytes] = []
        self._packets = packets
        self._ending, self._end = os.pipe()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    @contextmanager
    def begin(cls, space: str) -> Iterator[Capture]:
        """Capture what the ports of a bridge in that namespace receive."""
        capture = cls(packet_socket(space))
        try:
            yield capture
        finally:
            capture.end()

    def end(self) -> None:
        """Everything sent until now is in ``frames``, and nothing is missing. Idempotent."""
        if self._end < 0:
            return
        os.close(self._end)
        self._end = -1
        self._reader.join()
        os.close(self._ending)
        with self._packets:
            told = self._packets.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        assert struct.unpack("=II", told)[1] == 0, "frames were lost"

    def crossed(self) -> list[bytes]:
        """Every frame, and every stream of TCP as far as it has no gap."""
        self.end()
        return [*self.frames, *streams(self.frames)]

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._packets, select.POLLIN)
        poller.register(self._ending, select.POLLHUP)
        while True:
            ready = dict(poller.poll())
            if self._packets.fileno() in ready:
                frame, (port, _, kind, *_) = self._packets.recvfrom(FRAME_BYTES)
                if kind != PACKET_OUTGOING and port.startswith("port"):
                    self.frames.append(frame)
            elif ready:  # ended, and nothing is left
                return


def packet_socket(space: str) -> socket.socket:
    """A packet socket of a named network namespace; it belongs there wherever it is read."""
    made: list[socket.socket] = []

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        there = os.open(f"/run/netns/{space}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(there, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(there)
        every = socket.htons(ETH_P_ALL)
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, every)
        packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ROOM_BYTES)
        made.append(packets)

    entering = threading.Thread(target=enter)  # which alone is in that namespace
    entering.start()
    entering.join()
    if not made:
        raise OSError(f"no packets of {space} can be read")
    return made[0]


def streams(frames: Iterable[bytes]) -> list[bytes]:
    """The bytes of each direction of each connection, in runs without gaps."""
    flows: dict[Flow, dict[int, bytes]] = defaultdict(dict)
    for frame in frames:
        if (segment := _segment(frame)) is not None:
            flow, at, content = segment
            if len(content) > len(flows[flow].get(at, b"")):
                flows[flow][at] = content
    return [run for segments in flows.values() for run in _runs(segments)]


def _segment(frame: bytes) -> tuple[Flow, int, bytes] | None:
    """Connection and direction, sequence number and content of a segment of TCP."""
    if int.from_bytes(frame[12:14]) != ETH_P_IP or frame[23] != socket.IPPROTO_TCP:
        return None
    packet = frame[14 : 14 + int.from_bytes(frame[16:18])]
    segment = packet[(packet[0] & 15) * 4 :]
    content = segment[(segment[12] >> 4) * 4 :]
    return (packet[12:20], segment[:4]), int.from_bytes(segment[4:8]), content


def _runs(segments: dict[int, bytes]) -> Iterator[bytes]:
    run, end = bytearray(), -1
    for at in sorted(segments):  # numbers that pass 2^32 make one gap more
        content = segments[at]
        if at > end:
            yield bytes(run)
            run, end = bytearray(), at
        run += content[end - at :]
        end = max(end, at + len(content))
    yield bytes(run)


_ENDS: Final = (1 << 20) - 1


def words_of(secret: bytes, texts: Iterable[bytes]) -> int:
    """How many aligned words of ``secret`` stand anywhere in the texts.

    Of 16 bytes in a row, at any place of the secret, one word at least is a whole one.
    """
    wanted = np.unique(np.frombuffer(secret, "<u8", len(secret) // WORD))
    ends = np.zeros(_ENDS + 1, bool)  # most words are told apart by their low bits
    ends[wanted & _ENDS] = True
    parts = [text for text in texts if len(text) >= WORD]
    # As one text: there are many frames, and a search costs more than what it reads.
    whole = b"".join(parts)
    borders = np.cumsum([len(text) for text in parts])
    return sum(
        _count(wanted, ends, whole, borders, shift)
        for shift in range(min(WORD, len(whole) - WORD + 1))
    )


def _count(
    wanted: np.ndarray[Any, Any],
    ends: np.ndarray[Any, Any],
    whole: bytes,
    borders: np.ndarray[Any, Any],
    shift: int,
) -> int:
    """How many words are wanted that begin at ``shift`` and every 8 bytes behind it."""
    words = np.frombuffer(whole, "<u8", (len(whole) - shift) // WORD, shift)
    (likely,) = np.nonzero(ends[words & _ENDS])
    at = np.searchsorted(wanted, words[likely]).clip(max=len(wanted) - 1)
    places = likely[wanted[at] == words[likely]] * WORD + shift
    # A word that ends behind the border of its text stands in none.
    next_border = borders[np.searchsorted(borders, places, side="right")]
    return int(np.count_nonzero(places + WORD <= next_border))


def places_of(needle: bytes, texts: Iterable[bytes]) -> int:
    """How many of the texts hold it."""
    return sum(needle in text for text in texts)
