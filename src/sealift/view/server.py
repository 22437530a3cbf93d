"""The process of a page: it speaks HTTP on loopback, and can read no file at all.

Who draws the fragments writes them to its standard input, a JSON line each; keys, files and
the network of the run are that process's. A browser gets in with the code that the terminal
showed, by a form and never by an address, and keeps it as a cookie that no script and no
other site can use. Other hosts' names for this address (DNS rebinding), other origins and
everything but these few paths are refused.
Run as ``python -m sealift.view.server DESCRIPTOR``; the first line of input is the code.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sealift.errors import visible
from sealift.health.server import configure
from sealift.train.sandbox import landlock
from sealift.train.sandbox.kernel import PR_SET_NO_NEW_PRIVS, prctl
from sealift.view.markup import LIVE_POLICY, entrance, whole

MAX_FORM_BYTES: Final = 1024
MAX_STREAMS: Final = 16
BEAT_S: Final = 15.0  # so that a browser that went away is noticed
HTML: Final = "text/html; charset=utf-8"
COOKIE: Final = "sealift-view"
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Fragments:
    """The latest of each, and a number that grows with every change.

    Attributes:
        latest: By name: the change that made it, and its markup.
        number: Of the last change.
    """

    def __init__(self) -> None:
        self.latest: dict[str, tuple[int, str]] = {}
        self.number = 0
        self._changed = asyncio.Event()

    def put(self, name: str, html: str) -> None:
        """A fragment was drawn anew."""
        self.number += 1
        self.latest[name] = (self.number, html)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def since(self, number: int) -> dict[str, str]:
        """What changed after a number."""
        return {n: html for n, (at, html) in self.latest.items() if at > number}

    async def changed(self, within_s: float) -> None:
        """Until something changes, or so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), within_s)


