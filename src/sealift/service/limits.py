"""How much strangers may ask for: sizes, rates, times, and how many at once.

Pure: time is an argument. Addresses are what the socket says; behind a proxy everybody
has one, and the proxy must limit. Of IPv6 the first 64 bits count: one line has them all.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sealift.service.problem import Problem, limited

MAX_ADDRESSES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server takes.

    Attributes:
        auth_bytes: Largest body of a small request.
        attest_bytes: Largest body of evidence.
        header_bytes: Largest head of a request.
        target_bytes: Longest path with its query.
        body_s: Longest time for a body to come.
        head_s: Longest time for a head to come, or to stay without a request.
        per_address: Requests a second from one address, on average.
        in_all: Requests a second from all.
        burst_s: As many seconds' worth may come at once.
        at_once: Requests worked on at a time.
        at_once_per_address: Of them from one address, so that one alone, with slow
            bodies, does not take every place.
        connections: Connections open at a time.
        connections_per_address: Of them from one address.
    """

    auth_bytes: int = 16 << 10
    attest_bytes: int = 8 << 20
    header_bytes: int = 16 << 10
    target_bytes: int = 1024
    body_s: float = 10.0
    head_s: float = 10.0
    per_address: float = 50.0
    in_all: float = 500.0
    burst_s: float = 2.0
    at_once: int = 32
    at_once_per_address: int = 16
    connections: int = 256
    connections_per_address: int = 64


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class RateLimit:
    """So many a second, by key; a key that rested may ask for ``burst`` at once.

    Args:
        per_s: Tokens that come a second.
        burst: Most tokens that gather.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = max(1.0, burst)
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def spend(self, key: str, now_s: float) -> None:
        """Take one token; raises Problem 429 ``http-rate`` if there is none."""
        with self._lock:
            bucket = self._filled(key, now_s)
            if bucket.tokens < 1.0:
                raise limited(429, "too many requests", "http-rate", retry_s=1)
            bucket.tokens -= 1.0

    def _filled(self, key: str, now_s: float) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            if (
                len(self._buckets) >= MAX_ADDRESSES
            ):  # who asked longest ago is forgotten
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = _Bucket(self._burst, now_s)
        self._buckets.move_to_end(key)
        gained = (now_s - bucket.at_s) * self._per_s
        bucket.tokens = min(self._burst, bucket.tokens + gained)
        bucket.at_s = now_s
        return bucket


class Gate:
    """Lets so many through at a time, and nobody wait.

    Args:
        at_once: Most inside.
        each: Most of them from one address.
    """

    def __init__(self, at_once: int, each: int) -> None:
        self._free = at_once
        self._at_once = at_once
        self._each = each
        self._inside: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def inside(self) -> int:
        """How many are inside."""
        return self._at_once - self._free

    @contextmanager
    def passing(self, address: str) -> Iterator[None]:
        """Inside while it is open; raises Problem 503 ``http-busy`` if it is full."""
        key = address_key(address)
        with self._lock:
            if not self._free or self._inside[key] >= self._each:
                raise limited(503, "too much to do at once", "http-busy", retry_s=1)
            self._free -= 1
            self._inside[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._free += 1
                self._inside -= Counter({key: 1})  # who has none is forgotten


class Entrance:
    """Rates by address and in all, together."""

    def __init__(self, limits: Limits) -> None:
        burst_s = limits.burst_s
        self._each = RateLimit(limits.per_address, limits.per_address * burst_s)
        self._all = RateLimit(limits.in_all, limits.in_all * burst_s)

    def admit(self, address: str, now_s: float) -> None:
        """Count one request of an address; raises Problem 429.

        Its own rate first: one that asks too much does not use up what all share.
        """
        self._each.spend(address_key(address), now_s)
        self._all.spend("", now_s)


def address_key(address: str) -> str:
    """Who counts as one: an IPv4 address, or 64 bits of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        if mapped is None:
            return str(ipaddress.ip_network((parsed, 64), strict=False))
        return str(mapped)
    return str(parsed)


def check_target(path: bytes, query: bytes, limits: Limits) -> None:
    """Refuse a target that is too long, or not plain printable ASCII.

    Raises:
        Problem: 414 or 404 ``http-target``. Names of this server hold letters, digits
            and hyphens, so nothing is ever decoded: what is escaped names nothing.
    """
    if len(path) + len(query) > limits.target_bytes:
        raise limited(414, "the request's target is too long", "http-target")
    if any(byte <= 0x20 or byte >= 0x7F for byte in path + query) or b"%" in path:
        raise Problem(
            404, "InvalidRequestPath", "not a path [http-target]", "http-target"
        )


def check_head(headers: Iterable[tuple[bytes, bytes]], limits: Limits) -> None:
    """Refuse fields that are too large together; raises Problem 431 ``http-head``.

    The parser's own limit is one of heads that come in pieces.
    """
    if sum(len(name) + len(value) for name, value in headers) > limits.header_bytes:
        raise limited(431, "the request's head is too large", "http-head")
