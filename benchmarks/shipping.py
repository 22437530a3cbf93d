"""A data set shipped over TLS, as what travelling is compared with; and certificates.

It gets the best of what it can have: one process receives and copies into the accelerator's
buffer, where in a deployment the orchestrator would pass it on; the data set lies in
plaintext at its holder; TLS is the library's own, with its default cipher (AES-256-GCM).
Certificates are made by the openssl program: nothing else trusts them.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.channel import fill
from sealift.channel.transport.tcp import connect_socket
from sealift.errors import UnavailableError

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


class ShippingListener:
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
                fill(sock, chunk[: len(room)])
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
            if not count:
                raise EOFError("the file is shorter than it was made")
            sock.sendall(chunk[:count])
            left -= count
        fill(sock, memoryview(bytearray(len(DONE))))
    return time.perf_counter() - started
