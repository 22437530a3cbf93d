"""What a server tells a client, as an error of the class that it is at the server."""

from __future__ import annotations

from typing import Final

from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    RefusedError,
    SealiftError,
)
from sealift.release.visible import visible
from sealift.serve.backlog import BusyError
from sealift.serve.packets import MAX_LINE_CHARACTERS, Refused

_KNOWN: Final[dict[str, tuple[type[SealiftError], str, str]]] = {
    "bad-request": (
        MalformedError,
        "the request does not fit the model's form",
        "`sealift predict --describe` shows the form",
    ),
    "request-too-large": (
        MalformedError,
        "the request is too large",
        "Ask with fewer rows at a time",
    ),
    "bad-packet": (MalformedError, "the server could not read what was sent", ""),
    "model-failed": (
        JobError,
        "the model failed on this request",
        "Its owner finds out with `sealift try`; other rows may work",
    ),
    "request-timeout": (
        PeerError,
        "the server did not come to the request in time",
        "Ask again, with fewer rows or when it has less to do",
    ),
    "tokens-not-taken": (
        PeerError,
        "the server ended the generation",
        "Take tokens as they come, or ask for fewer rows or steps",
    ),
    "server-stopping": (
        PeerError,
        "the server is stopping",
        "Ask another one, or this one when it is back",
    ),
}


def explain_refusal(refused: Refused) -> SealiftError:
    """The error; a server's own text is made harmless to print."""
    line = visible(refused.line)[:MAX_LINE_CHARACTERS]
    if refused.code == "busy":
        return BusyError(line, min(refused.retry_ms, 3_600_000) / 1000)
    if refused.code in _KNOWN:
        kind, what, fix = _KNOWN[refused.code]
        why = "" if line == what else line
        return kind(what, why=why, fix=fix, code=refused.code)
    return RefusedError("the server refused", why=line, code="request-refused")
