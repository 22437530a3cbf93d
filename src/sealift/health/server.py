"""HTTP, in a process that reads one folder and can do nothing else.

Plain HTTP: what is shown is not secret, and there is nothing to write. Connections are
counted when they come, one request each, and end after some seconds whatever they do.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sealift.errors import UnavailableError, UsageError, catalogue, cause
from sealift.health.answers import answer
from sealift.health.status import FILE, PARTIAL, read_status
from sealift.train.sandbox import landlock
from sealift.train.sandbox.kernel import PR_SET_NO_NEW_PRIVS, prctl

MAX_CONNECTIONS: Final = 64
MAX_HEAD_BYTES: Final = 16 << 10
CONNECTION_S: Final = 10.0
STOP_S: Final = 2
Application = Callable[[Any, Any, Any], Awaitable[None]]


class BriefProtocol(H11Protocol):
    """Ends every connection in time, and one too many at once: uvicorn does neither."""

    most = MAX_CONNECTIONS
    lasts_s = CONNECTION_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        self.loop.call_later(self.lasts_s, transport.abort)


def make_application(folder: Path, clock: Callable[[], float]) -> Application:
    """The paths as an ASGI application."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        method, path = scope["method"], scope["path"]
        found = answer(method, path, lambda: read_status(folder), clock())
        headers = [
            (b"content-type", found.media_type.encode()),
            (b"connection", b"close"),
        ]
        body = found.body.encode()
        await send(
            {"type": "http.response.start", "status": found.status, "headers": headers}
        )
        await send({"type": "http.response.body", "body": body})

    return application


def configure(
    application: Application, protocol: type[H11Protocol] = BriefProtocol
) -> uvicorn.Config:
    """The server's settings."""
    return uvicorn.Config(
        application,
        http=protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_graceful_shutdown=STOP_S,
    )


def listen(host: str, port: int) -> socket.socket:
    """Bind; raises UnavailableError ``cannot-listen``."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UnavailableError(
            f"cannot listen on {host}:{port}",
            why=error,
            fix="Choose another address or port",
            code="cannot-listen",
        ) from None


def serve(folder: Path, listening: socket.socket, clock: Callable[[], float]) -> None:
    """Show a role's status until a signal comes."""
    config = configure(make_application(folder, clock))
    config.load()  # reads its modules, which it cannot do afterwards
    catalogue()  # and what errors say

    async def confined() -> None:
        give_up_access(folder)
        await uvicorn.Server(config).serve([listening])

    asyncio.run(confined())


def require_own_folder(folder: Path) -> None:
    """Refuse a folder with anything else in it: that could be read, too.

    Raises:
        UsageError: ``status-folder``.
    """
    try:
        found = set(os.listdir(folder)) - {FILE, PARTIAL}
    except OSError as error:
        found, why = {"?"}, cause(error)
    else:
        why = f"it holds {len(found)} other names"
    if found:
        raise UsageError(
            f"{folder} is not a folder of a status alone", why=why, code="status-folder"
        )


def give_up_access(folder: Path) -> None:
    """Keep the right to read ``folder``, and none to other files or to connect.

    Raises:
        UnavailableError: ``health-unconfined``: the kernel cannot do that, and this user
            may read what is the role's.
    """
    if landlock.version():
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict({str(folder): landlock.READ})
        return
    if os.geteuid() in (0, folder.stat().st_uid):
        raise UnavailableError(
            "this process could read the role's keys",
            why="it runs as the same user, or as root, and the kernel has no Landlock",
            code="health-unconfined",
        )