class Page:
    """The ASGI application.

    Args:
        token: The code that lets a browser in.
        port: Where it listens.
        fragments: What is shown.
        files: ``style.css`` and ``view.js``, read before.
    """

    def __init__(
        self, token: str, port: int, fragments: Fragments, files: Mapping[str, str]
    ) -> None:
        self._token, self._fragments, self._files = token, fragments, files
        # Cookies know no ports: another user's server on this machine is told those of
        # every path that it can name. This one it cannot.
        self._place = f"/{secrets.token_hex(16)}/"
        self._cookie = secrets.token_hex(16)
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._streams = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {
            k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]
        }
        method, path = scope["method"], scope["path"]
        if headers.get("host") not in self._hosts:
            await _answer(send, 421, "the request names another host\n")
        elif not self._own_origin(headers, method, path):
            await _answer(send, 403, "the request comes from another site\n")
        elif (method, path) == ("POST", "/enter"):
            await self._enter(receive, send)
        elif method != "GET":
            await _answer(send, 405, "only GET requests are allowed\n")
        elif path == "/style.css":
            await _answer(send, 200, self._files["style.css"], kind="text/css")
        elif not (path.startswith(self._place) and self._known(headers)):
            status = 200 if path == "/" else 403
            await _answer(send, status, entrance(), kind=HTML)
        else:
            part = path.removeprefix(self._place)
            await self._show(part, scope["query_string"], receive, send)

    async def _show(
        self, part: str, query: bytes, receive: Receive, send: Send
    ) -> None:
        if part == "":
            parts = self._fragments.since(0)
            await _answer(send, 200, whole(parts, self._fragments.number), kind=HTML)
        elif part == "view.js":
            await _answer(send, 200, self._files["view.js"], kind="text/javascript")
        elif part == "events":
            await self._stream(_since(query), receive, send)
        else:
            await _answer(send, 404, "not found\n")

    def _own_origin(self, headers: Mapping[str, str], method: str, path: str) -> bool:
        """No other site asks; a file of this machine may bring the code, and needs it."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if (method, path) == ("POST", "/enter") and origin == "null":
            return True
        own = origin is None or origin in {f"http://{host}" for host in self._hosts}
        return own and site in ("none", "same-origin")

    def _known(self, headers: Mapping[str, str]) -> bool:
        pairs = (each.strip() for each in headers.get("cookie", "").split(";"))
        own = (
            each.removeprefix(f"{COOKIE}=")
            for each in pairs
            if each.startswith(f"{COOKIE}=")
        )
        return any(_same(each, self._cookie) for each in own)

    async def _enter(self, receive: Receive, send: Send) -> None:
        """Take the code; the browser goes on by itself, since its cookie is strict."""
        body = await _body(receive)
        code = parse_qs(body.decode("latin-1")).get("code", [""])[0].strip()
        if not _same(code, self._token):
            await _answer(send, 403, entrance(wrong=True), kind=HTML)
            return
        cookie = (
            f"{COOKIE}={self._cookie}; HttpOnly; SameSite=Strict; Path={self._place}"
        )
        moved = (
            f'<!doctype html><meta http-equiv="refresh" content="0;url={self._place}">'
        )
        await _answer(send, 200, moved, kind=HTML, more=[("set-cookie", cookie)])

    async def _stream(self, since: int, receive: Receive, send: Send) -> None:
        """Fragments as they change, until the browser goes away."""
        if self._streams >= MAX_STREAMS:
            await _answer(send, 503, f"more than {MAX_STREAMS} pages are open\n")
            return
        self._streams += 1
        both = [
            asyncio.ensure_future(each)
            for each in (self._tell(send, since), _gone(receive))
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams -= 1
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _tell(self, send: Send, told: int) -> None:
        await send(_start(200, "text/event-stream", []))
        while True:
            found, now = self._fragments.since(told), self._fragments.number
            lines = [
                f"event: fragment\ndata: {json.dumps({'name': n, 'html': h})}\n\n"
                for n, h in found.items()
            ]
            body = "".join(lines) or ": still here\n\n"
            await send(
                {"type": "http.response.body", "body": body.encode(), "more_body": True}
            )
            told = now
            await self._fragments.changed(BEAT_S)


def _since(query: bytes) -> int:
    """What the page has; nothing, if that makes no sense."""
    found = parse_qs(query.decode("latin-1")).get("since", ["0"])[0]
    return (
        int(found) if found.isascii() and found.isdecimal() and len(found) < 16 else 0
    )


def _same(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode(), secret.encode())


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more and len(body) <= MAX_FORM_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body if len(body) <= MAX_FORM_BYTES else b""


def _start(status: int, kind: str, more: list[tuple[str, str]]) -> dict[str, Any]:
    headers = [
        ("content-type", kind),
        ("content-security-policy", LIVE_POLICY),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        *more,
    ]
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }


async def _answer(
    send: Send,
    status: int,
    body: str,
    *,
    kind: str = "text/plain; charset=utf-8",
    more: list[tuple[str, str]] | None = None,
) -> None:
    await send(_start(status, kind, more or []))
    await send({"type": "http.response.body", "body": body.encode()})


def _read_on(fragments: Fragments, loop: asyncio.AbstractEventLoop, end: Any) -> None:
    """Take fragments from standard input until it ends; then so does the page."""
    for line in sys.stdin:
        told = json.loads(line)
        loop.call_soon_threadsafe(fragments.put, told["name"], told["html"])
    loop.call_soon_threadsafe(end)


def _give_up_files() -> None:
    """From here on no file can be opened, where the kernel can see to that."""
    if landlock.version():
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict({})


def main() -> int:
    """Serve until standard input ends."""
    token = sys.stdin.readline().strip()
    listening = socket.socket(fileno=int(sys.argv[1]))
    port = listening.getsockname()[1]
    room = resources.files("sealift.view")
    files = {name: room.joinpath(name).read_text() for name in ("style.css", "view.js")}
    asyncio.run(_serve(token, listening, port, files))
    return 0


async def _serve(
    token: str, listening: socket.socket, port: int, files: Mapping[str, str]
) -> None:
    fragments = Fragments()
    config = configure(Page(token, port, fragments, files), H11Protocol)
    config.load()  # reads its modules, which it cannot do afterwards
    _give_up_files()
    server = uvicorn.Server(config)

    def end() -> None:
        server.should_exit = server.force_exit = True

    loop = asyncio.get_running_loop()
    threading.Thread(
        target=_read_on, args=(fragments, loop, end), name="fragments", daemon=True
    ).start()
    await server.serve([listening])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError) as error:
        sys.exit(f"sealift: the page's process failed: {visible(str(error))}")
