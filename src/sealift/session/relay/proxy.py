"""The way to the relay: straight, or through the HTTPS proxy that the environment names.

``HTTPS_PROXY`` (or ``https_proxy``) is ``http://[USER:PASSWORD@]HOST:PORT``; ``NO_PROXY`` lists
hosts and ends of names that are dialled straight, as this machine's own addresses always are.
The proxy is asked with ``CONNECT`` and then carries bytes. Sessions are sealed end to end
and rest on no TLS, so a proxy that opens what it carries reads nothing: it breaks the
connection, which is recognised by its first bytes. Credentials are sent to the proxy alone,
and stand in no error.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from sealift.channel.transport.tcp import TcpTransport, connect_socket
from sealift.channel.transport.transport import Deadline, peer_closed, peer_timeout
from sealift.errors import PeerError, UnavailableError, UsageError

MAX_ANSWER_BYTES: Final = 16 << 10
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\r?\n")
# HTTP's own form (RFC 9110, 5.6.7); what has another one is no time.
_DATE: Final = re.compile(
    rb"\ndate:[ \t]*(\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT)[ \t]*\r?\n",
    re.IGNORECASE,
)
_END: Final = re.compile(rb"\r?\n\r?\n")
# How an answer begins that is no relay's: with TLS's alert or handshake, or with a page.
_TLS: Final = (b"\x15\x03", b"\x16\x03")
_PAGE: Final = (b"HTTP", b"<htm", b"<HTM", b"<!DO", b"<!do")


@dataclass(frozen=True, slots=True)
class Proxy:
    """One to dial through.

    Attributes:
        authorization: Of ``Proxy-Authorization``; empty without a password.
    """

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"{self.host}:{self.port}"


def proxy_for(host: str, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy that the environment names for a host; None to dial it straight.

    Raises:
        UsageError: ``proxy-address``, if it names none that can be used.
    """
    url = _named(environment, "HTTPS_PROXY")
    if not url or _is_here(host) or _is_exempt(host, _named(environment, "NO_PROXY")):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        place, port = parts.hostname or "", parts.port or 80
    except ValueError:
        raise _no_proxy() from None
    if parts.scheme != "http" or not _HOST.fullmatch(place):
        raise _no_proxy()
    pair = b":".join(
        unquote_to_bytes(e or "") for e in (parts.username, parts.password)
    )
    given = base64.b64encode(pair).decode() if parts.username is not None else ""
    return Proxy(place, port, given and f"Basic {given}")


def dial_relay(address: tuple[str, int], *, timeout_s: float) -> RelayTransport:
    """A connection to where a relay should be.

    Raises:
        PeerError: if nobody answers there, or at the proxy.
        UnavailableError: ``proxy-password``, ``proxy-refused``, ``proxy-breaks``.
        UsageError: ``proxy-address``.
    """
    host, port = address[0].strip("[]"), address[1]
    proxy = proxy_for(host, os.environ)
    if proxy is None:
        return RelayTransport(connect_socket(host, port, timeout_s=timeout_s))
    try:
        sock = connect_socket(proxy.host, proxy.port, timeout_s=timeout_s)
    except PeerError as error:
        why = f"{proxy.place}, {error.why}"
        what = "the proxy does not answer"
        raise PeerError(what, why=why, code="proxy-unreachable") from None
    try:
        date_s = _open_tunnel(sock, proxy, (host, port), Deadline(timeout_s))
    except BaseException:
        sock.close()
        raise
    return RelayTransport(sock, proxy=proxy, date_s=date_s)


