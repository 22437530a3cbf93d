"""The device of the link benchmark: a process of its own that opens what comes.

It is told over a control socket which links to take and which one speaks next. What is
received lies in one device memory, made and touched once: of the GPU, if this machine
shows one, else of this process. Started by ``linkpeer.py``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from sealift.channel.device import DeviceEngine, DeviceMemory
from sealift.channel.hostdevice import HostDevice
from sealift.channel.link.keys import LinkKeys
from sealift.channel.link.receive import LinkReceiver
from sealift.channel.select import DeviceSelection, select_device
from sealift.channel.transports.memfd import MemfdTransport
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import SealiftError
from sealift.lab.bench.linkshapes import receiver_of

MAX_MEMORY_BYTES: Final = (1 << 30) + (64 << 20)
NAIVE_NONCE: Final = bytes(12)  # its key seals one message only, again and again
TIMEOUT_S: Final = 60.0


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
        filled = 0
        while filled < len(sealed):
            frame = self._transport.borrow(TIMEOUT_S)
            sealed[filled : filled + len(frame)] = frame
            filled += len(frame)
            self._transport.give_back()
        opened = self._aead.open(NAIVE_NONCE, sealed, b"")
        if not isinstance(self._engine, HostDevice):  # there it is where it belongs
            self._engine.upload(opened, into).wait()
        self._transport.send(b"done")

    def close(self) -> None:
        """End it."""
        self._transport.close()


class Device:
    """Carries out commands."""

    def __init__(self, control: socket.socket, selection: DeviceSelection) -> None:
        self._control = control
        self._commands = control.makefile("r")
        self._selection = selection
        self._engine = selection.engine
        self._memory: DeviceMemory | None = None
        self._links: dict[str, LinkReceiver | NaiveReceiver] = {}
        self._cpu_s: dict[str, float] = {}

    def serve(self) -> None:
        """Until there are no more commands."""
        for line in self._commands:
            command = json.loads(line)
            try:
                answer = getattr(self, f"_on_{command.pop('name')}")(**command)
            except SealiftError as error:
                answer = {"failed": [str(error), error.code]}
            self._say(answer)

    def _on_engine(self) -> dict[str, Any]:
        """Who opens, and why."""
        return {"engine": self._engine.name, "reason": self._selection.reason}

    def _on_memory(self, nbytes: int) -> dict[str, Any]:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        self._memory = self._engine.allocate(nbytes)
        return {}

    def _on_take(
        self, link: str, mode: str, keys: list[str], home: str
    ) -> dict[str, Any]:
        self._say({})
        _, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        sock = socket.socket(fileno=descriptors[0])
        transport = MemfdTransport.accept(sock, max_bytes=MAX_MEMORY_BYTES)
        there, back, owners = (SecretKey(bytes.fromhex(k)) for k in (*keys, home))
        self._cpu_s[link] = 0.0
        if mode == "naive":
            self._links[link] = NaiveReceiver(transport, there, self._engine)
            return {}
        self._links[link] = receiver_of(
            mode,
            transport,
            LinkKeys(there, back),
            self._engine,
            home_key=lambda header: owners,
            timeout_s=TIMEOUT_S,
        )
        return {}

    def _on_receive(self, link: str) -> dict[str, Any]:
        assert self._memory is not None
        self._say({})
        before = time.process_time()
        try:
            self._links[link].receive(self._memory)
        except SealiftError as error:
            refused_s = time.monotonic()
            return {"refused_s": refused_s, "error": error.code}
        self._cpu_s[link] += time.process_time() - before
        return {}

    def _on_left(self) -> dict[str, Any]:
        """Bytes of the device's memory that are not zero."""
        assert self._memory is not None
        size, nonzero = self._memory.nbytes, 0
        for at in range(0, size, 1 << 20):
            part = bytearray(min(1 << 20, size - at))
            self._engine.download(self._memory, at, part).wait()
            nonzero += len(part) - part.count(0)
        return {"nonzero": nonzero}

    def _on_cpu(self) -> dict[str, Any]:
        return self._cpu_s

    def _on_drop(self, link: str) -> dict[str, Any]:
        self._links.pop(link).close()
        return {}

    def _say(self, answer: dict[str, Any]) -> None:
        self._control.sendall(json.dumps(answer).encode() + b"\n")


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


def refuse(control: socket.socket, error: SealiftError) -> None:
    """Say to whoever asks first why there is no device."""
    with control.makefile("r") as commands:
        commands.readline()
    answer = {"failed": [str(error), error.code]}
    control.sendall(json.dumps(answer).encode() + b"\n")


def main() -> None:
    """Serve the control socket; arguments: descriptor, cores, bytes of memory."""
    control = socket.socket(fileno=int(sys.argv[1]))
    cores = [int(core) for core in sys.argv[2].split(",")]
    try:
        selection = choose_engine(cores, int(sys.argv[3]))
    except SealiftError as error:
        refuse(control, error)
        return
    os.sched_setaffinity(0, {cores[-1]})
    Device(control, selection).serve()


if __name__ == "__main__":
    main()
