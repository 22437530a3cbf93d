"""The way to a TPM: a device file, or the data socket of a software TPM.

Both take one command and give one answer. The kernel's ``/dev/tpmrm0`` shares the TPM;
a socket has it alone.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final, Protocol

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
                raise ConnectionError(f"an answer of {size} bytes")
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
                raise ConnectionError("it closed the connection")
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
            raise unreachable(name, ValueError("no port in its name"))
        return SocketLink((host, int(port)))
    return DeviceLink(name)


def unreachable(name: str, error: Exception) -> UnavailableError:
    """The refusal of a TPM that does not answer."""
    return UnavailableError(
        f"no TPM answers at {name}", why=error, code="tpm-unavailable"
    )
