"""What is answered at each path, from a role's status alone.

Source of the text format: prometheus.io/docs/instrumenting/exposition_formats, 0.0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sealift.errors import SealiftError, UnavailableError
from sealift.health.status import EVERY_S, Status

STALE_S: Final = 10 * EVERY_S
PLAIN: Final = "text/plain; charset=utf-8"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_COUNTERS: Final = {
    "release.granted": ("sealift_releases_total", "Keys released."),
    "release.refused": ("sealift_refusals_total", "Requests refused, by rule."),
    "lease.revoked": ("sealift_revocations_total", "Leases revoked, by rule."),
    "broker.failed": ("sealift_failures_total", "Failures of this role, by rule."),
}
Read = Callable[[], Status]


@dataclass(frozen=True, slots=True)
class Answer:
    """Of HTTP."""

    status: int
    body: str
    media_type: str = PLAIN


def answer(method: str, path: str, read: Read, now_s: float) -> Answer:
    """Answer one request.

    Args:
        method: Of HTTP.
        path: As it came.
        read: The role's status.
        now_s: Seconds since 1970.
    """
    shown = _PATHS.get(path)
    if shown is None:
        return Answer(404, "there is nothing here\n")
    if method != "GET":
        return Answer(405, "this is only read\n")
    try:
        return shown(_fresh(read(), now_s))
    except SealiftError as error:
        return Answer(503, f"the role is silent [{error.code}]\n")


def _fresh(status: Status, now_s: float) -> Status:
    if abs(now_s - status.at_s) > STALE_S:
        raise UnavailableError("the status is old", code="status-stale")
    return status


def _alive(status: Status) -> Answer:
    return Answer(200, "ok\n")


def _ready(status: Status) -> Answer:
    if status.unready:
        return Answer(503, f"not ready [{status.unready}]\n")
    return Answer(200, "ready\n")


def _metrics(status: Status) -> Answer:
    lines = [*_counters(status), *_gauges(status)]
    return Answer(200, "\n".join([*lines, ""]), PROMETHEUS)


def _counters(status: Status) -> Iterator[str]:
    for kind, (name, what) in _COUNTERS.items():
        yield from _heading(name, what, "counter")
        for count in status.counts:
            if count.kind == kind:
                rule = f'{{rule="{count.rule}"}}' if count.rule else ""
                yield f"{name}{rule} {count.number}"


def _gauges(status: Status) -> Iterator[str]:
    gauges = {"ready": int(not status.unready), **status.gauges}
    for name, number in gauges.items():
        yield from _heading(f"sealift_{name}", "Now.", "gauge")
        yield f"sealift_{name} {number}"


def _heading(name: str, what: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {what}", f"# TYPE {name} {kind}"


_PATHS: Final[dict[str, Callable[[Status], Answer]]] = {
    "/healthz": _alive,
    "/readyz": _ready,
    "/metrics": _metrics,
}