class RelayTransport(TcpTransport):
    """A connection of which is known by which way it goes.

    Attributes:
        proxy: That it goes through.
        date_s: What time that proxy said it is, in seconds since 1970; None if it said none.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        proxy: Proxy | None = None,
        date_s: float | None = None,
    ) -> None:
        super().__init__(sock)
        self.proxy, self.date_s = proxy, date_s

    def hear(self, timeout_s: float) -> None:
        """Wait for the first bytes of an answer, and leave them where they are.

        Raises:
            UnavailableError: ``proxy-breaks``, if they are no relay's.
            PeerError: ``peer-timeout``.
        """
        self._wait(select.POLLIN, Deadline(timeout_s))
        with suppress(OSError):  # the connection ended: `receive` says so
            if spoken := _speaks(self._sock.recv(4, socket.MSG_PEEK)):
                raise _broken(f"{spoken} came in place of a relay's answer")


def _speaks(begun: bytes) -> str:
    if begun.startswith(_TLS):
        return "TLS"
    return "a page" if begun.startswith(_PAGE) else ""


def _open_tunnel(
    sock: socket.socket, proxy: Proxy, address: tuple[str, int], deadline: Deadline
) -> float | None:
    """Ask for a tunnel; what time the proxy says it is."""
    request = _request(proxy, address)
    try:
        sock.settimeout(deadline.remaining_s())
        sock.sendall(request)
        answer = _read_answer(sock, deadline)
    except TimeoutError:
        raise peer_timeout() from None
    except OSError as error:
        raise peer_closed(error) from None
    require_tunnel(answer, address)
    found = _DATE.search(answer)
    try:
        return parsedate_to_datetime(found[1].decode()).timestamp() if found else None
    except ValueError:  # no such day
        return None


def _request(proxy: Proxy, address: tuple[str, int]) -> bytes:
    host, port = address
    if not _HOST.fullmatch(host):  # it came from others, and goes into a header
        what = "the orchestrator's address is not a host name"
        raise PeerError(what, code="peer-unreachable")
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    return "\r\n".join((*lines, "", "")).encode()


def _read_answer(sock: socket.socket, deadline: Deadline) -> bytes:
    """Up to the end of its header and no byte more: what follows is the relay's."""
    answer = b""
    while not _END.search(answer) and len(answer) < MAX_ANSWER_BYTES:
        left_s = deadline.remaining_s()
        if left_s == 0:
            raise TimeoutError
        sock.settimeout(left_s)
        seen = sock.recv(MAX_ANSWER_BYTES - len(answer), socket.MSG_PEEK)
        end = _END.search(answer + seen)
        taken = sock.recv((end.end() - len(answer)) if end else len(seen) or 1)
        if not taken:
            break
        answer += taken
        if not b"HTTP/".startswith(answer[:5]):
            break
    return answer


def require_tunnel(answer: bytes, address: tuple[str, int]) -> None:
    """Demand that a proxy opened a tunnel.

    Args:
        answer: The header of what it said.
        address: Where to.

    Raises:
        UnavailableError: ``proxy-password``, ``proxy-refused``, ``proxy-breaks``.
        PeerError: ``peer-unreachable``, if the proxy reaches nobody there.
    """
    status = _STATUS.match(answer)
    if status is None or not _END.search(answer):
        raise _broken("it did not answer CONNECT with HTTP")
    code, place = int(status[1]), f"{address[0]}:{address[1]}"
    if 200 <= code < 300:
        return
    if code == 407:
        raise UnavailableError("the proxy requires a password", code="proxy-password")
    if code >= 500:
        raise PeerError(
            f"cannot connect to {place} through the proxy",
            why=f"it answered {code}: nobody answers there",
            code="peer-unreachable",
        )
    raise UnavailableError(
        f"the proxy does not allow connections to {place}",
        why=f"it answered {code}",
        code="proxy-refused",
    )


def _named(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.lower()) or environment.get(name) or ""


def _is_here(host: str) -> bool:
    """Whether it is this machine, by any of its own addresses that are no network's."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _is_exempt(host: str, listed: str) -> bool:
    names = [each.strip().lower() for each in listed.split(",")]
    ends = tuple(f".{end}" for each in names if (end := each.lstrip("*.")))
    return "*" in names or f".{host.lower()}".endswith(ends)


def _broken(why: str) -> UnavailableError:
    return UnavailableError(
        "something between this machine and the relay inspects the connection",
        why=why,
        code="proxy-breaks",
    )


def _no_proxy() -> UsageError:
    return UsageError("HTTPS_PROXY does not name a proxy", code="proxy-address")
