"""The rim as a server in a thread of its own, beside the broker's relay sessions.

It listens where it is told, on one socket that is bound before anything is said to be
up. Access is not logged: what happened is in the audit log and in the metrics.
"""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import uvicorn

from sealift.errors import UnavailableError, UsageError
from sealift.service.connection import make_protocol
from sealift.service.limits import Limits

START_S: Final = 10.0
STOP_S: Final = 5
BACKLOG: Final = 64


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate chain and key, in PEM."""

    certificate: Path
    key: Path


class RimServer:
    """Serves an ASGI application until it is stopped.

    Args:
        application: From ``make_application``.
        address: Host and port; port 0 takes any.
        limits: Of connections.
        tls: Certificate and key; plain HTTP without.

    Raises:
        UnavailableError: ``cannot-listen``.
        UsageError: ``tls-unusable``.
    """

    def __init__(
        self,
        application: Any,
        address: tuple[str, int],
        *,
        limits: Limits | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._limits = limits or Limits()
        context = _tls_context(tls) if tls else None
        self._socket = _bind(address)
        self._server = uvicorn.Server(_configure(application, self._limits, context))
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="http", daemon=True
        )

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def start(self) -> Self:
        """Serve from here on."""
        self._socket.listen(BACKLOG)  # clients wait in the queue until it is up
        self._thread.start()
        return self

    def stop(self) -> None:
        """Answer what is under way, and end."""
        self._server.should_exit = True
        self._thread.join(STOP_S + START_S)
        self._socket.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _configure(
    application: Any, limits: Limits, context: ssl.SSLContext | None
) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=make_protocol(limits),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,  # an address that a header names is the client's choice
        server_header=False,
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_keep_alive=int(max(1, limits.head_s)),
        timeout_graceful_shutdown=STOP_S,
        ssl_context_factory=(lambda config, default: context) if context else None,
    )


def _bind(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With the protocol named, asyncio switches off the delay of small writes.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise _cannot_listen(address, error) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _cannot_listen(address, error) from None
    return bound


def _tls_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            "the TLS certificate or its key cannot be used",
            why=getattr(error, "strerror", None) or "they do not fit, or are no PEM",
            fix="Give a PEM chain and its unencrypted key",
            code="tls-unusable",
        ) from None
    return context


def _cannot_listen(address: tuple[str, int], error: OSError) -> UnavailableError:
    return UnavailableError(
        f"cannot listen on {address[0]}:{address[1]}",
        why=error.strerror or str(error),
        fix="Choose another address or port",
        code="cannot-listen",
    )
