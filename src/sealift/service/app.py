"""The HTTP routes: the KBS protocol under /kbs/v0, health, metrics.

Each request passes the entrance (target, rates, how many at once), then its body is read
under a size and a time, then the step runs in a thread, since it writes to a disk. What
comes out is an answer of the protocol or a problem; an exception of ours that is neither
says nothing to strangers.
Source: spec/kbs.md sections HTTP and Limits.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sealift.errors import AuthenticationError, MalformedError, SealiftError
from sealift.release.brokerserver import Broker
from sealift.service.kbs import KbsDoor, resource_path
from sealift.service.kbsforms import COOKIE
from sealift.service.kbssessions import CHALLENGE_S
from sealift.service.limits import Entrance, Gate, Limits, check_head, check_target
from sealift.service.metrics import CONTENT_TYPE, Metrics
from sealift.service.problem import (
    ATTESTATION,
    BAD_PATH,
    BAD_TOKEN,
    FAILED,
    MEDIA_TYPE,
    NO_PLUGIN,
    NO_TOKEN,
    NOT_OPEN,
    POLICY_DENY,
    Problem,
    limited,
    not_found,
    refusal,
)

PREFIX: Final = "/kbs/v0/"
_METHODS: Final = ["GET", "POST", "PUT", "DELETE"]
_ADMIN: Final = frozenset({"resource-policy", "attestation-policy", "reference-value"})
# Rules that say the token itself is bad, not what it asks for.
_TOKEN_RULES: Final = frozenset({"kbs-no-session", "token-expired", "token-foreign"})
_BODY_UNREAD: Final = frozenset({408, 413})
T = TypeVar("T")
Monotonic = Callable[[], float]
ReportBug = Callable[[Exception], None]
Step = Callable[[Request], Awaitable[Response]]


class Rim:
    """What the routes share.

    Args:
        broker: Of one owner.
        door: Its door for the KBS protocol.
        metrics: Counts.
        limits: What strangers may ask for.
        monotonic: Seconds that never go back.
        report_bug: Gets an exception that is none of ours; nobody else learns of it.
    """

    def __init__(
        self,
        broker: Broker,
        door: KbsDoor,
        metrics: Metrics,
        *,
        limits: Limits,
        monotonic: Monotonic,
        report_bug: ReportBug,
    ) -> None:
        self._broker = broker
        self._report_bug = report_bug
        self._door = door
        self._metrics = metrics
        self._limits = limits
        self._monotonic = monotonic
        self._entrance = Entrance(limits)
        self._gate = Gate(limits.at_once, limits.at_once_per_address)
        metrics.add_gauge(
            "sealift_http_requests_inside",
            "HTTP requests worked on now.",
            lambda: self._gate.inside,
        )

    def application(self) -> Starlette:
        """The routes as an ASGI application."""
        steps = {
            "/healthz": ("health", self._health, ["GET"]),
            "/readyz": ("ready", self._ready, ["GET"]),
            "/metrics": ("metrics", self._show_metrics, ["GET"]),
            f"{PREFIX}auth": ("auth", self._auth, ["POST"]),
            f"{PREFIX}attest": ("attest", self._attest, ["POST"]),
            f"{PREFIX}{{rest:path}}": ("resource", self._resource, _METHODS),
            "/{rest:path}": ("unknown", self._unknown, _METHODS),
        }
        return Starlette(
            routes=[
                Route(path, self._guarded(name, step), methods=methods)
                for path, (name, step, methods) in steps.items()
            ]
        )

    def _guarded(self, name: str, step: Step) -> Step:
        """One step behind the entrance, timed, with its refusals as answers."""

        async def answer(request: Request) -> Response:
            began_s = self._monotonic()
            try:
                self._admit(request, began_s)
                with self._gate.passing(_address(request)):
                    response = await step(request)
            except Problem as problem:
                response = _problem(problem)
            except ClientDisconnect:
                response = Response(status_code=400)
            except Exception as error:  # a bug of ours: nothing of it leaves
                self._report_bug(error)
                line = "the broker failed [error]"
                response = _problem(Problem(500, FAILED, line, "error"))
            self._metrics.observe(
                name, response.status_code, self._monotonic() - began_s
            )
            return response

        return answer

    def _admit(self, request: Request, now_s: float) -> None:
        raw_path = request.scope.get("raw_path") or request.scope["path"].encode()
        check_target(raw_path, request.scope["query_string"], self._limits)
        check_head(request.scope["headers"], self._limits)
        self._entrance.admit(_address(request), now_s)

    async def _auth(self, request: Request) -> Response:
        raw = await self._body(request, self._limits.auth_bytes)
        begun = await self._run(ATTESTATION, lambda: self._door.auth(raw))
        response = _json(begun.challenge)
        response.set_cookie(
            COOKIE,
            begun.session,
            max_age=int(CHALLENGE_S),
            httponly=True,
            samesite="strict",
        )
        return response

    async def _attest(self, request: Request) -> Response:
        session = _cookie(request)
        raw = await self._body(request, self._limits.attest_bytes)
        if not session:
            line = "cookie not found [kbs-no-session]"
            raise Problem(401, ATTESTATION, line, "kbs-no-session")
        token = await self._run(ATTESTATION, lambda: self._door.attest(session, raw))
        return _json(json.dumps({"token": token}).encode())

    async def _resource(self, request: Request) -> Response:
        plugin, _, rest = request.path_params["rest"].partition("/")
        if plugin in _ADMIN:
            line = "this server is not administered over HTTP [kbs-no-admin]"
            raise Problem(401, NOT_OPEN, line, "kbs-no-admin")
        if plugin != "resource":
            raise not_found(NO_PLUGIN, "there is no such plugin", "kbs-no-plugin")
        if request.method != "GET":
            line = "resources are only read here [kbs-no-admin]"
            raise Problem(401, NOT_OPEN, line, "kbs-no-admin")
        path = _path(rest)
        token = await self._token(request)
        return _json(
            await self._run(POLICY_DENY, lambda: self._door.release(token, path))
        )

    async def _token(self, request: Request) -> str:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and bearer:
            return bearer.strip()
        session = _cookie(request)
        if not session:
            line = "Attestation Token not found [kbs-no-session]"
            raise Problem(401, NO_TOKEN, line, "kbs-no-session")
        return await self._run(NO_TOKEN, lambda: self._door.token_of(session))

    async def _health(self, request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def _ready(self, request: Request) -> Response:
        """Ready if the log can be read and the agreement is in force."""
        try:
            await self._run(FAILED, self._broker.require_ready)
        except Problem as found:
            raise Problem(503, FAILED, found.detail, found.rule) from None
        return Response("ready\n", media_type="text/plain")

    async def _show_metrics(self, request: Request) -> Response:
        text = await run_in_threadpool(self._metrics.to_text)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def _unknown(self, request: Request) -> Response:
        raise not_found(BAD_PATH, "there is nothing here", "kbs-bad-path")

    async def _body(self, request: Request, limit: int) -> bytes:
        announced = request.headers.get("content-length", "0")
        if not announced.isdigit() or int(announced) > limit:
            raise limited(413, f"a body of more than {limit} bytes", "http-body")
        try:
            async with asyncio.timeout(self._limits.body_s):
                return await _read_body(request, limit)
        except TimeoutError:
            raise limited(408, "the body came too slowly", "http-slow") from None

    async def _run(self, kind: str, step: Callable[[], T]) -> T:
        return await run_in_threadpool(_translated, kind, step)


async def _read_body(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise limited(413, f"a body of more than {limit} bytes", "http-body")
    return bytes(body)


def _translated(kind: str, step: Callable[[], T]) -> T:
    try:
        return step()
    except SealiftError as error:
        raise _as_problem(error, kind) from None


def _as_problem(error: SealiftError, kind: str) -> Problem:
    if error.code == "no-resource":
        return not_found(BAD_PATH, str(error), error.code)
    if kind == POLICY_DENY and (
        isinstance(error, (AuthenticationError, MalformedError))
        or error.code in _TOKEN_RULES
    ):
        return refusal(error, BAD_TOKEN)
    return refusal(error, kind)


def _path(rest: str) -> tuple[str, ...]:
    try:
        return resource_path(tuple(rest.split("/")))
    except MalformedError as error:
        raise not_found(BAD_PATH, str(error), error.code) from None


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _cookie(request: Request) -> str:
    return request.cookies.get(COOKIE, "")


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _problem(problem: Problem) -> Response:
    headers = {"retry-after": str(problem.retry_s)} if problem.retry_s else {}
    if problem.status in _BODY_UNREAD:  # what is left of it is no next request
        headers["connection"] = "close"
    return Response(problem.body(), problem.status, headers, media_type=MEDIA_TYPE)


def make_application(
    broker: Broker,
    metrics: Metrics,
    *,
    limits: Limits | None = None,
    clock: Callable[[], float],
    monotonic: Monotonic = time.monotonic,
    report_bug: ReportBug,
) -> Starlette:
    """The rim of one broker.

    Args:
        broker: Of one owner.
        metrics: Counts what its sink sees, and requests.
        limits: What strangers may ask for.
        clock: Seconds since 1970, for tokens.
        monotonic: Seconds that never go back.
        report_bug: Gets an exception that is none of ours.
    """
    door = KbsDoor(broker, clock=clock, monotonic=monotonic)
    metrics.add_gauge("sealift_leases_open", "Leases open now.", broker.open_leases)
    metrics.add_gauge(
        "sealift_log_entries", "Entries of the audit log.", lambda: broker.head().size
    )
    rim = Rim(
        broker,
        door,
        metrics,
        limits=limits or Limits(),
        monotonic=monotonic,
        report_bug=report_bug,
    )
    return rim.application()
