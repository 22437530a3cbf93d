"""The device of the link benchmark: a process of its own that opens what comes.

It is told which links to take and which one speaks next. What is received lies in one
device memory, made and touched once: of the GPU, if this machine shows one, else of that
process.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from secrets import token_bytes
from typing import Any, Final

from benchmarks.channel import copy_frames
from benchmarks.harness import Answer, End, Peer
from benchmarks.link.shapes import receiver_of, sender_of
from sealift.channel.device.device import DeviceEngine, DeviceMemory
from sealift.channel.device.host import HostDevice
from sealift.channel.link.announcement import LinkKeys
from sealift.channel.link.receive import LinkReceiver
from sealift.channel.link.send import LinkSender
from sealift.channel.select import DeviceSelection, select_device
from sealift.channel.transport.memfd import MemfdTransport
from sealift.crypto.aead import NONCE_BYTES, Aead, Suite
from sealift.crypto.hash import labelled
from sealift.crypto.keys import SecretKey
from sealift.errors import PeerError, SealiftError, require_value

DEVICE_BYTES: Final = 2 << 30
MAX_MEMORY_BYTES: Final = (1 << 30) + (64 << 20)
NAIVE: Final = "naive"
NAIVE_NONCE: Final = bytes(NONCE_BYTES)  # its key seals one message only, all the time
TIMEOUT_S: Final = 60.0
_BACK: Final = (256, 4)  # slots of what the device says: verdicts


def link_keys(seed: bytes) -> LinkKeys:
    """Both directions' keys of one link."""
    return LinkKeys(*(SecretKey(labelled("bench link", seed, w)) for w in (b"1", b"2")))


def home_key(seed: bytes) -> SecretKey:
    """The key of what the owner sealed at home."""
    return SecretKey(labelled("bench link", seed, b"home"))


def two_cores() -> list[int]:
    """The sender's core and the device's; the same one where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return [cores[0], cores[-1]]


class DevicePeer(Peer):
    """The device process, seen from here."""

    name = "the device"

    @classmethod
    def on(cls, cores: list[int], memory_bytes: int = DEVICE_BYTES) -> DevicePeer:
        """Start it on the last of ``cores``; its threads may use all of them."""
        peer = cls.start(Device, ",".join(map(str, cores)), memory_bytes)
        peer.control.settimeout(TIMEOUT_S)
        return peer

    @property
    def process(self) -> int:
        """Its number."""
        return self.child.pid if self.child else os.getpid()

    def connect(
        self,
        link: str,
        mode: str,
        seed: bytes,
        *,
        ring: tuple[int, int],
        kind: type[MemfdTransport] = MemfdTransport,
    ) -> MemfdTransport:
        """A memory file with ``ring`` (slot bytes, slots) whose other end it takes."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.tell("take", there, link=link, mode=mode, seed=seed.hex())
        slot_bytes, slots = _BACK
        return kind.offer(here, slot_bytes=slot_bytes, num_slots=slots, sending=ring)

    def sender(
        self,
        link: str,
        mode: str,
        *,
        ring: tuple[int, int],
        record_bytes: int,
        seed: bytes | None = None,
        kind: type[MemfdTransport] = MemfdTransport,
    ) -> LinkSender:
        """The sending end of a new link."""
        seed = seed or token_bytes(32)
        transport = self.connect(link, mode, seed, ring=ring, kind=kind)
        options = {"record_bytes": record_bytes, "timeout_s": TIMEOUT_S}
        sender = sender_of(mode, transport, link_keys(seed), **options)
        self.hear()
        return sender

    def gone(self) -> SealiftError:
        """One line."""
        return PeerError("the device's process ended", code="device-gone")


def choose_engine(
    cores: list[int],
    memory_bytes: int,
    select: Callable[..., DeviceSelection] = select_device,
) -> DeviceSelection:
    """The GPU's engine, if this machine shows a GPU, else threads on ``cores``."""

    def on_cores() -> HostDevice:
        made = HostDevice(threads=len(cores), cores=cores, memory_bytes=memory_bytes)
        made.warm_up()
        return made

    return select(host=on_cores)


class Device(End):
    """Carries out orders.

    Args:
        cores: Joined by commas; it stays on the last of them.
        memory_bytes: Of the host's stand-in.
        selection: Who opens; chosen here if not given.
    """

    def __init__(
        self,
        cores: str = "",
        memory_bytes: str = "",
        selection: DeviceSelection | None = None,
    ) -> None:
        if selection is None:
            numbers = [int(core) for core in cores.split(",")]
            selection = choose_engine(numbers, int(memory_bytes))
            os.sched_setaffinity(0, {numbers[-1]})
        self._selection = selection
        self._engine = selection.engine
        self._memory: DeviceMemory | None = None
        self._links: dict[str, LinkReceiver | NaiveReceiver] = {}
        self._cpu_s: dict[str, float] = {}

    def engine(self) -> Answer:
        """Who opens, and why."""
        return {"engine": self._engine.name, "reason": self._selection.reason}

    def memory(self, nbytes: int) -> None:
        """Memory of another size, all zeroes."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        self._memory = self._engine.allocate(nbytes)

    def take(self, sock: socket.socket, link: str, mode: str, seed: str) -> None:
        """The receiving end of a link."""
        transport = MemfdTransport.accept(sock, max_bytes=MAX_MEMORY_BYTES)
        keys = link_keys(bytes.fromhex(seed))
        self._cpu_s[link] = 0.0
        if mode == NAIVE:
            receiver = NaiveReceiver(transport, keys.to_device, self._engine)
            self._links[link] = receiver
            return
        options: dict[str, Any] = {"timeout_s": TIMEOUT_S}
        options["home_key"] = lambda header: home_key(bytes.fromhex(seed))
        self._links[link] = receiver_of(mode, transport, keys, self._engine, **options)

    def receive(self, link: str) -> Iterator[Answer]:
        """Ready; then what came of the next transfer."""
        yield {}
        before = time.process_time()
        try:
            self._links[link].receive(require_value(self._memory))
        except SealiftError as error:
            yield {"refused_s": time.monotonic(), "error": error.code}
            return
        self._cpu_s[link] += time.process_time() - before
        yield {}

    def left(self) -> Answer:
        """Bytes of the device's memory that are not zero."""
        memory = require_value(self._memory)
        size, nonzero = memory.nbytes, 0
        for at in range(0, size, 1 << 20):
            part = bytearray(min(1 << 20, size - at))
            self._engine.download(memory, at, part).wait()
            nonzero += len(part) - part.count(0)
        return {"nonzero": nonzero}

    def cpu(self) -> Answer:
        """Processor seconds by link."""
        return self._cpu_s

    def drop(self, link: str) -> None:
        """End a link."""
        self._links.pop(link).close()


class NaiveReceiver:
    """One library call for everything, into fresh memory: what people write first."""

    def __init__(
        self, transport: MemfdTransport, key: SecretKey, engine: DeviceEngine
    ) -> None:
        self._transport = transport
        self._engine = engine
        self._aead = Aead(Suite.AES_256_GCM, key)

    def receive(self, into: DeviceMemory) -> None:
        """Gather the frames, open them as one, answer."""
        sealed = bytearray(int.from_bytes(self._transport.receive(TIMEOUT_S), "big"))
        copy_frames(self._transport, sealed)
        opened = self._aead.open(NAIVE_NONCE, sealed, b"")
        if not isinstance(self._engine, HostDevice):  # there it is where it belongs
            self._engine.upload(opened, into).wait()
        self._transport.send(b"done")

    def close(self) -> None:
        """End it."""
        self._transport.close()
