"""Commands to a TPM over a device file, or the data socket of a software TPM.

The kernel's ``/dev/tpmrm0`` shares the TPM; a socket has it alone. Framing, authorization,
retries, and errors that people can read; only empty passwords and one policy session are
spoken: keys are protected by where they live. Source: TPM 2.0 Library part 1, section 18
(command structure); part 2, section 6.6 (response codes); part 3 (commands).
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

from sealift.attest.tpm.structures import TpmReader
from sealift.errors import UnavailableError

MAX_ANSWER_BYTES: Final = 4096
HEADER_BYTES: Final = 10
TIMEOUT_S: Final = 60.0  # a chip may search for primes that long


class Link(Protocol):
    """Carries commands to one TPM."""

    @property
    def exclusive(self) -> bool:
        """Whether nobody else uses the TPM, so that what is left in it is ours."""
        ...

    def exchange(self, command: bytes) -> bytes:
        """Send one command; return its whole answer.

        Raises:
            UnavailableError: ``tpm-unavailable``.
        """
        ...

    def close(self) -> None:
        """Let go of the TPM."""
        ...


class DeviceLink:
    """A device file of the kernel: ``/dev/tpmrm0``."""

    exclusive = False

    def __init__(self, path: str) -> None:
        try:
            self._device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise unreachable(path, error) from None
        self._path = path

    def exchange(self, command: bytes) -> bytes:
        """See ``Link.exchange``."""
        try:
            os.write(self._device, command)
            return os.read(self._device, MAX_ANSWER_BYTES)
        except OSError as error:
            raise unreachable(self._path, error) from None

    def close(self) -> None:
        """See ``Link.close``."""
        device, self._device = self._device, -1
        if device >= 0:
            os.close(device)


class SocketLink:
    """The data socket of swtpm: a path, or host and port."""

    exclusive = True

    def __init__(self, address: str | tuple[str, int]) -> None:
        self._name = str(address)
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(address)
        except OSError as error:
            self._socket.close()
            raise unreachable(self._name, error) from None

    def exchange(self, command: bytes) -> bytes:
        """See ``Link.exchange``."""
        try:
            self._socket.sendall(command)
            header = self._receive(HEADER_BYTES)
            size = int.from_bytes(header[2:6], "big")
            if not HEADER_BYTES <= size <= MAX_ANSWER_BYTES:
                raise ConnectionError(f"the answer has {size} bytes")
            return header + self._receive(size - HEADER_BYTES)
        except OSError as error:
            raise unreachable(self._name, error) from None

    def close(self) -> None:
        """See ``Link.close``."""
        self._socket.close()

    def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise ConnectionError("the TPM closed the connection")
            received += part
        return received


def open_link(name: str) -> Link:
    """``/dev/tpmrm0``, ``unix:/run/tpm.sock``, or ``tcp:127.0.0.1:2321``.

    Raises:
        UnavailableError: ``tpm-unavailable``.
    """
    scheme, _, rest = name.partition(":")
    if scheme == "unix":
        return SocketLink(str(Path(rest)))
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        if not port.isdecimal():
            raise unreachable(name, ValueError("the name has no port"))
        return SocketLink((host, int(port)))
    return DeviceLink(name)


def unreachable(name: str, error: Exception) -> UnavailableError:
    """The refusal of a TPM that does not answer."""
    return UnavailableError(
        f"the TPM at {name} does not answer", why=error, code="tpm-unavailable"
    )


_NO_SESSIONS: Final = 0x8001
_SESSIONS: Final = 0x8002
PASSWORD: Final = 0x40000009
_NOT_STARTED: Final = 0x100
UNKNOWN_HANDLE: Final = 0x8B
_AGAIN: Final = frozenset({0x905, 0x908, 0x922})  # testing, yielded, retry
_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.02
_TRANSIENT: Final = 0x80000000
_STALE: Final = (_TRANSIENT, 0x02000000, 0x03000000)  # and loaded, saved sessions


class Command(IntEnum):
    """TPM_CC of the commands in use."""

    NV_UNDEFINE_SPACE = 0x122
    NV_DEFINE_SPACE = 0x12A
    CREATE_PRIMARY = 0x131
    NV_WRITE = 0x137
    STARTUP = 0x144
    ACTIVATE_CREDENTIAL = 0x147
    NV_READ = 0x14E
    POLICY_SECRET = 0x151
    CREATE = 0x153
    LOAD = 0x157
    QUOTE = 0x158
    FLUSH_CONTEXT = 0x165
    NV_READ_PUBLIC = 0x169
    READ_PUBLIC = 0x173
    START_AUTH_SESSION = 0x176
    GET_CAPABILITY = 0x17A
    PCR_READ = 0x17E
    PCR_EXTEND = 0x182


@dataclass(frozen=True, slots=True)
class TpmResponse:
    """What a command returned: its handle, if it has one, and its parameters."""

    handle: int
    parameters: bytes

    def reader(self, what: str) -> TpmReader:
        """A cursor over the parameters."""
        return TpmReader(self.parameters, what)


class TpmError(UnavailableError):
    """The TPM refused a command.

    Attributes:
        response: TPM_RC, without the number of the handle or parameter it is about.
    """

    def __init__(self, command: Command, response: int) -> None:
        # Without the number of handle, session or parameter (part 2, section 6.6.2).
        self.response = response & 0xBF if response & 0x80 else response
        super().__init__(
            f"the TPM refused {command.name.lower()}",
            why=_REASONS.get(self.response, f"response {response:#x}"),
            code="tpm-refused",
        )


class TpmClient:
    """Speaks to one TPM; safe to use from several threads.

    Args:
        link: The way to it; closed with the client.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the TPM if nobody did, and flush what crashed users left in it."""
        try:
            self.handles(_TRANSIENT)
        except TpmError as error:
            if error.response != _NOT_STARTED:
                raise
            self.run(Command.STARTUP, parameters=b"\0\0")
        if self._link.exclusive:
            for handle in [each for kind in _STALE for each in self.handles(kind)]:
                self.flush(handle)

    def run(
        self,
        command: Command,
        handles: Sequence[int] = (),
        parameters: bytes = b"",
        *,
        sessions: Sequence[int] = (),
        returns_handle: bool = False,
    ) -> TpmResponse:
        """Run one command.

        Args:
            command: Which.
            handles: Its handles.
            parameters: Its parameters, encoded.
            sessions: One authorization each, for the first handles: ``PASSWORD`` (the
                empty one) or a policy session, which ends with the command.
            returns_handle: Whether the answer begins with a handle.

        Raises:
            TpmError: the TPM said no.
            UnavailableError: no TPM answers.
        """
        area = b"".join(struct.pack(">IHBH", each, 0, 0, 0) for each in sessions)
        if area:
            area = struct.pack(">I", len(area)) + area
        body = b"".join(struct.pack(">I", each) for each in handles) + area + parameters
        tag, size = _SESSIONS if sessions else _NO_SESSIONS, HEADER_BYTES + len(body)
        packet = struct.pack(">HII", tag, size, command) + body
        with self._lock:
            raw = self._link.exchange(packet)
            for _ in range(_ATTEMPTS):
                if _response_code(raw) not in _AGAIN:
                    break
                time.sleep(_PAUSE_S)
                raw = self._link.exchange(packet)
        if code := _response_code(raw):
            raise TpmError(command, code)
        reader = TpmReader(raw, "TPM answer")
        reader.take(HEADER_BYTES)
        handle = reader.number(4) if returns_handle else 0
        answer = reader.take(reader.number(4)) if sessions else reader.rest()
        return TpmResponse(handle, answer)

    def handles(self, first: int) -> list[int]:
        """Every handle of the kind that ``first`` begins."""
        parameters = struct.pack(">III", 1, first, 64)
        reader = self.run(Command.GET_CAPABILITY, parameters=parameters).reader("list")
        reader.take(5)
        return [reader.number(4) for _ in range(reader.number(4))]

    def flush(self, handle: int) -> None:
        """Forget a transient object or a session."""
        self.run(Command.FLUSH_CONTEXT, parameters=struct.pack(">I", handle))

    def close(self) -> None:
        """Let go of the TPM."""
        with self._lock:
            self._link.close()


def _response_code(raw: bytes) -> int:
    if len(raw) < HEADER_BYTES or int.from_bytes(raw[2:6], "big") != len(raw):
        raise UnavailableError(
            "the TPM's answer is not valid",
            why=f"it has {len(raw)} bytes",
            code="tpm-unavailable",
        )
    return int.from_bytes(raw[6:10], "big")


_REASONS: Final = {
    0x100: "it was not started",
    0x101: "it failed its self test and must be reset",
    0x127: "its random numbers are not available yet",
    0x84: "a value is out of range",
    0x8B: "it does not know a handle",
    0x8E: "an authorization failed: a password is set",
    0x9D: "a policy was not satisfied",
    0xA2: "an authorization failed: a password is set",
    0x95: "a structure has a wrong size",
    0x9F: "an integrity check failed: another TPM made this object",
    0x14A: "the NV index has not been written yet",
    0x14C: "the NV index already exists",
    0x14B: "its non-volatile memory is full",
    0x902: "other programs use all of its key slots",
    0x903: "other programs use all of its session slots",
    0x905: "its self test is still running",
    0x920: "it limits how often its non-volatile memory may be written",
    0x921: "it is locked after wrong passwords",
    0x922: "it was busy for too long",
}
