"""HTTP, in a process that reads one folder and can do nothing else.

Plain HTTP: what is shown is not secret, and there is nothing to write. Connections are
counted when they come, one request each, and end after some seconds whatever they do. What is answered at each path comes from a role's status
alone. Source of the text format: OpenMetrics 1.0.0 (prometheus/OpenMetrics).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sealift.errors import SealiftError, UnavailableError, UsageError, catalogue, cause
from sealift.health.status import EVERY_S, FILE, PARTIAL, Status, read_status
from sealift.train.sandbox import landlock
from sealift.train.sandbox.kernel import PR_SET_NO_NEW_PRIVS, prctl

STALE_S: Final = 10 * EVERY_S
PLAIN: Final = "text/plain; charset=utf-8"
METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_COUNTERS: Final = {
    "release.granted": ("sealift_releases", "Keys released."),
    "release.refused": ("sealift_refusals", "Requests refused, by rule."),
    "lease.revoked": ("sealift_revocations", "Leases revoked, by rule."),
    "broker.failed": ("sealift_failures", "Failures of this role, by rule."),
}
_EVENTS: Final = "sealift_events"
Read = Callable[[], Status]


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Of HTTP."""

    status: int
    body: str
    media_type: str = PLAIN


def answer(method: str, path: str, read: Read, now_s: float) -> HttpResponse:
    """Answer one request.

    Args:
        method: Of HTTP.
        path: As it came.
        read: The role's status.
        now_s: Seconds since 1970.
    """
    shown = _PATHS.get(path)
    if shown is None:
        return HttpResponse(404, "not found\n")
    if method != "GET":
        return HttpResponse(405, "only GET requests are allowed\n")
    try:
        return shown(_fresh(read(), now_s))
    except SealiftError as error:
        return HttpResponse(503, f"the role's status is missing [{error.code}]\n")


def _fresh(status: Status, now_s: float) -> Status:
    if abs(now_s - status.at_s) > STALE_S:
        raise UnavailableError("the status is out of date", code="status-stale")
    return status


def _alive(status: Status) -> HttpResponse:
    return HttpResponse(200, "ok\n")


def _ready(status: Status) -> HttpResponse:
    if status.unready:
        return HttpResponse(503, f"not ready [{status.unready}]\n")
    return HttpResponse(200, "ready\n")


def _metrics(status: Status) -> HttpResponse:
    lines = [*_counters(status), *_gauges(status), "# EOF"]
    return HttpResponse(200, "\n".join([*lines, ""]), METRICS)


def _counters(status: Status) -> Iterator[str]:
    for kind, (name, what) in _COUNTERS.items():
        yield from _heading(name, what, "counter")
        for count in status.counts:
            if count.kind == kind:
                rule = f'{{rule="{count.rule}"}}' if count.rule else ""
                yield f"{name}_total{rule} {count.number}"
    yield from _heading(_EVENTS, "What happened, by event.", "counter")
    for count in status.counts:
        if count.kind not in _COUNTERS:
            yield f'{_EVENTS}_total{{kind="{count.kind}"}} {count.number}'


def _gauges(status: Status) -> Iterator[str]:
    yield from _heading("sealift_role", "Which role this is.", "info")
    yield f'sealift_role_info{{role="{status.role}"}} 1'
    gauges = {"ready": int(not status.unready), **status.gauges}
    for name, number in gauges.items():
        yield from _heading(f"sealift_{name}", "Now.", "gauge")
        yield f"sealift_{name} {number}"


def _heading(name: str, what: str, kind: str) -> tuple[str, str]:
    return f"# TYPE {name} {kind}", f"# HELP {name} {what}"


_PATHS: Final[dict[str, Callable[[Status], HttpResponse]]] = {
    "/healthz": _alive,
    "/readyz": _ready,
    "/metrics": _metrics,
}


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
        why = f"it has {len(found)} other files or folders"
    if found:
        raise UsageError(
            f"{folder} cannot be used as a status folder", why=why, code="status-folder"
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
