"""Counters for Prometheus, in its text format.

Numbers and rule names only: no name of a peer, a resource or an address is a label.
Source: prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from sealift.events import Event, Sink

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
MAX_LABELS: Final = 200  # rules are stable names, but strangers choose what fails
_COUNTED: Final = {
    "release.granted": ("sealift_releases_total", "Keys released."),
    "release.refused": ("sealift_refusals_total", "Requests refused, by rule."),
    "lease.revoked": ("sealift_revocations_total", "Leases revoked, by rule."),
    "broker.failed": ("sealift_failures_total", "Failures of this broker, by rule."),
}
Gauges = Mapping[str, tuple[str, Callable[[], float]]]


class Metrics:
    """What happened since the start of this process.

    Args:
        gauges: By name: what it is, and a function that reads it.
    """

    def __init__(self, gauges: Gauges | None = None) -> None:
        self._gauges = dict(gauges or {})
        self._events: Counter[tuple[str, str]] = Counter()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0
        self._lock = threading.Lock()

    def add_gauge(self, name: str, what: str, read: Callable[[], float]) -> None:
        """One more number that is read when somebody asks."""
        self._gauges[name] = (what, read)

    def sink(self, onwards: Sink) -> Sink:
        """A sink that counts what passes through it."""

        def count(event: Event) -> None:
            if event.kind in _COUNTED:
                self._count(event.kind, str(event.fields.get("rule", "")))
            onwards(event)

        return count

    def observe(self, step: str, status: int, seconds: float) -> None:
        """One request was answered; ``step`` is one of a few fixed names."""
        place = next((i for i, most in enumerate(BUCKETS_S) if seconds <= most), -1)
        with self._lock:
            self._requests[step, status] += 1
            self._buckets[place] += 1
            self._sum_s += seconds

    def to_text(self) -> str:
        """Everything, as Prometheus reads it."""
        with self._lock:
            lines = [*self._event_lines(), *self._request_lines(), *self._histogram()]
        return "\n".join([*lines, *self._gauge_lines(), ""])

    def _count(self, kind: str, rule: str) -> None:
        with self._lock:
            if (kind, rule) not in self._events and len(self._events) >= MAX_LABELS:
                rule = "other"
            self._events[kind, rule] += 1

    def _event_lines(self) -> list[str]:
        lines = []
        for kind, (name, what) in _COUNTED.items():
            lines += _heading(name, what, "counter")
            found = {rule: n for (k, rule), n in self._events.items() if k == kind}
            if kind == "release.granted":
                lines.append(f"{name} {sum(found.values())}")
                continue
            lines += [
                f'{name}{{rule="{rule}"}} {n}' for rule, n in sorted(found.items())
            ]
        return lines

    def _request_lines(self) -> list[str]:
        name = "sealift_http_requests_total"
        return [
            *_heading(name, "HTTP requests answered, by step and status.", "counter"),
            *(
                f'{name}{{step="{step}",status="{status}"}} {n}'
                for (step, status), n in sorted(self._requests.items())
            ),
        ]

    def _histogram(self) -> list[str]:
        name = "sealift_http_request_seconds"
        lines = _heading(name, "Time from request to answer.", "histogram")
        seen = 0
        for most, n in zip(BUCKETS_S, self._buckets, strict=False):
            seen += n
            lines.append(f'{name}_bucket{{le="{most}"}} {seen}')
        total = sum(self._buckets)
        lines.append(f'{name}_bucket{{le="+Inf"}} {total}')
        return [*lines, f"{name}_sum {self._sum_s:.6f}", f"{name}_count {total}"]

    def _gauge_lines(self) -> list[str]:
        lines = []
        for name, (what, read) in self._gauges.items():
            lines += [*_heading(name, what, "gauge"), f"{name} {read():g}"]
        return lines


def _heading(name: str, what: str, kind: str) -> list[str]:
    return [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
